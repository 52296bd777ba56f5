"""The good clients beside a flood: `good.py HTTP HTTPS SECONDS HOST TOKEN`.

Some connections that stay and send requests at times of their own, and every tenth of a second a
newcomer: a connection with a TLS handshake and one request. Prints `ready`, then one JSON object: how
many requests, how many failed, what the first failures were, and percentiles of all that succeeded,
those of newcomers with the handshake. Whatever is no 200 within ten seconds is a failure.
"""

import asyncio
import json
import random
import ssl
import sys
import time

CONNECTIONS = 16
# Requests a second on all of them.
RATE = 200
NEWCOMERS = 10
PATIENCE = 10


class Good:
    def __init__(self, http, https, seconds, host, token):
        self.http, self.https, self.seconds = http, https, seconds
        self.request = (f"GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench/1.0\r\n"
                        f"E2b-Traffic-Access-Token: {token}\r\n\r\n").encode()
        self.host = host
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.tls.check_hostname = False
        self.tls.verify_mode = ssl.CERT_NONE
        self.took, self.newcomers, self.failures = [], [], []
        # The same times for every proxy.
        self.random = random.Random(7)

    async def connect(self, tls):
        if tls:
            return await asyncio.open_connection("127.0.0.1", self.https, ssl=self.tls, server_hostname=self.host)
        return await asyncio.open_connection("127.0.0.1", self.http)

    async def exchange(self, connection):
        reader, writer = connection
        writer.write(self.request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise OSError(f"a response that was not expected: {head[:100]!r}")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        await reader.readexactly(int(lengths[0]))

    async def guarded(self, kept, work):
        """Whether it went well; what it took goes to `kept`, what went wrong to the failures."""
        begun = time.monotonic()
        try:
            await asyncio.wait_for(work, PATIENCE)
        except (OSError, ssl.SSLError, asyncio.TimeoutError, asyncio.IncompleteReadError, IndexError) as fault:
            self.failures.append(f"{type(fault).__name__}: {fault}")
            return False
        kept.append(time.monotonic() - begun)
        return True

    async def stay(self, until):
        connection = None
        while (now := time.monotonic()) < until:
            await asyncio.sleep(min(self.random.expovariate(RATE / CONNECTIONS), until - now))
            try:
                if connection is None:
                    connection = await asyncio.wait_for(self.connect(False), PATIENCE)
            except (OSError, asyncio.TimeoutError) as fault:
                self.failures.append(f"connecting: {type(fault).__name__}: {fault}")
                continue
            if not await self.guarded(self.took, self.exchange(connection)):
                connection[1].close()
                connection = None
        if connection:
            connection[1].close()

    async def visit(self):
        connection = await self.connect(True)
        try:
            await self.exchange(connection)
        finally:
            connection[1].close()

    async def arrive(self, until):
        visits = []
        while time.monotonic() < until:
            visits.append(asyncio.create_task(self.guarded(self.newcomers, self.visit())))
            await asyncio.sleep(1 / NEWCOMERS)
        await asyncio.gather(*visits)

    async def run(self):
        print("ready", flush=True)
        until = time.monotonic() + self.seconds
        await asyncio.gather(self.arrive(until), *(self.stay(until) for _ in range(CONNECTIONS)))
        print(json.dumps({
            "count": len(self.took) + len(self.newcomers) + len(self.failures), "failed": len(self.failures),
            "failures": self.failures[:5], **percentiles("", self.took), **percentiles("new_", self.newcomers),
        }))


def percentiles(prefix, took):
    took = sorted(took)
    return {f"{prefix}p{share}": round(took[len(took) * share // 100] * 1e6) if took else None for share in (50, 99)}


if __name__ == "__main__":
    http, https, seconds, host, token = sys.argv[1:6]
    asyncio.run(Good(int(http), int(https), float(seconds), host, token).run())
