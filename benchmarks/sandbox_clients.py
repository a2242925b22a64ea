"""How even the latency of a sandbox is with many clients: p50 and p99 of one-shot snippets, all in one run.

    python -m benchmarks.sandbox_clients [--clients 8] [--requests 40] [--repeats 5] [--docker] [--json FILE]

Every client runs one snippet after another. Latency is from the client's request to its result: the wait for a slot is
in it. Every repeat opens each sandbox anew and measures from its first request on. The repeats of the rows are
interleaved; the figures are medians over the repeats. `waited_for_start` counts the requests that found no warm slot.

Bare processes (`python3 -c pass`) with as many clients show what the machine itself does: with more clients than cores
the scheduler shares the cores out, and other programs on the machine take their part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from forge_env.core.sandbox import ExecStatus, Sandbox
from sandboxes import open_sandbox

CODE = "pass"
Method = Callable[[], Awaitable[Any]]


@dataclass(kw_only=True)
class Row:
    """What the clients measured with one method. Args: settings: of the sandbox; None for bare processes."""

    settings: dict[str, Any] | None
    clients: int
    repeats: list[list[float]] = field(default_factory=list)
    """Seconds of every request, by repeat."""
    opening: list[float] = field(default_factory=list)
    """Seconds from the call to the open sandbox, by repeat."""
    waited_for_start: int = 0


def bare_python() -> str:
    """Return the Python whose `-c pass` is quickest, so that no slow site folder flatters us."""
    candidates = {path for path in ("/usr/bin/python3", getattr(sys, "_base_executable", "")) if os.path.exists(path)}

    def seconds(python: str) -> float:
        begin = time.perf_counter()
        for _ in range(5):
            subprocess.run([python, "-c", CODE], check=True)
        return time.perf_counter() - begin

    return min(sorted(candidates), key=seconds)


def command(*arguments: str) -> Method:
    async def run() -> None:
        process = await asyncio.create_subprocess_exec(*arguments, stdin=asyncio.subprocess.DEVNULL)
        assert await process.wait() == 0, arguments

    return run


def one_shot(sandbox: Sandbox) -> Method:
    async def run() -> None:
        result = await sandbox.run(CODE)
        assert result.status is ExecStatus.OK, result

    return run


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(rows: dict[str, Row], requests: int, repeats: int) -> None:
    python = bare_python()
    for _ in range(repeats):
        for row in rows.values():
            async with AsyncExitStack() as stack:
                run, sandbox = command(python, "-c", CODE), None
                if row.settings is not None:
                    begin = time.perf_counter()
                    sandbox = await stack.enter_async_context(open_sandbox(**row.settings))
                    row.opening.append(time.perf_counter() - begin)
                    run = one_shot(sandbox)
                before = _waited(sandbox)
                row.repeats.append(await _latencies(run, row.clients, requests))
                row.waited_for_start += _waited(sandbox) - before


def _waited(sandbox: Any) -> int:
    stats = getattr(sandbox, "slot_stats", None)
    return stats.waited_for_start if stats is not None else 0


async def _latencies(run: Method, clients: int, requests: int) -> list[float]:
    seconds: list[float] = []

    async def client() -> None:
        for _ in range(requests):
            begin = time.perf_counter()
            await run()
            seconds.append(time.perf_counter() - begin)

    await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


def figures(row: Row) -> dict[str, Any]:
    """Return the medians over the repeats, and the ratio of every repeat."""
    ratios = [quantile(repeat, 0.99) / statistics.median(repeat) for repeat in row.repeats]
    result: dict[str, Any] = {
        "clients": row.clients,
        "requests_of_a_repeat": len(row.repeats[0]),
        "p50_ms": 1000 * statistics.median(map(statistics.median, row.repeats)),
        "p99_ms": 1000 * statistics.median(quantile(repeat, 0.99) for repeat in row.repeats),
        "max_ms": 1000 * max(map(max, row.repeats)),
        "p99_by_p50": statistics.median(ratios),
        "p99_by_p50_of_repeats": ratios,
    }
    if row.settings is not None:
        opening = 1000 * statistics.median(row.opening)
        result |= {"settings": row.settings, "open_ms": opening, "waited_for_start": row.waited_for_start}
    return result


def rows_of(clients: int, *, docker: bool) -> dict[str, Row]:
    rows = {
        "bare python, one client": Row(settings=None, clients=1),
        "bare python": Row(settings=None, clients=clients),
        "namespace, one client": Row(settings={"name": "namespace"}, clients=1),
        "namespace": Row(settings={"name": "namespace"}, clients=clients),
        "namespace, a slot for each client": Row(settings={"name": "namespace", "slots": clients}, clients=clients),
    }
    if docker:
        rows["docker"] = Row(settings={"name": "docker"}, clients=clients)
        rows["docker, a slot for each client"] = Row(settings={"name": "docker", "slots": clients}, clients=clients)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=40, help="of each client, in each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--docker", action="store_true", help="measure the docker backend, too")
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    parser.add_argument("--note", default="", help="what else the machine was doing, for the file")
    options = parser.parse_args()
    load = [os.getloadavg()[0]]
    rows = rows_of(options.clients, docker=options.docker)
    asyncio.run(measure(rows, options.requests, options.repeats))
    load.append(os.getloadavg()[0])
    result = {name: figures(row) for name, row in rows.items()}
    for name, row in result.items():
        waited = row.get("waited_for_start", "-")
        print(
            f"{name:36} p50 {row['p50_ms']:7.1f} ms  p99 {row['p99_ms']:7.1f} ms  p99/p50 {row['p99_by_p50']:5.2f}  "
            f"open {row.get('open_ms', 0.0):6.0f} ms  waited for a start: {waited}"
        )
    if options.json:
        machine = {**describe(), "load_before_and_after": load, "note": options.note}
        options.json.write_text(json.dumps({"machine": machine, "rows": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
