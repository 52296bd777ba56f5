"""The good clients of a soak: `steady.py HTTP HTTPS SECONDS HOST TOKEN`, with the output of good.py.

They are good.py's, and do what a client may have to do: a request on a connection that was kept, which ends
before a byte of the response, is sent once more on a new one. Nothing else is forgiven.
"""

import asyncio
import sys
import time

import good


class Ended(Exception):
    """A kept connection was closed before the response began."""


class Steady(good.Good):
    async def exchange(self, connection, kept=False):
        reader, writer = connection
        try:
            writer.write(self.request)
            first = await reader.read(1)
        except ConnectionError as error:
            if kept:
                raise Ended from error
            raise
        if kept and not first:
            raise Ended
        head = first + await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise OSError(f"a response that was not expected: {head[:400]!r}")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n") if b": " in line)
        await reader.readexactly(int(fields[b"content-length"]))
        return fields.get(b"connection") != b"close"

    async def ask(self, held):
        """One request by the connection in `held`, which is left there where it may be used again."""
        connection = held.pop() if held else None
        if connection:
            try:
                if await self.exchange(connection, kept=True):
                    held.append(connection)
                    return
            except Ended:
                pass
            else:
                connection[1].close()
                return
            connection[1].close()
        connection = await self.connect(False)
        if await self.exchange(connection):
            held.append(connection)
        else:
            connection[1].close()

    async def stay(self, until):
        held = []
        while (now := time.monotonic()) < until:
            await asyncio.sleep(min(self.random.expovariate(good.RATE / good.CONNECTIONS), until - now))
            if not await self.guarded(self.took, self.ask(held)):
                held.clear()
        for connection in held:
            connection[1].close()


if __name__ == "__main__":
    http, https, seconds, host, token = sys.argv[1:6]
    asyncio.run(Steady(int(http), int(https), float(seconds), host, token).run())
