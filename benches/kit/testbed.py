"""The testbed of the load bench: the origin, Redis with its records, and the peers in front."""

import os
import pwd
import resource
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

from .processes import Failed, ROOT, free_port, until

PEERS = ROOT / "benches" / "peers"
BODY = 16 * 1024 * 1024
TOKEN = "example-token-of-32-characters-1"
# Ids as long as real ones. The numbered ones are "%032x".
PRIVATE, PUBLIC = "7c8fbcd45ffe450fb8f7fb223ad45507", "a1b2c3d45ffe450fb8f7fb223ad45508"
PREFIX = "cube:v1:shared:sandbox:proxy:"
PROXIES = ("nginx", "lua", "haproxy", "noop", "cube")
# Addresses of the origin, as of many nodes: see peers/origin.conf.
NODES = 64


def host_of(sandbox, port=8000):
    return f"{port}-{sandbox}.cube.test"


class Peer:
    """A proxy under measurement, or the origin itself (`direct`, which has no process to measure)."""

    def __init__(self, name, title, process, http, https=None):
        self.name, self.title, self.process, self.http, self.https = name, title, process, http, https


class Testbed:
    """Starts what the scenarios need. The proxies share `proxy_cpu`; all else has `other_cpus`."""

    def __init__(self, group, directory, binaries, proxy_cpu, other_cpus, peers=PROXIES):
        self.group, self.directory, self.binaries = group, Path(directory), Path(binaries)
        self.proxy_cpu, self.other_cpus = proxy_cpu, other_cpus
        self.origin, self.streams, self.h2c, self.redis = (free_port() for _ in range(4))
        self.started = 0
        self._files()
        self._origin()
        self._redis()
        self.peers = {"direct": Peer("direct", "direct", None, self.origin)}
        self.peers |= {name: getattr(self, name)() for name in peers}

    def _files(self):
        www = self.directory / "www"
        www.mkdir()
        (www / "16MiB").write_bytes(os.urandom(BODY))
        key, cert = self.directory / "key.pem", self.directory / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-keyout", key, "-out", cert, "-days", "30", "-subj", "/CN=cube.test",
             "-addext", "subjectAltName=DNS:*.cube.test"],
            check=True, capture_output=True)
        (self.directory / "both.pem").write_bytes(cert.read_bytes() + key.read_bytes())

    def _origin(self):
        nodes = [f"127.0.1.{n}" for n in range(1, NODES + 1)]
        listen = "\n        ".join(f"listen {ip}:{self.origin} backlog=4096;" for ip in ["127.0.0.1", *nodes])
        conf = self.config("origin.conf", LISTEN=listen, H2C=self.h2c)
        self._start("origin", ["nginx", "-c", conf], self.origin, self.h2c, cpus=self.other_cpus)
        streams = [self.binaries / "bench-streams", "origin", f"127.0.0.1:{self.streams}"]
        self._start("streams", streams, self.streams, cpus=self.other_cpus)

    def _redis(self):
        command = ["redis-server", "--port", self.redis, "--bind", "127.0.0.1", "--save", "",
                   "--appendonly", "no", "--dir", self.directory]
        self._start("redis", command, self.redis, cpus=self.other_cpus)
        common = ["HostIP", "127.0.0.1", "SandboxIP", "127.0.0.1", "CreatedAt", "1733000000000000000",
                  "8000", self.origin, "9000", self.streams, "50051", self.h2c]
        self.command("HSET", PREFIX + PUBLIC, *common, "AllowPublicTraffic", "true")
        self.command("HSET", PREFIX + PRIVATE, *common, "AllowPublicTraffic", "false",
                     "TrafficAccessToken", TOKEN)

    def command(self, *words):
        """One Redis command; its reply, undecoded."""
        words = [str(word).encode() for word in words]
        message = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        with socket.create_connection(("127.0.0.1", self.redis), timeout=60) as connection:
            connection.sendall(message)
            reply = connection.recv(65536)
        if reply.startswith(b"-"):
            raise Failed(f"Redis: {reply.decode(errors='replace')}")
        return reply

    def populate(self, count):
        """Writes the numbered sandboxes 0..count: private, two ports, spread over the nodes."""
        script = """for n = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
            redis.call('HSET', ARGV[3] .. string.format('%032x', n), 'HostIP', '127.0.1.' .. (n % ARGV[5] + 1),
                'SandboxIP', '192.168.1.100', 'CreatedAt', '1733000000000000000', '8000', ARGV[4],
                '49983', '40001', 'AllowPublicTraffic', 'false', 'TrafficAccessToken', ARGV[6])
        end"""
        step = 50_000
        for first in range(0, count, step):
            self.command("EVAL", script, 0, first, min(first + step, count), PREFIX, self.origin, NODES, TOKEN)

    def config(self, name, **values):
        """Writes the peer's configuration with everything filled in; its path."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        values = {
            "DIR": self.directory, "PEERS": PEERS, "USER": pwd.getpwuid(os.getuid()).pw_name,
            "ORIGIN": self.origin, "STREAMS": self.streams, "REDIS": self.redis, "FILES": files,
            # Two files each, and some to spare.
            "CONNECTIONS": (files - 200) // 2, **values,
        }
        text = (PEERS / name).read_text()
        for key, value in values.items():
            text = text.replace(f"@{key}@", str(value))
        self.started += 1
        path = self.directory / f"{self.started}-{name}"
        path.write_text(text)
        return path

    def _start(self, name, command, *ports, cpus, environment=None):
        process = self.group.start(f"{self.started}-{name}", command, self.directory, cpus=cpus,
                                   environment=environment)
        return process.listening(*ports)

    def _peer(self, name, title, command, http, https=None, environment=None):
        ports = [port for port in (http, https) if port]
        process = self._start(name, command, *ports, cpus=[self.proxy_cpu], environment=environment)
        return Peer(name, title, process, http, https)

    def nginx(self):
        http, https = free_port(), free_port()
        conf = self.config("nginx.conf", HTTP=http, HTTPS=https)
        return self._peer("nginx", "nginx", ["nginx", "-c", conf], http, https)

    def lua(self):
        http = free_port()
        conf = self.config("lua.conf", HTTP=http)
        return self._peer("lua", "nginx + Lua", ["nginx", "-c", conf], http)

    def haproxy(self):
        http, https = free_port(), free_port()
        conf = self.config("haproxy.cfg", HTTP=http, HTTPS=https)
        return self._peer("haproxy", "HAProxy", ["haproxy", "-db", "-f", conf], http, https)

    def noop(self, upstream=None):
        http = free_port()
        command = [self.binaries / "noop-pingora", f"127.0.0.1:{http}", f"127.0.0.1:{upstream or self.origin}"]
        return self._peer("noop", "Pingora, no-op", command, http)

    def cube(self, binaries=None, **environment):
        """Cube Proxy, of another build where `binaries` says so; the environment changes its configuration."""
        http, https, admin, metrics = (free_port() for _ in range(4))
        run = self.directory / f"run-{self.started}"
        run.mkdir()
        conf = self.config("cube.yaml", HTTP=http, HTTPS=https, ADMIN=admin, METRICS=metrics, RUN=run)
        command = [(binaries or self.binaries) / "cube-proxy", "run", "-c", conf]
        peer = self._peer("cube", "Cube Proxy", command, http, https, environment)
        peer.metrics = metrics
        until("changes to be pushed", lambda: self.metric(peer, "cube_proxy_cache_tracked") == 1)
        return peer

    def metric(self, peer, name):
        """A metric without labels of a Cube Proxy."""
        with urllib.request.urlopen(f"http://127.0.0.1:{peer.metrics}/metrics", timeout=20) as response:
            text = response.read()
        for line in text.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise Failed(f"there is no metric {name}")

    def empty_logs(self):
        """Access logs are appended to: what was written makes no difference to what follows."""
        for log in self.directory.glob("*-access.log"):
            os.truncate(log, 0)


def versions():
    """What the peers say they are."""
    def first_line(*command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip().splitlines()[0]

    lua = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "libnginx-mod-http-lua"],
                         capture_output=True, text=True, check=False).stdout
    return {
        "nginx": first_line("nginx", "-v").partition("/")[2],
        "nginx Lua module": lua,
        "HAProxy": first_line("haproxy", "-v").split()[2],
        "Redis": first_line("redis-server", "--version").split("v=")[1].split()[0],
        "wrk": first_line("wrk", "-v").split("[")[0].strip().removeprefix("wrk "),
        "h2load": first_line("h2load", "--version").split("/")[1],
        "kernel": os.uname().release,
    }


# Debian packages of what is driven here. An nginx of another flavour will do.
TOOLS = {"nginx": "nginx-light", "redis-server": "redis-server", "wrk": "wrk", "h2load": "nghttp2-client",
         "openssl": "openssl", "taskset": "util-linux"}
PEERS_TOOLS = {"haproxy": "haproxy", "/usr/lib/nginx/modules/ngx_http_lua_module.so": "libnginx-mod-http-lua",
               "/usr/share/lua/5.1/nginx/redis.lua": "lua-nginx-redis"}


def install(tools):
    """Installs the packages of those that are missing; makes those that only root's PATH has found."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [package for what, package in tools.items()
               if not (Path(what).exists() if what.startswith("/") else shutil.which(what))]
    if missing:
        subprocess.run([ROOT / "scripts" / "packages", *missing], check=True)
