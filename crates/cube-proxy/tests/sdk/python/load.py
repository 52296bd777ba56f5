"""Load that goes on until a file appears. Arguments: sync, that file, the id of a sandbox with envd,
the id of one with an application. Prints how much of each kind was done, and what failed."""

import asyncio
import os
import random
import socket
import sys
import threading
import time

import httpx
from e2b import Sandbox

from steps import run, step

over, envd, application = sys.argv[2:5]
domain = os.environ["E2B_DOMAIN"].split(":")[0]
lookup = socket.getaddrinfo


def this_machine(host, *more, **named):
    """Names of the test's own domain are this machine."""
    name = host.decode() if isinstance(host, bytes) else host
    return lookup("127.0.0.1" if name and name.endswith(domain) else host, *more, **named)


socket.getaddrinfo = this_machine
origin = f"https://49983-{application}.{os.environ['E2B_DOMAIN']}"
BODY = b"\7" * 300_000


def expect(holds, what):
    if not holds:
        raise AssertionError(f"unexpected: {what}")


def check(response, body):
    expect(response.status_code == 200 and response.content == body, response)


def is_over():
    return os.path.exists(over)


def main_kinds():
    sandbox = Sandbox.connect(envd)

    def commands():
        expect(sandbox.commands.run("echo hi").stdout == "hi\n", "the output of a command")

    def pieces():
        output = sandbox.commands.run("count 20 0.05").stdout
        expect(len(output.splitlines()) == 20, "the output of a long command")

    kinds = {"SDK commands.run": commands, "SDK commands.run, in pieces": pieces}
    for name, http2 in (("h2", True), ("h1", False)):
        client = httpx.Client(http2=http2, timeout=30)

        def work(client=client):
            check(client.get(f"{origin}/"), b"small")
            check(client.get(f"{origin}/large"), b"\7" * 200_000)
            check(client.get(f"{origin}/stream"), b"0123456789")
            check(client.post(f"{origin}/upload", content=BODY), b"300000")

        kinds[f"httpx {name}"] = work
    idle = httpx.Client(http2=True, timeout=30)

    def now_and_then():
        time.sleep(random.random() * 6)
        check(idle.get(f"{origin}/large"), b"\7" * 200_000)

    # Its connection is told while the load goes on.
    kinds["httpx h2, now and then"] = now_and_then
    return kinds


async def at_once(count):
    """Four requests at once, then four more, over one connection."""
    async with httpx.AsyncClient(http2=True, timeout=30) as client:
        while not is_over():
            try:
                small, large = client.get(f"{origin}/"), client.get(f"{origin}/large")
                stream, again = client.get(f"{origin}/stream"), client.get(f"{origin}/")
                responses = await asyncio.gather(small, large, stream, again)
                bodies = (b"small", b"\7" * 200_000, b"0123456789", b"small")
                for response, body in zip(responses, bodies):
                    check(response, body)
                count["done"] += 1
            except Exception as error:
                count["failed"].append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.001)


def again_and_again(work, count):
    while not is_over():
        try:
            work()
            count["done"] += 1
        except Exception as error:
            count["failed"].append(f"{type(error).__name__}: {error}")


async def main():
    counts = {}
    threads = []
    for name, work in main_kinds().items():
        counts[name] = {"done": 0, "failed": []}
        threads.append(threading.Thread(target=again_and_again, args=(work, counts[name])))
    for thread in threads:
        thread.start()
    counts["httpx h2, four at once"] = {"done": 0, "failed": []}
    await at_once(counts["httpx h2, four at once"])
    for thread in threads:
        thread.join()
    for name, count in counts.items():

        async def result(count=count):
            return count

        await step(name, result)


run(main)
