"""What a case works with."""
import json
import os
import re
import subprocess
import time

from .client import Client, Sandbox
from .registry import Mismatch, short
from .tools import IO_LIMIT, NODE_IP, free_port, new_id, wait_for
from .upstream import BlackHole, Upstream


class Context:
    """What a case works with. Everything it starts is stopped after it."""

    def __init__(self, runtime):
        self.run, self.redis, self.proxy, self.manager = runtime, runtime.redis, runtime.proxy, runtime.manager
        self.started, self.keys = [], []

    # -- parts

    def upstream(self, handler=None, host="127.0.0.1", name="upstream", port=None):
        upstream = Upstream(handler, host, name, port)
        self.started.append(upstream)
        return upstream

    def black_hole(self, host="127.0.0.1"):
        hole = BlackHole(host)
        self.started.append(hole)
        return hole

    def spawn(self, extra=None, ready=True, env=None):
        """Another proxy for this case alone."""
        proxy = self.run.spawn(extra, env)
        self.started.append(proxy)
        if ready and not proxy.wait_ready():
            raise Mismatch("start of the proxy", "ready", short(proxy.output()[-600:], 600))
        return proxy

    def execute(self, text, command=("run", "-c"), env=None, limit=9):
        """(exit code, output, file) of the binary with that configuration; no code when it still runs after limit."""
        path = self.run.directory / f"{new_id('conf')}.yaml"
        path.write_text(text)
        process = subprocess.Popen(
            [self.run.binary, *command, str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, cwd=self.run.directory)
        try:
            output = process.communicate(timeout=limit)[0]
            return process.returncode, output.decode(errors="replace"), path
        except subprocess.TimeoutExpired:
            process.kill()
            return None, process.communicate()[0].decode(errors="replace"), path

    def client(self, port=None, host="127.0.0.1", source=None, limit=IO_LIMIT):
        client = Client(port or self.proxy.http, host, source, limit)
        self.started.append(client)
        return client

    def key(self, sid, prefix="cube:v1:shared:sandbox:proxy:"):
        return prefix + sid

    def record(self, sid, fields, prefix="cube:v1:shared:sandbox:proxy:"):
        """Writes a hash as the control plane does."""
        flat = [x for pair in fields.items() for x in pair]
        self.keys.append(self.key(sid, prefix))
        self.redis("HSET", self.key(sid, prefix), *flat)

    def sandbox(self, upstream=None, port=8080, sid=None, local=False, token=None, fields=None, drop=()):
        """A sandbox behind upstream: on another node by default (HostIP and a mapped port), or on this one."""
        sid = sid or new_id()
        host, target = (upstream.host, upstream.port) if upstream else ("127.0.0.1", 1)
        if local:
            port = target
            record = {"HostIP": NODE_IP, "SandboxIP": host}
        else:
            record = {"HostIP": host, "SandboxIP": "127.0.0.77", str(port): target}
        record["CreatedAt"] = time.time_ns()
        if token:
            record.update({"AllowPublicTraffic": "false", "TrafficAccessToken": token})
        record.update(fields or {})
        for name in drop:
            record.pop(name, None)
        self.record(sid, record)
        return Sandbox(sid, port, token)

    # -- requests

    def raw(self, method, target, headers=(), body=None, port=None, source=None, limit=IO_LIMIT, host="127.0.0.1"):
        """One request on a connection of its own, headers exactly as given."""
        with Client(port or self.proxy.http, host, source, limit) as client:
            return client.call(method, target, headers, body)

    def naming(self, box, form, port=None, domain=".cube.test"):
        """(prefix of the target, headers) that name a sandbox in that form: host, header or path."""
        if form == "host":
            return "", [("Host", box.host(port, domain))]
        if form == "header":
            return "", [("Host", f"127.0.0.1:{self.proxy.http}"), ("E2b-Sandbox-Id", box.id),
                        ("E2b-Sandbox-Port", str(port or box.port))]
        return box.prefix(port), [("Host", f"127.0.0.1:{self.proxy.http}")]

    def call(self, box, target="/", form="host", method="GET", headers=(), body=None, port=None, **more):
        prefix, named = self.naming(box, form, port)
        return self.raw(method, prefix + target, named + list(headers), body, **more)

    def refused_port(self):
        return free_port()

    def admin(self, method, path, body=None, token=True, raw=None, proxy=None):
        """(status, parsed JSON) of the admin API."""
        proxy = proxy or self.proxy
        headers = {"X-Cube-Admin-Token": proxy.token} if token is True and proxy.token else \
            {"X-Cube-Admin-Token": token} if isinstance(token, str) else {}
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        if data is not None:
            headers["Content-Type"] = "application/json"
        status, text = proxy.ask(proxy.admin, method, path, data, headers.items())
        try:
            return status, json.loads(text)
        except ValueError:
            raise Mismatch(f"{method} {path}", "JSON", text) from None

    def state(self, box, state):
        status, response = self.admin("POST", "/admin/state", {"sandbox_id": box.id, "state": state})
        self.eq("POST /admin/state", (status, response), (200, {"ok": True}))

    def metrics(self):
        """{(name, ((label, value), ...)): number} of GET /metrics."""
        status, text = self.proxy.ask(self.proxy.metrics, "GET", "/metrics")
        self.eq("GET /metrics", status, 200)
        out = {}
        for line in text.decode().splitlines():
            match = re.match(r'^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)', line)
            if match and not line.startswith("#"):
                labels = tuple(sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or "")))
                out[(match.group(1), labels)] = float(match.group(3))
        return out

    def log(self, request_id, seconds=3.0, name="access.log"):
        """Fields of the access log line with that request id."""
        def find():
            try:
                text = (self.run.directory / name).read_text(errors="replace")
            except OSError:
                return None
            return next((line for line in text.splitlines() if request_id in line), None)
        line = wait_for(find, seconds)
        if not line:
            raise Mismatch("access log", f"a line with {request_id}", "none")
        fields = line.split("||")
        self.eq("number of fields in the access log", len(fields), 26)      # operations.md: 22 and 4 of ours
        return fields

    # -- judgement

    def eq(self, what, got, want):
        if got != want:
            raise Mismatch(what, want, got)

    def true(self, what, condition, want="true", got="false"):
        if not condition:
            raise Mismatch(what, want, got)

    def has(self, what, text, part):
        if part not in text:
            raise Mismatch(what, f"something with {part!r}", text)

    def lacks(self, what, text, part):
        if part in text:
            raise Mismatch(what, f"nothing with {part!r}", text)

    def passed(self, response, status=200):
        self.eq("status", (response.status, response.retcode),
                (status, "310200" if status == 200 else f"330{status}"))
        return response

    def finish(self):
        for part in reversed(self.started):
            try:
                part.close() if isinstance(part, Client) else part.stop()
            except (OSError, subprocess.SubprocessError):
                pass
        self.started.clear()
