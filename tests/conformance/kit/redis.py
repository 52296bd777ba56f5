"""A redis-server of our own, and a client for it."""
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

from .tools import free_port, wait_for


REDIS_SERVER = os.environ.get("REDIS_SERVER") or shutil.which("redis-server") or "/usr/bin/redis-server"


class RedisError(Exception):
    pass


class Redis:
    """A redis-server of our own on a free port, and a client for it."""

    def __init__(self, directory):
        self.directory, self.port, self.process, self.sock = directory, free_port(), None, None
        self.lock = threading.Lock()
        try:
            self.start()
        except RuntimeError:             # somebody took the port in between
            self.stop()
            self.port = free_port()
            self.start()

    def start(self):
        log = open(Path(self.directory) / "redis.log", "ab")
        self.process = subprocess.Popen(
            [REDIS_SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", str(self.directory)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        if not wait_for(lambda: self.process.poll() is not None or self._ping(), 10) or self.process.poll() is not None:
            raise RuntimeError("redis-server did not start")

    def _ping(self):
        try:
            return self("PING") == b"PONG"
        except (OSError, RedisError):
            return False

    def stop(self):
        """Ends the server; its data is gone."""
        self._drop()
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(5)

    def pause(self, on):
        """Stops or continues the server process: it hangs, but its port stays open."""
        self.process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def _drop(self):
        if self.sock:
            self.sock.close()
        self.sock = None

    def __call__(self, *words):
        with self.lock:
            if self.sock is None:
                self.sock = socket.create_connection(("127.0.0.1", self.port), 3)
                self.file = self.sock.makefile("rb")
            try:
                raw = [w if isinstance(w, bytes) else str(w).encode() for w in words]
                self.sock.sendall(b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in raw))
                return self._reply()
            except OSError:
                self._drop()
                raise

    def _reply(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("redis closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]

    def commands(self):
        """Number of commands processed so far."""
        return int(re.search(rb"total_commands_processed:(\d+)", self("INFO", "stats")).group(1))
