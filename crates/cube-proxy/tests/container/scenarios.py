"""The image of deploy/Containerfile, run by podman (scripts/container).

    scenarios.py IMAGE DIRECTORY [OPTION...]

DIRECTORY is for files that are mounted; OPTIONs go to every `podman run`. Containers have no network
but their own loopback; what stands in for the world runs in it beside them.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback

IMAGE, DIRECTORY, *OPTIONS = sys.argv[1:]

CONFIG = """
listen: { http: ["127.0.0.1:8081"] }
store: { kind: file, file: /etc/cube-proxy/sandboxes.yaml }
upstream: { cidrs: [127.0.0.0/8] }
drain: { delay: 1s }
"""
SANDBOXES = """
sandboxes:
  web: { HostIP: 127.0.0.1, SandboxIP: 127.0.0.1, "3000": "3000" }
"""
# Says "tick" for as long as the path says, in chunks, and "end".
ORIGIN = """
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        until = time.monotonic() + float(self.path.strip("/") or 0)
        while time.monotonic() < until:
            self.wfile.write(b"4\\r\\ntick\\r\\n")
            time.sleep(0.1)
        self.wfile.write(b"3\\r\\nend\\r\\n0\\r\\n\\r\\n")
print("ready", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""


def podman(*arguments, check=True, timeout=120):
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=timeout)
    if check:
        assert done.returncode == 0, f"podman {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def until(what, condition, limit=20):
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < limit, f"{what}: not within {limit} s"
        time.sleep(0.05)


class Container:
    def __init__(self, *options, command=()):
        self.id = podman("run", "-d", "--network=none", *OPTIONS, *options, IMAGE, *command).stdout.strip()

    def inspect(self, what):
        return podman("inspect", "-f", "{{" + what + "}}", self.id).stdout.strip()

    def runs(self):
        return self.inspect(".State.Status") == "running"

    def logs(self):
        done = podman("logs", self.id)
        return done.stdout + done.stderr

    def inside(self, *command):
        """A program of this machine in the container's network."""
        return ["nsenter", "--net", "--target", self.inspect(".State.Pid"), "--", *command]

    def get(self, path, port=8081):
        done = subprocess.run(self.inside("curl", "-s", "-m", "30", f"http://127.0.0.1:{port}{path}"),
                              capture_output=True, text=True)
        return done.stdout

    def ready(self):
        def is_ready():
            assert self.runs(), f"it has ended:\n{self.logs()}"
            return podman("exec", self.id, "cube-proxy", "ready", "-c", "/etc/cube-proxy/cube-proxy.yaml",
                          check=False).returncode == 0
        until("ready", is_ready)

    def stop(self, seconds=60):
        podman("stop", "-t", str(seconds), self.id, timeout=seconds + 30)
        return int(self.inspect(".State.ExitCode"))


@contextlib.contextmanager
def container(*options, command=()):
    one = Container(*options, command=command)
    try:
        yield one
    finally:
        podman("rm", "-f", "-t", "0", one.id, check=False)


@contextlib.contextmanager
def serving(*options):
    """With a mounted configuration, and a server beside it."""
    mounts = ["-v", f"{DIRECTORY}/cube-proxy.yaml:/etc/cube-proxy/cube-proxy.yaml:ro",
              "-v", f"{DIRECTORY}/sandboxes.yaml:/etc/cube-proxy/sandboxes.yaml:ro"]
    with container(*mounts, *options) as one:
        one.ready()
        origin = subprocess.Popen(one.inside("python3", "-c", ORIGIN), stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL)
        try:
            origin.stdout.readline()
            until("the server", lambda: one.get("/0", 3000) == "end")
            assert one.get("/sandbox/web/3000/0") == "end", one.logs()
            yield one
        finally:
            origin.kill()
            origin.wait()


