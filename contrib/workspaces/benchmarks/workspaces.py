"""What a workspace costs: start, commands, shell, fork, memory; beside it `docker run` and `docker exec`, in one run.

    python -m contrib.workspaces.benchmarks.workspaces [--rounds 40] [--image FOLDER] [--note TEXT] [--json FILE]
    .ci/docker-engine python -m contrib.workspaces.benchmarks.workspaces     # with a Docker engine to compare with

    ready      from the call to a workspace that takes its first command, one at a time; and `docker run IMAGE true`
    close      until every process and file of it is gone
    exec       one `/bin/true` in an open workspace; and `docker exec`
    docker workspace ...  ready, close, exec and shell of the backend "docker"
    shell      one `true` in an open shell
    64         from the first call until 64 workspaces are ready, all asked for at once
    memory     of each of those 64 while idle: what its processes do not share, and what its control group counts
    fork       snapshot, and a second workspace from it, after 2,000 files with 50 MB were written
    copy       the same files copied on a tmpfs, for comparison

The image is a folder with an unpacked root file system, by default one of the programs of this machine. Rounds of all
rows are interleaved. Ratios are what to compare: all rows come from the same minutes of the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.open import open_workspaces
from contrib.workspaces.tests.made_images import make_small_image

AT_ONCE, FILES, CHANGED_BYTES = 64, 2000, 50 * 10**6
TAG = "forge-env-benchmark:local"
Times = dict[str, list[float]]


async def settle() -> None:
    """Wait, so that what the kernel and servers do after one row is not part of the next one."""
    await asyncio.sleep(0.1)


async def timed(times: Times, name: str, work: Awaitable[Any]) -> Any:
    begin = time.perf_counter()
    result = await work
    times.setdefault(name, []).append(time.perf_counter() - begin)
    return result


async def command(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0, arguments


async def latencies(
    workspaces: Workspaces, in_docker: Workspaces | None, image: UnpackedImage, rounds: int, container: str
) -> Times:
    times: Times = {}
    backends = {"": workspaces} | ({"docker workspace ": in_docker} if in_docker is not None else {})
    staying = {name: await backend.open(image) for name, backend in backends.items()}
    shells = {name: await workspace.open_shell() for name, workspace in staying.items()}
    for _ in range(rounds):
        for name, backend in backends.items():
            workspace = await timed(times, f"{name}ready", backend.open(image))
            await timed(times, f"{name}close", workspace.close())
            await settle()
            for _ in range(5):
                assert (await timed(times, f"{name}exec", staying[name].exec(["/bin/true"]))).ok
            for _ in range(20):
                assert (await timed(times, f"{name}shell", shells[name].run("true"))).ok
        if container:
            await timed(times, "docker run", command("docker", "run", "--rm", "--network=none", TAG, "/bin/true"))
            await settle()
            await timed(times, "docker exec", command("docker", "exec", container, "/bin/true"))
        await settle()
    for workspace in staying.values():
        await workspace.close()
    return times


async def many(workspaces: Workspaces, image: UnpackedImage, repeats: int) -> dict[str, float]:
    seconds, private, counted = [], [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        opened = await asyncio.gather(*(workspaces.open(image) for _ in range(AT_ONCE)))
        seconds.append(time.perf_counter() - begin)
        private += _private_bytes(workspaces._server.pid)  # type: ignore[attr-defined]
        counted += _counted_bytes()
        await asyncio.gather(*(workspace.close() for workspace in opened))
    return {
        "start_64_s": statistics.median(seconds),
        "start_64_s_least": min(seconds),
        "private_mib_each": statistics.median(private) / 2**20,
        "control_group_mib_each": statistics.median(counted) / 2**20 if counted else float("nan"),
    }


def _private_bytes(server: int) -> list[float]:
    sizes = []
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        with suppress(OSError):  # a helper of the server has ended meanwhile
            rows = [line.split() for line in Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()]
            sizes.append(sum(1024.0 * int(row[1]) for row in rows if row[0].startswith("Private_")))
    return sizes


def _counted_bytes() -> list[float]:
    names = ("memory.usage_in_bytes", "memory.current")
    files = [path for name in names for path in Path("/sys/fs/cgroup").rglob(f"forge_env-*-{os.getpid()}-*/*/{name}")]
    return [size for size in (float(path.read_text()) for path in files) if size > 0]


async def forks(workspaces: Workspaces, image: UnpackedImage, rounds: int) -> Times:
    times: Times = {}
    size = CHANGED_BYTES // FILES
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        source = Path(folder, "source")
        for number in range(FILES):
            path = source / f"{number // 100}/{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(size))
        for number in range(rounds):
            workspace = await workspaces.open(image)
            await workspace.put_tree(source, "/changed")

            async def fork(workspace: Workspace = workspace) -> Workspace:
                async with closing(await workspace.snapshot()) as snapshot:
                    return await workspaces.open(snapshot)

            forked = await timed(times, "fork", fork())
            assert len(await forked.get("/changed/19/1999")) == size
            await forked.close()
            await workspace.close()
            begin = time.perf_counter()
            shutil.copytree(source, Path(folder, str(number)))
            times.setdefault("copy", []).append(time.perf_counter() - begin)
            shutil.rmtree(Path(folder, str(number)))
    return times


@asynccontextmanager
async def closing(thing: Any) -> AsyncIterator[Any]:
    try:
        yield thing
    finally:
        await thing.close()


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50_ms": 1000 * statistics.median(ordered), "p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))]}


@asynccontextmanager
async def docker_container(image: UnpackedImage) -> AsyncIterator[str]:
    """Import the image into a Docker engine, and run a container of it; "" where no engine answers."""
    ping = ["docker", "info"]
    if shutil.which("docker") is None or subprocess.run(ping, capture_output=True, check=False).returncode:
        yield ""
        return
    with subprocess.Popen(["tar", "-C", str(image.root), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["docker", "import", "-", TAG], stdin=tar.stdout, check=True, capture_output=True)
    start = ["docker", "run", "-d", "--rm", "--network=none", TAG, "/bin/sleep", "3600"]
    container = subprocess.run(start, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield container
    finally:
        subprocess.run(["docker", "rm", "-f", container], check=True, capture_output=True)


async def measure(image: UnpackedImage, rounds: int) -> dict[str, Any]:
    result: dict[str, Any] = {"image_mb": sum(path.lstat().st_size for path in image.root.rglob("*")) / 1e6}
    async with docker_container(image) as container, AsyncExitStack() as opened:
        in_docker = await opened.enter_async_context(open_workspaces("docker")) if container else None
        begin = time.perf_counter()
        async with open_workspaces("namespace") as workspaces:
            result["open_backend_ms"] = 1000 * (time.perf_counter() - begin)
            times = await latencies(workspaces, in_docker, image, rounds, container)
            times |= await forks(workspaces, image, max(3, rounds // 4))
            if in_docker is not None:
                slow = await forks(in_docker, image, 3)
                times["docker workspace fork"] = slow["fork"]
            result["rows"] = {name: {"count": len(row)} | _quantiles(row) for name, row in times.items()}
            result |= await many(workspaces, image, 5)
    rows = result["rows"]
    for ours, theirs in (("ready", "docker run"), ("exec", "docker exec")):
        if theirs in rows:
            result[f"{theirs} over {ours}"] = rows[theirs]["p50_ms"] / rows[ours]["p50_ms"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--image", type=Path, help="folder with an unpacked root file system")
    parser.add_argument("--note", default="", help="kept with the figures: what else ran on the machine")
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = (
            UnpackedImage(root=options.image.resolve()) if options.image else make_small_image(Path(folder, "image"))
        )
        load = os.getloadavg()
        result = asyncio.run(measure(image, options.rounds))
    machine = {**describe(), "load_before": load, "load_after": os.getloadavg(), "note": options.note}
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "result": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
