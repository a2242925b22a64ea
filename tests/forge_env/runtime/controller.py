"""A controller like the trainers', run by the tests as a process of its own: `python controller.py ENDING LOGS`.

Prints a JSON line with the processes of its actors once they are ready, and another when the launcher is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from runtime_actors import Worker

from forge_env.core.errors import UserError
from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.launcher import Launcher, within
from forge_env.utils.run_async import run_async


def children() -> list[int]:
    pids: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        try:
            pids += [int(pid) for pid in (thread / "children").read_text().split()]
        except FileNotFoundError:  # a thread that ended meanwhile
            continue
    return pids


def descriptors() -> dict[str, int]:
    """Open descriptors, by what they are."""
    kinds: dict[str, int] = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            kind = os.readlink(link).split(":[")[-1 if "anon_inode" in os.readlink(link) else 0].strip("]")
        except FileNotFoundError:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


async def run(ending: str, logs: Path) -> None:
    rounds = 4 if ending == "again" else 1
    background = asyncio.create_task(let_end(asyncio.current_task(), logs / "0" / "finishing"))
    for index in range(rounds):
        try:
            await one_run(ending, logs / str(index))
        finally:
            temp = [path.name for path in Path(os.environ["TMPDIR"]).iterdir()]
            tell(children=children(), descriptors=descriptors(), temp=temp)
    background.cancel()


async def one_run(ending: str, logs: Path) -> None:
    async with Launcher(logs) as launcher:
        finishing = str(logs / "finishing") if ending == "slow" else ""
        worker = launcher.spawn("worker", Worker, finishing=finishing)
        launcher.spawn("other", Worker)
        launcher.processes("bare", ForgeActor)
        if ending == "early":  # no actor has answered yet
            while len(children()) < 3:
                await asyncio.sleep(0.001)
            tell(pids=children())
            await asyncio.Event().wait()
        await asyncio.gather(*(launcher.start(name) for name in ("worker", "other", "bare")))
        assert await within(60.0, worker.add.call_one(1, 2), "the worker") == 3
        tell(pids=children())
        if ending == "error":
            raise UserError("a mistake inside")
        if ending in ("wait", "slow"):
            await launcher.guard(within(600.0, worker.hold.call_one(), "the worker"))


async def let_end(main: asyncio.Task[Any] | None, finishing: Path) -> None:
    """Let the worker end when a second signal has cancelled the main task, and this has had its effect."""
    assert main is not None
    while not finishing.exists() or main.cancelling() < 2:
        await asyncio.sleep(0.01)
    for _ in range(10):
        await asyncio.sleep(0)
    finishing.unlink()


def main(ending: str, logs: Path) -> int:
    try:
        run_async(run(ending, logs), insists=False)
    except KeyboardInterrupt:
        return 130
    except UserError:
        return 2
    return 0


if __name__ == "__main__" and sys.argv[1] != "import":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
