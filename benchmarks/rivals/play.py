"""Plays the episodes and the code of one library, in that library's interpreter; it needs no package of its own.

    python -m benchmarks.rivals.play NAME rollouts|code

The last line that it prints is JSON. `NAME.py` beside this file has the environment as a user of the library writes it:
`WAYS` to play it, with the episodes at once, and `CODE`, what runs the model's code.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.rivals.task import TURNS

Play = Callable[[int], Awaitable[None]]
"""Plays so many episodes at once, and checks their rewards."""
Run = Callable[[str], Awaitable[str]]
"""Runs code, and returns what it printed."""
MODEL_SECONDS, PLAYS, MOST_SECONDS = 0.05, 5, 20
CLIENTS, RUNS = 8, 160
SNIPPET = "print(6 * 7)"


def threads(function: Callable[[str], str]) -> Callable[[], AbstractAsyncContextManager[Run]]:
    """A blocking way to run code, with a thread for each client."""

    @asynccontextmanager
    async def open_way() -> AsyncIterator[Run]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            yield lambda code: asyncio.get_running_loop().run_in_executor(pool, function, code)

    return open_way


async def rollouts(ways: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a batch with a model of 50 ms, and steps/s with one that answers at once; medians of the plays.

    Of the latter also the CPU time of this process for a step, which other programs of the machine disturb less.
    """
    figures: dict[str, Any] = {}
    for way, (open_way, episodes) in ways.items():
        seconds: dict[float, list[float]] = {MODEL_SECONDS: [], 0.0: []}
        cpu: list[float] = []
        for model, played in seconds.items():
            async with open_way(model) as play:
                await play(min(32, episodes))  # starts threads, connections and servers
                end = time.perf_counter() + MOST_SECONDS
                while len(played) < PLAYS and (not played or time.perf_counter() < end):
                    begin, used = time.perf_counter(), time.process_time()
                    await play(episodes)
                    played.append(time.perf_counter() - begin)
                    cpu.append((time.process_time() - used) * 1e6 / TURNS / episodes)
        batch, free = (statistics.median(played) for played in seconds.values())
        figures[way] = {
            "episodes": episodes,
            "batch_seconds": batch,
            "batches": seconds[MODEL_SECONDS],
            "steps_per_second": TURNS * episodes / free,
            "cpu_us_per_step": statistics.median(cpu[-len(seconds[0.0]) :]),
            "plays": seconds[0.0],
        }
    return figures


async def code(ways: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a run, one after another; runs/s of eight clients; and what code that is run can reach."""
    figures: dict[str, Any] = {}
    for way, open_way in ways.items():
        async with open_way() as run:
            assert "42" in await run(SNIPPET), way
            alone: list[float] = []
            for _ in range(RUNS // 4):
                begin = time.perf_counter()
                await run(SNIPPET)
                alone.append(time.perf_counter() - begin)
            numbers = iter(range(RUNS))

            async def client(run: Run = run, numbers: Any = numbers) -> None:
                for _ in numbers:
                    await run(SNIPPET)

            begin = time.perf_counter()
            await asyncio.gather(*(client() for _ in range(CLIENTS)))
            rate = RUNS / (time.perf_counter() - begin)
            figures[way] = {"p50_ms": 1000 * statistics.median(alone), "runs_per_second": rate, **await reach(run)}
    return figures


async def reach(run: Run) -> dict[str, bool]:
    """Whether code reads a file of this user, connects to a port of this machine, and leaves a process behind.

    The names of modules are spelled so that a search of the text for them finds none: no isolation is one.
    """
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder, socket.create_server(("127.0.0.1", 0)) as server:
        secret, left = Path(folder, "secret"), Path(folder, "left")
        secret.write_text("rea" + "ched")
        port = server.getsockname()[1]
        stay = f"import time; time.sleep(1); open({str(left)!r}, 'w').close()"
        codes = {
            "reads_files": f"print(open({str(secret)!r}).read())",
            "reaches_network": f"__import__('soc' + 'ket').create_connection(('127.0.0.1', {port}), 2); "
            "print('rea' 'ched')",
            "leaves_processes": "import sys; popen = getattr(__import__('sub' + 'process'), 'Popen'); "
            f"popen([sys.executable, '-c', {stay!r}], start_new_session=True, stdout=-3, stderr=-3)",
        }
        said = {}
        for name, text in codes.items():
            try:
                said[name] = "reached" in await run(text)
            except Exception as error:  # a sandbox that refuses says so in a way of its own
                print(f"{name}: {error!r}", file=sys.stderr)
                said[name] = False
        await asyncio.sleep(2)
        return said | {"leaves_processes": left.exists()}


def main() -> int:
    name, what = sys.argv[1:3]
    rival = importlib.import_module(f"benchmarks.rivals.{name}")
    figures = asyncio.run(rollouts(rival.WAYS) if what == "rollouts" else code(getattr(rival, "CODE", {})))
    version = importlib.metadata.version(rival.PACKAGE) if hasattr(rival, "PACKAGE") else ""
    facts = {"version": version, "python": sys.version.split()[0], "load": os.getloadavg()[0]}
    print(json.dumps({**facts, "ways": figures}))
    return 0


if __name__ == "__main__":
    if "--help" in sys.argv:
        print(__doc__)
    else:
        sys.exit(main())
