"""What answers are taken for. Arguments: sync or async, then <row>:<id>:<step>,<step>..."""

import sys

from steps import connect, run, settle, step


async def main():
    for argument in sys.argv[2:]:
        row, sandbox_id, names = argument.split(":")
        sandbox = await connect(sandbox_id)
        files, commands = sandbox.files, sandbox.commands

        async def output(line, commands=commands):
            return (await settle(commands.run(line, timeout=0))).stdout

        steps = {
            "is_running": lambda: sandbox.is_running(),
            "read": lambda: files.read("/tmp/a"),
            "exists": lambda: files.exists("/tmp/a"),
            "kill": lambda: commands.kill(42),
            "run": lambda: commands.run("echo hi"),
            "long": lambda: commands.run("echo begun; sleep 600", timeout=0),
            "vanish": lambda: commands.run("echo begun; vanish"),
            "count": lambda: output("count 200 0.1"),
            "count_long": lambda: output("count 600 0.1"),
            "quiet": lambda: output("sleep 70; echo awake"),
        }
        for name in names.split(","):

            async def work():
                made = await settle(steps[name]())
                return made if isinstance(made, (bool, str)) else None

            await step(f"{row}/{name}", work)


run(main)
