"""Pull and unpack an image of 300 MB from a registry on this machine: `forge-env image pull` against `docker pull`.

    .ci/docker-engine .venv/bin/python -m contrib.workspaces.benchmarks.images [--rounds 5] [--first] [--json FILE]

Both are whole commands, as a shell sees them, on the same file system, in turn; who is first changes with each
round. The registry is a process of its own, which has the blobs in the page cache. Every round has an image of its
own, each layer of which begins with another file, and nothing is removed before the end: ext4 is slow to make files
where others were deleted a moment ago. The engine is that of `.ci/docker-engine`, or one that answers already;
without one only our side is measured.

    layers     five layers of 60 MB, gzip: programs, Python, packages, text
    one        the same files as one layer
    small      one layer of 30,000 files of 10 kB
    noise      one layer with three files of 100 MB that do not compress

With --first both sides, and the registry, go before all other programs of the machine (SCHED_RR; as root): on a busy
machine the figures are then those of the work, not of the neighbours.

The image's files are those of the installed packages of this environment, in the order of their names.
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from contrib.workspaces.tests.image_files import ImageFiles, digest_of, write_layout

SIZE, LAYERS, SMALL = 300 * 10**6, 5, 10_000
LARGEST = 20 * 10**6
"""Larger files of the packages are left out: an image has many files, not five."""


def package_layers(size: int, count: int) -> list[bytes]:
    """Return layers of files of the installed packages, `size` bytes in all."""
    files = [path for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")) if path.is_file()]
    layers, left, each = [], size, size // count
    archive, target, start = _new_layer()
    for path in files:
        if path.stat().st_size > LARGEST or path.is_symlink():
            continue
        archive.add(path, arcname=f"usr/lib/python3/{path.relative_to(files[0].parents[1])}", recursive=False)
        if target.tell() - start >= min(each, left):
            archive.close()
            layers.append(target.getvalue())
            left -= len(layers[-1])
            if len(layers) == count:
                return layers
            archive, target, start = _new_layer()
    raise SystemExit("the installed packages have too few files for an image of this size")


def small_layer(size: int) -> bytes:
    noise = random.Random(0)
    words = [noise.randbytes(6).hex() for _ in range(2000)]
    archive, target, _ = _new_layer()
    for number in range(size // SMALL):
        member = tarfile.TarInfo(f"data/{number % 97:02}/{number % 31:02}/{number}.txt")
        member.size = SMALL
        archive.addfile(member, io.BytesIO(" ".join(noise.choices(words, k=900)).encode()[:SMALL].ljust(SMALL)))
    archive.close()
    return target.getvalue()


def noise_layer(size: int) -> bytes:
    archive, target, _ = _new_layer()
    for number in range(3):
        member = tarfile.TarInfo(f"data/{number}")
        member.size = size // 3
        archive.addfile(member, io.BytesIO(random.Random(number).randbytes(size // 3)))
    archive.close()
    return target.getvalue()


def _new_layer() -> tuple[tarfile.TarFile, io.BytesIO, int]:
    target = io.BytesIO()
    return tarfile.open(fileobj=target, mode="w"), target, 0


def shapes() -> Iterator[tuple[str, list[bytes]]]:
    layers = package_layers(SIZE, LAYERS)
    yield "layers", layers
    yield "one", [_joined(layers)]
    yield "small", [small_layer(SIZE)]
    yield "noise", [noise_layer(SIZE)]


def _joined(layers: list[bytes]) -> bytes:
    return b"".join(
        layer.rstrip(b"\0").ljust(-(-len(layer.rstrip(b"\0")) // 512) * 512, b"\0") for layer in layers
    ) + bytes(1024)


@contextmanager
def registry(layers: list[bytes], packed: list[bytes], number: int, folder: Path, before: list[str]) -> Iterator[str]:
    """Serve an image with these layers, each after a file that has the number in it; yield its name."""
    shutil.rmtree(folder, ignore_errors=True)
    marker = entry_of(number)
    marked = [marker + layer for layer in layers]
    blobs = {
        digest_of(layer): gzip.compress(marker, mtime=0) + blob for layer, blob in zip(marked, packed, strict=True)
    }
    layout = write_layout(folder, ImageFiles(marked, compress=lambda data: blobs[digest_of(data)]))
    command = [
        *before,
        sys.executable,
        "-m",
        "contrib.workspaces.tests.image_registry",
        str(layout),
        "benchmark",
        str(number),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def sizes_in(layer: bytes) -> list[int]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        return [member.size for member in archive]


def entry_of(number: int) -> bytes:
    """Return the beginning of a tar, with one file."""
    member = tarfile.TarInfo("round")
    member.size = 512
    return member.tobuf() + str(number).encode().ljust(512)


def timed(command: list[str], daemon: int) -> tuple[float, float]:
    """Return the seconds that a command takes, and those of all processors. Args: daemon: works for it; 0 for none."""
    os.sync()
    before, begin = _processor_seconds(daemon), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin, _processor_seconds(daemon) - before


def _processor_seconds(daemon: int) -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    fields = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split() if daemon else []
    return used.ru_utime + used.ru_stime + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def daemon_of_docker() -> int:
    """Return the process id of the engine: of the peer of its socket."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
        return struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def measure(rounds: int, work: Path, tools: dict[str, tuple[list[str], int]], before: list[str]) -> dict[str, Any]:
    os.environ["FORGE_ENV_IMAGES"] = str(work / "images")
    result: dict[str, Any] = {}
    numbers = itertools.count(int(time.time()))
    for shape, layers in shapes():
        packed = [gzip.compress(layer, 6, mtime=0) for layer in layers]
        sizes = [size for layer in layers for size in sizes_in(layer)]
        row: dict[str, Any] = {
            "mb": sum(sizes) / 1e6,
            "packed_mb": sum(map(len, packed)) / 1e6,
            "files": len(sizes),
            "layers": len(layers),
        }
        times: dict[str, list[tuple[float, float]]] = {tool: [] for tool in tools}
        for _ in range(rounds):
            number = next(numbers)
            with registry(layers, packed, number, work / "layout", before) as name:
                for tool in sorted(tools, reverse=number % 2 == 1):
                    command, daemon = tools[tool]
                    times[tool].append(timed([*before, *command, name], daemon))
        for at, kind in enumerate(("s", "cpu_s")):
            row |= {f"{tool}_{kind}": [seconds[at] for seconds in times[tool]] for tool in tools}
            if "docker" in tools:
                ours, theirs = row[f"forge-env_{kind}"], row[f"docker_{kind}"]
                row[f"ratio_{kind}"] = statistics.median(ours) / statistics.median(theirs)
                row[f"ratio_of_least_{kind}"] = min(ours) / min(theirs)
        result[shape] = row
        print(json.dumps({shape: row}), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first", action="store_true", help="go before all other programs of the machine")
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    has_docker = bool(shutil.which("docker")) and not subprocess.run(["docker", "info"], capture_output=True).returncode
    before = os.getloadavg()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that its files are removed
    with tempfile.TemporaryDirectory(prefix="forge-env-images.", dir="/tmp") as work:
        tools = {"forge-env": ([str(Path(sys.executable).parent / "forge-env"), "image", "pull"], 0)}
        if has_docker:
            tools["docker"] = (["docker", "pull"], daemon_of_docker())
        if options.first and has_docker:
            subprocess.run(["chrt", "--all-tasks", "--rr", "--pid", "1", str(tools["docker"][1])], check=True)
        result = measure(options.rounds, Path(work), tools, ["chrt", "--rr", "1"] if options.first else [])
    machine = {**describe(), "first": options.first, "load_before": before, "load_after": os.getloadavg()}
    if has_docker:
        shown = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}} {{.Driver}}"], capture_output=True, text=True
        )
        machine["docker"] = shown.stdout.strip()
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "result": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
