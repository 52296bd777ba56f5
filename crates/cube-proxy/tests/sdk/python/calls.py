"""Every call that an application makes of its sandbox. Arguments: sync or async, the id."""

import asyncio
import random
import sys
from concurrent.futures import ThreadPoolExecutor

from steps import connect, is_async, run, settle, step

LARGE = 50_000_000
sandbox_id = sys.argv[2]


class Output:
    """What a command in the background writes, as it comes."""

    def __init__(self):
        self.queue = asyncio.Queue()
        self.options = {"on_stdout": self.queue.put_nowait} if is_async else {}
        self.events = None

    async def next(self, handle):
        if is_async:
            return await asyncio.wait_for(self.queue.get(), 10)
        self.events = self.events or iter(handle)
        return next(self.events)[0]


async def main():
    sandbox = await connect(sandbox_id)
    files, commands = sandbox.files, sandbox.commands

    async def running():
        return [sandbox.sandbox_id == sandbox_id, await settle(sandbox.is_running())]

    async def write():
        written = await settle(files.write("/tmp/a b.txt", "hello"))
        return [written.name, written.type.value, written.path]

    async def read():
        text = await settle(files.read("/tmp/a b.txt"))
        content = await settle(files.read("/tmp/a b.txt", format="bytes"))
        return [text, bytes(content).decode()]

    async def missing():
        return await settle(files.read("/tmp/none"))

    async def stream():
        sent = random.Random(1).randbytes(1_000_000)
        pieces = (sent[at : at + 10_000] for at in range(0, len(sent), 10_000))

        async def later():
            for piece in pieces:
                yield piece

        await settle(files.write("/tmp/stream", later() if is_async else pieces))
        got = b""
        reader = await settle(files.read("/tmp/stream", format="stream"))
        if is_async:
            async for piece in reader:
                got += piece
        else:
            for piece in reader:
                got += piece
        return got == sent

    async def gzip():
        sent = b"squeeze me " * 20_000
        await settle(files.write("/tmp/gzip", sent, gzip=True))
        packed = await settle(files.read("/tmp/gzip", format="bytes", gzip=True))
        plain = await settle(files.read("/tmp/gzip", format="bytes"))
        return [packed == sent, plain == sent]

    async def empty():
        await settle(files.write("/tmp/empty", ""))
        content = await settle(files.read("/tmp/empty", format="bytes"))
        return [await settle(files.read("/tmp/empty")), len(content)]

    async def large():
        sent = random.Random(2).randbytes(LARGE)
        await settle(files.write("/tmp/large", sent, request_timeout=300))
        got = await settle(files.read("/tmp/large", format="bytes", request_timeout=300))
        return [len(got), got == sent]

    async def many():
        entries = [{"path": f"/tmp/many/{n}", "data": f"{n}"} for n in range(3)]
        return [one.path for one in await settle(files.write_files(entries))]

    async def listed():
        return [[one.name, one.type.value] for one in await settle(files.list("/tmp/many"))]

    async def exists():
        return [await settle(files.exists(path)) for path in ("/tmp/a b.txt", "/tmp/none")]

    async def info():
        entry = await settle(files.get_info("/tmp/a b.txt"))
        return [entry.name, entry.type.value, entry.size]

    async def directories():
        made = [await settle(files.make_dir("/tmp/new")) for _ in range(2)]
        moved = await settle(files.rename("/tmp/new", "/tmp/newer"))
        await settle(files.remove("/tmp/newer"))
        return [made, moved.path, await settle(files.exists("/tmp/newer"))]

    async def foreground():
        result = await settle(commands.run("echo out; echo err >&2"))
        return [result.exit_code, result.stdout, result.stderr]

    async def failing():
        return await settle(commands.run("echo gone; exit 3"))

    async def callback():
        lines = []
        await settle(commands.run("count 3 0.05", on_stdout=lines.append))
        return lines

    async def much():
        result = await settle(commands.run("spew 4096"))
        return len(result.stdout)

    async def background():
        handle = await settle(commands.run("echo early; sleep 0.3; echo late", background=True))
        listed = [one.pid for one in await settle(commands.list())]
        result = await settle(handle.wait())
        return [handle.pid in listed, result.stdout]

    async def stdin():
        output = Output()
        handle = await settle(commands.run("cat", background=True, stdin=True, **output.options))
        echoed = []
        for word in ("one", "two"):
            await settle(commands.send_stdin(handle.pid, word))
            echoed.append(await output.next(handle))
        await settle(commands.close_stdin(handle.pid))
        result = await settle(handle.wait())
        return [echoed, result.stdout]

    async def stream_input():
        handle = await settle(commands.run("cat", background=True, stdin=True))
        if is_async:
            async with commands.stream_input(handle.pid) as stdin:
                for word in ("a", "b", "c"):
                    await stdin.send(word)
        else:
            commands.stream_input(handle.pid, ["a", "b", "c"])
        await settle(commands.close_stdin(handle.pid))
        return (await settle(handle.wait())).stdout

    async def attach():
        first = await settle(commands.run("cat", background=True, stdin=True))
        second = await settle(commands.connect(first.pid))
        await settle(commands.send_stdin(first.pid, "both"))
        await settle(commands.close_stdin(first.pid))
        return [(await settle(one.wait())).stdout for one in (second, first)]

    async def kill():
        handle = await settle(commands.run("sleep 600", background=True))
        killed = [await settle(handle.kill())]
        try:
            await settle(handle.wait())
        except Exception as error:
            killed.append([type(error).__name__, error.exit_code])
        return killed + [await settle(commands.kill(handle.pid))]

    async def timeout():
        return await settle(commands.run("sleep 600", timeout=1))

    async def parallel():
        lines = [f"echo {n}; sleep 0.5; echo done {n}" for n in range(20)]
        if is_async:
            results = await asyncio.gather(*(commands.run(line) for line in lines))
        else:
            with ThreadPoolExecutor(20) as pool:
                results = list(pool.map(commands.run, lines))
        return [result.stdout == f"{n}\ndone {n}\n" for n, result in enumerate(results)].count(True)

    async def watch():
        seen = asyncio.Queue()
        if is_async:
            handle = await files.watch_dir("/tmp/many", on_event=seen.put_nowait)
        else:
            handle = files.watch_dir("/tmp/many")
        await settle(files.write("/tmp/many/new", "x"))
        events = handle.get_new_events() if not is_async else [await asyncio.wait_for(seen.get(), 10)]
        await settle(handle.stop())
        return [events[0].name, events[0].type.value]

    for work in (
        running, write, read, missing, stream, gzip, empty, large, many, listed, exists, info,
        directories, foreground, failing, callback, much, background, stdin, stream_input, attach,
        kill, timeout, parallel, watch,
    ):  # fmt: skip
        await step(work.__name__, work)


run(main)
