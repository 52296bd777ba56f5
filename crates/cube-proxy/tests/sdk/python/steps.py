"""Runs steps and prints what became of each as one line of JSON."""

import asyncio
import inspect
import json
import sys

from e2b import AsyncSandbox, Sandbox

flavour = sys.argv[1]
is_async = flavour == "async"
done = {}


async def settle(value):
    """What a call of either flavour gives."""
    return await value if inspect.isawaitable(value) else value


async def step(name, work):
    """Runs one step; an exception is its result, not the end."""
    try:
        done[name] = {"ok": await work()}
    except Exception as error:
        done[name] = {"error": type(error).__name__, "message": str(error)}


async def connect(sandbox_id):
    """The sandbox, as an application gets it."""
    return await settle((AsyncSandbox if is_async else Sandbox).connect(sandbox_id))


def run(main):
    """Runs `main` and prints the results."""
    asyncio.run(main())
    print(json.dumps(done))
