"""Runs cases: each group's proxy is started once, its cases one after the other in it."""
import importlib
import shutil
import tempfile
import threading
import time
import traceback
from pathlib import Path

from kit import CASES, GROUPS, Context, Mismatch, Runtime, short
from kit.tools import CASE_LIMIT

RUN_LIMIT = 300.0      # seconds the whole run may take; what is left then counts as failed


def load():
    """Registers every configuration and every case."""
    importlib.import_module("configurations")
    for path in sorted((Path(__file__).parent / "cases").glob("[a-z]*.py")):
        importlib.import_module(f"cases.{path.stem}")
    for one in CASES:
        if one.group not in GROUPS:
            raise SystemExit(f"case {one.name}: no group {one.group}")
    return CASES


def lines_of_the_case(error):
    """Where in the cases an exception came from, the innermost place last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if Path(frame.filename).parent.name == "cases"]


def run_case(one, runtime):
    """None when it holds, else what does not."""
    result = ["no result"]
    t = Context(runtime)

    def body():
        try:
            one.func(t)
            result[0] = None
        except Mismatch as error:
            result[0] = str(error)
        except TimeoutError as error:
            where = lines_of_the_case(error)
            result[0] = f"expected a response in time, got none ({where[-1].line if where else 'no line'})"
        except Exception as error:
            where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in lines_of_the_case(error)]
            result[0] = f"expected no exception, got {type(error).__name__}: {short(str(error))} at {where[-1:]}"
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(CASE_LIMIT)
    if thread.is_alive():
        result[0] = f"expected an end within {CASE_LIMIT:.0f} s, got none"
    t.finish()
    return result[0]


class Run:
    """One run of chosen cases against one binary."""

    def __init__(self, binary, directory, times):
        self.binary, self.directory, self.times = str(binary.resolve()), directory, times
        self.begin, self.passed, self.failed = time.monotonic(), 0, 0

    def out_of_time(self):
        return "the run is over its time" if time.monotonic() - self.begin > RUN_LIMIT else None

    def group(self, name, cases):
        """Runs the cases of one group; a proxy that does not start, or ends, fails those that are left."""
        runtime, problem = None, self.out_of_time()
        if not problem:
            try:
                runtime = Runtime(GROUPS[name], self.binary, self.directory / name)
                problem = runtime.problem
            except Exception as error:
                problem = f"group {name} did not start: {error}"
        try:
            for one in cases:
                problem = problem or self.out_of_time()
                self.one(one, runtime, problem)
                problem = problem or (runtime.ended_after(one.name) if runtime else None)
        finally:
            if runtime:
                runtime.stop()

    def one(self, one, runtime, problem):
        started = time.monotonic()
        text = f"expected a running proxy, got: {problem}" if problem else run_case(one, runtime)
        if text is None:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAIL {one.name} [{one.page}]: {text}", flush=True)
        if self.times:
            print(f"     {time.monotonic() - started:6.2f} s {one.name}", flush=True)


def run(cases, binary, keep=None, times=False):
    """(passed, failed). keep: a directory in which configurations and logs stay."""
    directory = Path(keep).resolve() if keep else Path(tempfile.mkdtemp(prefix="cube-conformance-"))
    this = Run(binary, directory, times)
    try:
        for name in dict.fromkeys(one.group for one in cases):
            this.group(name, [one for one in cases if one.group == name])
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return this.passed, this.failed
