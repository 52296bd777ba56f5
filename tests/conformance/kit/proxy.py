"""The binary, running with one configuration, and everything that runs for one group."""
import http.client
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

from .context import Context
from .manager import Manager
from .redis import Redis
from .registry import Mismatch, short
from .tools import IO_LIMIT, NODE_IP, free_port, merge, wait_for, yaml


class Proxy:
    """The binary, running with one configuration file."""

    def __init__(self, binary, config, directory, name="proxy", env=None):
        self.config, self.name, self.directory = config, name, Path(directory)
        self.file = self.directory / f"{name}.yaml"
        self.file.write_text(yaml(config))
        self.err = open(self.directory / f"{name}.err", "ab+")
        self.process = subprocess.Popen(
            [binary, "run", "-c", str(self.file)], stdin=subprocess.DEVNULL, stdout=self.err, stderr=self.err,
            env={**os.environ, **(env or {})}, cwd=self.directory)
        self.http = int(config["listen"]["http"][0].rsplit(":", 1)[1])
        self.admin = int(config["listen"]["admin"].rsplit(":", 1)[1])
        self.metrics = int(config["listen"]["metrics"].rsplit(":", 1)[1])
        self.token = (config.get("admin") or {}).get("token")

    def ask(self, port, method, path, body=None, headers=(), limit=IO_LIMIT):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def probe(self, path):
        """Status of GET path on the admin listener, 0 when nothing responses."""
        headers = [("X-Cube-Admin-Token", self.token)] if self.token else []
        try:
            return self.ask(self.admin, "GET", path, headers=headers, limit=2)[0]
        except (OSError, http.client.HTTPException):
            return 0

    def wait_ready(self, seconds=12):
        """Until /readyz is 200; without an admin listener until the http port has been open for 2 s."""
        begin = time.monotonic()

        def ready():
            status = self.probe("/readyz")
            return self.process.poll() is not None or status == 200 or (
                status == 0 and time.monotonic() - begin > 2 and self._http_open())
        return wait_for(ready, seconds, 0.05) and self.process.poll() is None

    def _http_open(self):
        try:
            socket.create_connection(("127.0.0.1", self.http), 1).close()
            return True
        except OSError:
            return False

    def output(self):
        self.err.flush()
        return (self.directory / f"{self.name}.err").read_text(errors="replace")

    def stop(self):
        """Two SIGTERM (the second ends at once), then SIGKILL: our own process, by its id."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(1.5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        self.err.close()


def base_config(run, redis_port=None):
    """What every group starts from; a group's own config is merged over it."""
    config = {
        "node_ip": NODE_IP,
        "listen": {"http": [f"127.0.0.1:{free_port()}"], "https": [], "grpc": [],
                   "admin": f"127.0.0.1:{free_port()}", "metrics": f"127.0.0.1:{free_port()}"},
        "store": {"kind": "redis", "redis": {"url": f"redis://127.0.0.1:{redis_port}/0"}},
        "upstream": {"connect_timeout": "500ms", "cidrs": ["127.0.0.0/16", "::1/128"]},
        "access_log": {"path": str(run / "access.log"), "format": "cube"},
        "server": {"threads": 2, "run_dir": str(run)},
    }
    if redis_port is None:
        config["store"] = {"kind": "file"}
    return config


class Runtime:
    """Everything that runs for one group."""

    def __init__(self, group, binary, directory):
        self.group, self.binary, self.directory = group, binary, Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.redis, self.manager, self.proxy, self.problem, self.counter = None, None, None, None, 0
        try:
            self.redis = Redis(self.directory) if group.store == "redis" else None
            self.manager = Manager() if group.manager else None
            if group.run:
                self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self):
        ready = self._begin()
        if not ready and self.proxy.process.poll() == 1:      # perhaps somebody took a port in between
            self.proxy.stop()
            ready = self._begin()
        if not ready:
            code = self.proxy.process.poll()
            self.problem = f"proxy not ready (exit code {code}): {short(self.proxy.output()[-600:], 600)}"
        elif self.group.settle and self.redis:
            self._settle()

    def ended_after(self, name):
        """What to say when the group's proxy has ended; None while it runs."""
        code = self.proxy.process.poll() if self.proxy else None
        if code is None:
            return None
        return f"the proxy ended with {code} after {name}: {short(self.proxy.output()[-600:], 600)}"

    def _begin(self):
        config = self.group.config
        self.proxy = self.spawn(config(self.directory) if callable(config) else config)
        return self.proxy.wait_ready()

    def config(self, extra=None):
        config = merge(base_config(self.directory, self.redis and self.redis.port), extra or {})
        if self.manager and (config.get("resume") or {}).get("url", "") == "":
            config["resume"]["url"] = self.manager.url
        if config["store"].get("kind") == "file" and not config["store"].get("file"):
            config["store"]["file"] = str(self.directory / "sandboxes.yaml")
            if not Path(config["store"]["file"]).exists():
                Path(config["store"]["file"]).write_text("sandboxes: {}\n")
        return config

    def spawn(self, extra=None, env=None):
        self.counter += 1
        return Proxy(self.binary, self.config(extra), self.directory, f"proxy{self.counter}", env)

    def _settle(self):
        """Waits until a change in the store is seen at once, so that no case races the start of tracking."""
        t = Context(self)
        try:
            one, two = t.upstream(name="one", host="127.0.0.3"), t.upstream(name="two", host="127.0.0.3")
            box = t.sandbox(one)
            for _ in range(30):
                ports = [one.port, two.port]
                random.shuffle(ports)
                followed = True
                for port in ports:
                    self.redis("HSET", t.key(box.id), box.port, port)
                    time.sleep(0.05)
                    response = t.call(box, "/settle")
                    followed = followed and response.status == 200 and response.json()["upstream"] == \
                        ("one" if port == one.port else "two")
                if followed:
                    return
                time.sleep(0.1)
        except (OSError, Mismatch):
            pass
        finally:
            t.finish()

    def stop(self):
        if self.proxy:
            self.proxy.stop()
        if self.manager:
            self.manager.upstream.stop()
        if self.redis:
            self.redis.stop()