def demo():
    with container(command=["demo"]) as one:
        # Where it is, it says itself.
        until("its words", lambda: "/sandbox/echo/8080/hello" in one.logs())
        port = re.search(r"http://127\.0\.0\.1:(\d+)/sandbox/", one.logs()).group(1)
        until("the demo", lambda: "hello" in one.get("/sandbox/echo/8080/hello", port))
        assert one.stop(20) == 0, one.logs()


def a_mounted_configuration():
    with serving() as one:
        assert podman("exec", one.id, "id", "-u").stdout.strip() == "10001"


def the_health_check_is_kept():
    health = json.loads(podman("inspect", "-f", "{{json .HealthCheck}}", IMAGE, check=False).stdout or "null")
    if not health:
        health = json.loads(podman("inspect", "-f", "{{json .Config.Healthcheck}}", IMAGE).stdout)
    assert health and "ready" in health["Test"], health
    with serving() as one:
        podman("healthcheck", "run", one.id)


def another_user():
    # With the group 0, as platforms do that give each container a user of its own, and without.
    for user in ("12345", "12345:12345"):
        with serving("--user", user) as one:
            assert podman("exec", one.id, "id", "-u").stdout.strip() == "12345"
    os.makedirs(f"{DIRECTORY}/of-root", exist_ok=True)
    names_the_directory("--user", "12345:12345", "-v", f"{DIRECTORY}/of-root:/run/cube-proxy")


def a_read_only_root():
    with serving("--read-only", "--read-only-tmpfs=false", "--tmpfs", "/run/cube-proxy:mode=1777"):
        pass
    names_the_directory("--read-only", "--read-only-tmpfs=false")
    # podman's own tmpfs on /run hides the image's directory.
    names_the_directory("--read-only")


def names_the_directory(*options):
    with container(*options) as one:
        until("its end", lambda: not one.runs())
        assert one.inspect(".State.ExitCode") == "1", one.logs()
        for words in ("server.run_dir", "/run/cube-proxy must be a directory", "mount one there"):
            assert words in one.logs(), one.logs()


def stop_drains():
    with serving() as one:
        streamed = []
        stream = threading.Thread(target=lambda: streamed.append(one.get("/sandbox/web/3000/4")))
        stream.start()
        time.sleep(1)
        assert one.stop() == 0, one.logs()
        stream.join(30)
        assert streamed[0].endswith("end") and streamed[0].count("tick") > 20, streamed


def an_upgrade_is_refused():
    """By process 1, and by what a small process 1 started, which would end with it."""
    for options, words in (([], "is process 1 of its container"), (["--init"], "was started by process 1")):
        with serving(*options) as one:
            asked = podman("exec", one.id, "cube-proxy", "run", "-c", "/etc/cube-proxy/cube-proxy.yaml",
                           "--upgrade", check=False)
            said = asked.stdout + asked.stderr
            assert asked.returncode == 1 and words in said and "Start another container" in said, asked
            assert one.runs() and one.get("/sandbox/web/3000/0") == "end"


SCENARIOS = [demo, a_mounted_configuration, the_health_check_is_kept, another_user, a_read_only_root, stop_drains,
             an_upgrade_is_refused]


def main():
    for name, text in (("cube-proxy.yaml", CONFIG), ("sandboxes.yaml", SANDBOXES)):
        with open(os.path.join(DIRECTORY, name), "w") as file:
            file.write(text)
        os.chmod(os.path.join(DIRECTORY, name), 0o644)
    failed = []
    for scenario in SCENARIOS:
        begun = time.monotonic()
        try:
            scenario()
            print(f"  ok      {time.monotonic() - begun:5.1f} s  {scenario.__name__}", flush=True)
        except Exception:
            failed.append(scenario.__name__)
            print(f"  FAILED  {time.monotonic() - begun:5.1f} s  {scenario.__name__}\n{traceback.format_exc()}",
                  flush=True)
    print(f"{len(failed)} scenarios failed: {failed}" if failed else "all scenarios passed")
    sys.exit(1 if failed else 0)


main()
