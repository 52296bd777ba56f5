"""Black-box conformance cases: python3 tests/conformance --bin BINARY. README.md says more."""
import argparse
import os
import signal
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import runner
from kit.redis import REDIS_SERVER

DEFAULT_BINARIES = ("target/release/cube-proxy", "target/debug/cube-proxy")


def find_binary(given):
    candidates = (given,) if given else DEFAULT_BINARIES
    return next((Path(name) for name in candidates if os.access(name, os.X_OK) and os.path.isfile(name)), None)


def main():
    parser = argparse.ArgumentParser(prog="conformance", description="Black-box conformance cases for Cube Proxy.")
    parser.add_argument("--bin", metavar="BINARY", help=f"the proxy (default {', else '.join(DEFAULT_BINARIES)})")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT",
                        help="cases whose name contains TEXT; may be given several times")
    parser.add_argument("--list", action="store_true", help="name each case and its page of the contract, run nothing")
    parser.add_argument("--keep-logs", metavar="DIR", help="keep configurations and logs of every process there")
    parser.add_argument("--times", action="store_true", help="say what each case took")
    options = parser.parse_args()
    chosen = [one for one in runner.load() if not options.only or any(text in one.name for text in options.only)]
    if options.list:
        for one in chosen:
            print(f"{one.name} [{one.page}]")
        return 0
    binary = find_binary(options.bin)
    if binary is None:
        print(f"conformance: no binary at {options.bin or ' or '.join(DEFAULT_BINARIES)}", file=sys.stderr)
        return 2
    if not os.path.isfile(REDIS_SERVER):
        print(f"conformance: no redis-server at {REDIS_SERVER}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))       # ends what was started as well
    passed, failed = runner.run(chosen, binary, options.keep_logs, options.times)
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
