"""The clients that drive the load: wrk, h2load, and our own. Each gives a dictionary with `count`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from .processes import Failed
from .testbed import TOKEN

HERE = Path(__file__).resolve().parent
TOKEN_FIELD = f"E2b-Traffic-Access-Token: {TOKEN}"


class Clients:
    """Clients on the processors `cpus`."""

    def __init__(self, cpus, binaries):
        self.prefix = ["taskset", "-c", ",".join(str(cpu) for cpu in cpus)]
        self.binaries = Path(binaries)

    def _run(self, command, seconds, environment=None):
        command = [*self.prefix, *(str(part) for part in command)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60,
                                  env={**os.environ, **(environment or {})}, check=False)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{command[3]} did not end in time") from late
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.stdout

    def wrk(self, port, host, seconds, *, path="/", connections=64, fields=(), tls=False, any_status=False,
            **environment):
        """wrk; a round with errors is no figure."""
        scheme = "https" if tls else "http"
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "20s", "--latency",
                   "-s", HERE / "wrk.lua", "-H", f"Host: {host}", "-H", "User-Agent: bench/1.0"]
        for field in fields:
            command += ["-H", field]
        output = self._run([*command, f"{scheme}://127.0.0.1:{port}{path}"], seconds,
                           {f"BENCH_{name.upper()}": str(value) for name, value in environment.items()})
        found = re.search(r"^RESULT (.*)$", output, re.MULTILINE)
        if not found:
            raise Failed(f"wrk said nothing that is understood: {output[-500:]}")
        result = json.loads(found[1])
        errors = {kind: n for kind, n in result.pop("errors").items()
                  if n and not (kind == "status" and any_status)}
        if errors or not result["count"]:
            raise Failed(f"wrk met errors: {errors}, {result['count']} answers")
        return result

    def h2load(self, port, host, seconds, *, clients=16, streams=16, scheme="https", fields=()):
        """h2load, over TLS unless told otherwise."""
        command = ["h2load", f"-D{seconds:g}", f"-c{clients}", f"-m{streams}", "-t1",
                   f"--connect-to=127.0.0.1:{port}"]
        for field in ("user-agent: bench/1.0", TOKEN_FIELD.lower(), *fields):
            command += ["-H", field]
        output = self._run([*command, f"{scheme}://{host}/"], seconds)
        found = re.search(r"requests: \d+ total.* (\d+) succeeded, (\d+) failed, (\d+) errored", output)
        rate = re.search(r"finished in [^,]*, ([\d.]+) req/s", output)
        if not found or not rate or int(found[2]) + int(found[3]) > 0:
            raise Failed(f"h2load: {output[-800:]}")
        status = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", output)
        if not status or int(status[1]) == 0 or any(int(status[n]) for n in (2, 3, 4)):
            raise Failed(f"h2load: responses other than 200: {output[-800:]}")
        return {"count": int(found[1]), "seconds": seconds}

    def paced(self, port, host, seconds, rate, connections=64):
        """Starts so many requests a second, whatever the responses do."""
        return self.started(self.binaries / "bench-streams", "paced", f"127.0.0.1:{port}", host, connections,
                            seconds, f"{rate:.3f}", TOKEN_FIELD)

    def started(self, *command):
        """A client of ours that is ready: it prints `ready` once everything stands."""
        child = subprocess.Popen([*self.prefix, *(str(part) for part in command)], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if child.stdout.readline().strip() != "ready":
            _, errors = child.communicate(timeout=20)
            raise Failed(f"{Path(command[0]).name} {command[1]}: {errors[-800:]}")
        return child

    @staticmethod
    def finished(child, seconds):
        """What it measured."""
        try:
            output, errors = child.communicate(timeout=seconds + 60)
        except subprocess.TimeoutExpired as late:
            child.kill()
            raise Failed("a client did not end in time") from late
        if child.returncode != 0:
            raise Failed(f"a client failed: {errors[-800:]}")
        return json.loads(output)

    def streams(self, what, port, host, connections, seconds):
        """Starts `messages` or `events`."""
        return self.started(self.binaries / "bench-streams", what, f"127.0.0.1:{port}", host, connections, seconds)

    def handshakes(self, port, mode, seconds, host):
        """Starts TLS handshakes."""
        return self.started(sys.executable, HERE / "handshakes.py", port, mode, seconds, host, TOKEN)

    def idle(self, port, kind, count, host):
        """Connections that are idle after one request, until they are let go."""
        return self.started(sys.executable, HERE / "idle.py", port, kind, count, host, TOKEN)

    def good(self, peer, host, seconds):
        """The good clients beside a flood; see good.py."""
        return self.started(sys.executable, HERE / "good.py", peer.http, peer.https, seconds, host, TOKEN)

    def steady(self, peer, host, seconds):
        """The good clients of a soak; see steady.py."""
        return self.started(sys.executable, HERE / "steady.py", peer.http, peer.https, seconds, host, TOKEN)

    def flood(self, kind, peer, host, public, seconds):
        """One kind of attack; see floods.py."""
        return self.started(sys.executable, HERE / "floods.py", kind, peer.http, peer.https, seconds, host, public)
