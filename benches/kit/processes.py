"""Processes of a benchmark: started on the processors they are given, measured, and ended."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TICK = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """Something did not come to be; the message says what."""


def free_port():
    """A port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def target_directory():
    """Where cargo builds."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def until(what, condition, seconds=60.0):
    """Waits for `condition` to be true, and returns what it gave."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = condition()
        if got:
            return got
        time.sleep(0.05)
    raise Failed(f"{what}: not within {seconds:.0f} s")


class Process:
    """One program, with its children, on the processors `cpus` (None: any)."""

    def __init__(self, name, command, directory, cpus=None, environment=None):
        self.name = name
        self.log = Path(directory) / f"{name}.log"
        if cpus is not None:
            command = ["taskset", "-c", ",".join(str(cpu) for cpu in cpus), *command]
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )

    def listening(self, *ports, seconds=60.0):
        """Waits until it listens on all of them."""
        for port in ports:
            until(f"{self.name} to listen on {port}", lambda: self._listens(port), seconds)
        return self

    def _listens(self, port):
        if self.child.poll() is not None:
            end = self.log.read_text(errors="replace")[-2000:]
            raise Failed(f"{self.name} ended with {self.child.returncode}:\n{end}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        except OSError:
            return False

    def pids(self):
        """The process and its descendants."""
        found, look = [], [self.child.pid]
        while look:
            pid = look.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    look.extend(int(child) for child in task.read_text().split())
                except OSError:
                    pass
        return found

    def cpu_seconds(self):
        """Processor time of it and its descendants so far, user and system."""
        total = 0
        for pid in self.pids():
            try:
                # The name, which may hold blanks, ends with the last parenthesis.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += int(fields[11]) + int(fields[12])
        return total / TICK

    def resident_bytes(self):
        """Resident memory of it and its descendants; what they share counts once (Pss)."""
        total = 0
        for pid in self.pids():
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        return total * 1024

    def end(self, number=signal.SIGTERM, seconds=60):
        """Asks it to end, and waits until it has done so by itself."""
        for pid in self.pids():
            os.kill(pid, number)
        if status := self.child.wait(timeout=seconds):
            raise Failed(f"{self.name} ended with {status}")

    def stop(self):
        """Ends it and its descendants, by their ids."""
        pids = self.pids()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            try:
                self.child.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
        self.child.wait()


def end_with_signals():
    """Whoever is ended from outside takes along what it started."""
    def leave(number, _):
        # Once is enough: what is being ended must not be left half-way.
        for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)


class Group:
    """Ends everything that was started in it, however the block is left."""

    def __init__(self):
        self.members = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.members):
            process.stop()

    def start(self, *arguments, **options):
        process = Process(*arguments, **options)
        self.members.append(process)
        return process

    def stop(self, process):
        self.members.remove(process)
        process.stop()
