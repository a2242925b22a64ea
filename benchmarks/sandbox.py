"""What isolation costs: every figure in one run, interleaved, as medians and as ratios to a bare `python3 -c pass`.

    python -m benchmarks.sandbox [--rounds 40] [--json FILE]

    one-shot     latency and CPU time of one snippet in a fresh state, one at a time
    throughput   snippets per second with four clients
    cells        latency of a cell in a session
    overshoot    how long after its wall-clock limit code that ignores signals or holds the interpreter lock still lives
    output       growth of this process under a flood, and whether 200 kB of honest output come back whole
    sessions     memory of 512 open sessions

Beside the backends of this repository run what others use: bubblewrap for each call, `docker run` and `docker exec` for
each call by the Docker SDK, a forked process (HumanEval's way), `exec` in this process. What is not installed is left
out, and named. Ratios are what to compare: all rows of a table come from the same minutes of the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import ExecRequest, ExecStatus, Limits, Sandbox
from sandboxes import open_sandbox

BATCH, CLIENTS, SESSIONS = 10, 4, 512
THROUGHPUT_S = 3.0
CODE = "pass"
STUBBORN = {
    "ignores_signals": "import signal, time\nfor n in (1, 2, 14, 15, 24): signal.signal(n, signal.SIG_IGN)\n"
    "while True:\n    try: time.sleep(9)\n    except BaseException: pass",
    "holds_the_lock": "10 ** 10 ** 8",
}
Method = Callable[[], Awaitable[Any]]


@dataclass(kw_only=True)
class Row:
    """What one method took."""

    run: Method
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """For each snippet, one entry for each batch; processes that are not below this one (an engine's) are missing."""
    rates: list[float] = field(default_factory=list)


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


def bubblewrap(python: str) -> Method:
    arguments = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for folder in ("/usr", "/bin", "/lib", "/lib64", os.path.dirname(os.path.dirname(os.path.realpath(python)))):
        if os.path.exists(folder):
            arguments += ["--ro-bind", folder, folder]
    return command(*arguments, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", python, "-I", "-c", CODE)


def one_shot(sandbox: Sandbox) -> Method:
    async def run() -> None:
        result = await sandbox.run(CODE)
        assert result.status is ExecStatus.OK, result

    return run


async def forked() -> None:
    """HumanEval's way: no isolation. In a thread, so that other clients go on."""

    def run() -> None:
        process = multiprocessing.get_context("fork").Process(target=exec, args=(CODE, {}))
        process.start()
        process.join()

    await asyncio.to_thread(run)


async def in_process() -> None:
    """What in-process executors do: no isolation, no limit, no end."""
    with redirect_stdout(io.StringIO()):
        exec(compile(CODE, "<snippet>", "exec"), {})


def docker_comparators(image: str) -> dict[str, Callable[[], Any]]:
    """Return `docker run` and `docker exec` through the SDK, for the image that the docker backend uses."""
    import docker

    client = docker.from_env()
    held = client.containers.run(image, ["sleep", "3600"], detach=True, network_mode="none", entrypoint="")

    def run() -> None:
        client.containers.run(image, ["python3", "-c", CODE], remove=True, network_mode="none", entrypoint="")

    def execute() -> None:
        assert held.exec_run(["python3", "-c", CODE]).exit_code == 0

    return {"docker containers.run": run, "docker exec_run": execute, "": lambda: held.remove(force=True)}


async def methods(stack: AsyncExitStack, python: str, missing: list[str]) -> dict[str, Row]:
    """Open what there is; `missing` gets a sentence for each thing that there is not."""
    methods: dict[str, Method] = {"bare python": command(python, "-c", CODE)}
    methods["namespace"] = one_shot(await stack.enter_async_context(open_sandbox("namespace", slots=CLIENTS)))
    without = await stack.enter_async_context(open_sandbox("namespace", slots=CLIENTS, cgroups=False))
    methods["namespace, no control group"] = one_shot(without)
    try:
        docker = await stack.enter_async_context(open_sandbox("docker", slots=CLIENTS))
        methods["docker"] = one_shot(docker)
        methods |= await _docker_methods(stack)
    except SandboxUnavailable as error:
        missing.append(str(error))
    if shutil.which("bwrap"):
        methods["bubblewrap for each call"] = bubblewrap(python)
    else:
        missing.append("bubblewrap is not installed")
    methods["forked process (no isolation)"] = forked
    methods["exec in this process (no isolation)"] = in_process
    return {name: Row(run=run) for name, run in methods.items()}


async def _docker_methods(stack: AsyncExitStack) -> dict[str, Method]:
    from sandboxes.docker.engine import Engine
    from sandboxes.docker.image import ensure_image

    engine = await Engine.connect()
    try:
        image = await ensure_image(engine, None)
    finally:
        engine.close()
    calls = docker_comparators(image)
    stack.callback(calls.pop(""))
    return {name: lambda call=call: asyncio.to_thread(call) for name, call in calls.items()}  # type: ignore[misc]


async def one_at_a_time(rows: dict[str, Row], rounds: int) -> None:
    for row in rows.values():
        for _ in range(2 * CLIENTS):  # so that every place is warm
            await row.run()
    for _ in range(rounds):
        for row in rows.values():
            cpu_s = tree_cpu_s()
            for _ in range(BATCH):
                begin = time.perf_counter()
                await row.run()
                row.seconds.append(time.perf_counter() - begin)
            row.cpu_s.append((tree_cpu_s() - cpu_s) / BATCH)


async def many_clients(rows: dict[str, Row], repeats: int, seconds: float) -> None:
    async def client(row: Row, end: float) -> int:
        done = 0
        while time.perf_counter() < end:
            await row.run()
            done += 1
        return done

    for _ in range(repeats):
        for row in rows.values():
            begin = time.perf_counter()
            done = await asyncio.gather(*(client(row, begin + seconds) for _ in range(CLIENTS)))
            row.rates.append(sum(done) / (time.perf_counter() - begin))


_looking_s = 0.0


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and all below it, with those that were waited for, without our looking."""
    global _looking_s
    looked_s, begin = _looking_s, time.process_time()
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(words[1]), []).append(int(entry))
        ticks[int(entry)] = sum(map(int, words[11:15]))
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += ticks.get(pid, 0)
        todo += children.get(pid, [])
    _looking_s += time.process_time() - begin
    return total / os.sysconf("SC_CLK_TCK") - looked_s


async def cells(sandbox: Sandbox, count: int) -> list[float]:
    session = await sandbox.open_session()
    try:
        await session.run("x = 0")
        seconds = []
        for _ in range(count):
            begin = time.perf_counter()
            result = await session.run("x += 1")
            seconds.append(time.perf_counter() - begin)
            assert result.status is ExecStatus.OK, result
        return seconds
    finally:
        await session.close()


async def overshoot(sandbox: Sandbox, repeats: int) -> dict[str, float]:
    worst = {}
    for name, code in STUBBORN.items():
        late = []
        for _ in range(repeats):
            begin = time.perf_counter()
            result = await sandbox.run(ExecRequest(code=code, limits=Limits(wall_s=0.5, cpu_s=10)))
            late.append(1000 * (time.perf_counter() - begin - 0.5))
            assert result.status is ExecStatus.TIMEOUT, result
        worst[f"{name}_ms"] = max(late)
    return worst


async def output(sandbox: Sandbox) -> dict[str, Any]:
    limits = Limits(output_bytes=300_000, wall_s=20, cpu_s=20)
    honest = await sandbox.run(ExecRequest(code="print('x' * 200_000)", limits=limits))
    before = resident()
    flood = await sandbox.run(ExecRequest(code="while True: print('x' * 10**6)", limits=limits))
    assert flood.status is ExecStatus.OUTPUT_LIMIT, flood
    return {
        "honest_200_kB_whole": honest.stdout == "x" * 200_000 + "\n",
        "flood_growth_in_caps": max(0, resident() - before) / limits.output_bytes,
    }


async def open_sessions(count: int) -> dict[str, float]:
    """Memory of many open sessions, each of which has run a cell: proportional shares, and what the machine lost."""
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(open_sandbox("namespace", max_sessions=count))
        before = available()
        sessions = []
        for _ in range(count // CLIENTS):
            opened = await asyncio.gather(*(sandbox.open_session() for _ in range(CLIENTS)))
            for session in opened:
                stack.push_async_callback(session.close)
                assert (await session.run("x = 1")).status is ExecStatus.OK
            sessions += opened
        return {
            "sessions": len(sessions),
            "proportional_GB": shares() / 1e9,
            "available_lost_GB": (before - available()) / 1e9,
        }


def shares() -> int:
    """Return the proportional memory of all processes below this one, in bytes."""
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below, total = {os.getpid()}, 0
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        for pid in below:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def table(rows: dict[str, Row]) -> dict[str, dict[str, float]]:
    """Return milliseconds and ratios to the bare interpreter."""
    bare = rows["bare python"]
    figures = {}
    for name, row in rows.items():
        p50, cpu_s = statistics.median(row.seconds), statistics.mean(row.cpu_s)
        figures[name] = {
            "p50_ms": 1000 * p50,
            "p99_ms": 1000 * quantile(row.seconds, 0.99),
            "p99_by_p50": quantile(row.seconds, 0.99) / p50,
            "p50_ratio": p50 / statistics.median(bare.seconds),
            "cpu_ms": 1000 * cpu_s,
            "cpu_ratio": cpu_s / statistics.mean(bare.cpu_s),
            "per_second_4_clients": statistics.median(row.rates),
            "throughput_ratio": statistics.median(row.rates) / statistics.median(bare.rates),
        }
    return figures


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(rounds: int, sessions: int) -> dict[str, Any]:
    missing: list[str] = []
    python = bare_python()
    async with AsyncExitStack() as stack:
        rows = await methods(stack, python, missing)
        await one_at_a_time(rows, rounds)
        await many_clients(rows, repeats=max(1, rounds // 10), seconds=THROUGHPUT_S if rounds >= 10 else 0.5)
    figures: dict[str, Any] = {"bare_python": python, "rows": table(rows), "missing": missing}
    for backend in ("namespace", "docker"):
        try:
            async with open_sandbox(backend) as sandbox:
                seconds = await cells(sandbox, 20 * rounds)
                figures[backend] = {
                    "capabilities": {name: getattr(sandbox.capabilities, name) for name in _CAPABILITIES},
                    "cell_p50_ms": 1000 * statistics.median(seconds),
                    "cell_p99_ms": 1000 * quantile(seconds, 0.99),
                    "overshoot": await overshoot(sandbox, max(1, rounds // 8)),
                    "output": await output(sandbox),
                }
        except SandboxUnavailable:
            continue
    figures["open_sessions"] = await open_sessions(sessions)
    return figures


_CAPABILITIES = ("backend", "pid_namespace", "seccomp", "uid_drop", "memory_limit", "process_limit", "cpu_share")


def show(figures: dict[str, Any]) -> None:
    columns = list(next(iter(figures["rows"].values())))
    print(f"{'':38}" + "".join(f"{column:>22}" for column in columns))
    for name, row in figures["rows"].items():
        print(f"{name:38}" + "".join(f"{row[column]:22.3f}" for column in columns))
    for name in ("namespace", "docker", "open_sessions"):
        if name in figures:
            print(f"{name}: {json.dumps(figures[name])}")
    for lack in figures["missing"]:
        print(f"left out: {lack}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help=f"of {BATCH} snippets for each method")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.rounds, options.sessions))
    show(figures)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
