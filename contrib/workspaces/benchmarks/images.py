"""Pull and unpack an image of 300 MB from a registry on this machine: `forge-env image pull` against `docker pull`.

    .ci/docker-engine .venv/bin/python -m contrib.workspaces.benchmarks.images [--rounds 5] [--json FILE]

Both are whole commands, as a shell sees them, on the same file system, in turn; who is first changes with each
round. The registry is a process of its own, which has the blobs in the page cache. Every round has an image of its
own, each layer of which begins with another file, and nothing is removed before the end: ext4 is slow to make files
where others were deleted a moment ago. The engine is that of `.ci/docker-engine`, or one that answers already;
without one only our side is measured.

    layers     five layers of 60 MB, gzip: programs, Python, packages, text
    one        the same files as one layer
    small      one layer of 30,000 files of 10 kB
    noise      one layer with three files of 100 MB that do not compress

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
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from contrib.workspaces.images.build import is_answering
from contrib.workspaces.tests.image_files import ImageFiles, digest_of, write_layout

SIZE, LAYERS, SMALL = 300 * 10**6, 5, 10_000
LARGEST = 20 * 10**6
"""Larger files of the packages are left out: an image has many files, not five."""


def package_layers(size: int, count: int) -> list[bytes]:
    """Return layers of files of the installed packages, `size` bytes in all."""
    top = Path(sysconfig.get_paths()["purelib"])
    files = (path for path in sorted(top.rglob("*")) if path.is_file() and not path.is_symlink())
    layers = []
    for _ in range(count):
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as archive:
            for path in files:
                if path.stat().st_size <= LARGEST:
                    archive.add(path, arcname=f"usr/lib/python3/{path.relative_to(top.parent)}", recursive=False)
                if target.tell() >= size // count:
                    break
            else:
                raise SystemExit("the installed packages have too few files for an image of this size")
        layers.append(target.getvalue())
    return layers


def layer_of(files: Iterable[tuple[str, bytes]]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()


def small_layer(size: int) -> bytes:
    noise = random.Random(0)
    words = [noise.randbytes(6).hex() for _ in range(2000)]
    return layer_of(
        (
            f"data/{number % 97:02}/{number % 31:02}/{number}.txt",
            " ".join(noise.choices(words, k=900)).encode()[:SMALL].ljust(SMALL),
        )
        for number in range(size // SMALL)
    )


def noise_layer(size: int) -> bytes:
    return layer_of((f"data/{number}", random.Random(number).randbytes(size // 3)) for number in range(3))


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
def registry(layers: list[bytes], packed: list[bytes], number: int, folder: Path) -> Iterator[str]:
    """Serve an image with these layers, each after a file that has the number in it; yield its name."""
    shutil.rmtree(folder, ignore_errors=True)
    marker = entry_of(number)
    marked = [marker + layer for layer in layers]
    blobs = {
        digest_of(layer): gzip.compress(marker, mtime=0) + blob for layer, blob in zip(marked, packed, strict=True)
    }
    layout = write_layout(folder, ImageFiles(marked, compress=lambda data: blobs[digest_of(data)]))
    command = [sys.executable, "-m", "contrib.workspaces.tests.image_registry", str(layout), "benchmark", str(number)]
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


def timed(command: list[str]) -> float:
    os.sync()
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(rounds: int, work: Path, tools: dict[str, list[str]]) -> dict[str, Any]:
    os.environ["FORGE_ENV_IMAGES"] = str(work / "images")
    result: dict[str, Any] = {}
    numbers = itertools.count(int(time.time()))
    for shape, layers in shapes():
        packed = [gzip.compress(layer, 6, mtime=0) for layer in layers]
        sizes = [size for layer in layers for size in sizes_in(layer)]
        seconds: dict[str, list[float]] = {tool: [] for tool in tools}
        for _ in range(rounds):
            number = next(numbers)
            with registry(layers, packed, number, work / "layout") as name:
                for tool in sorted(tools, reverse=number % 2 == 1):
                    seconds[tool].append(timed([*tools[tool], name]))
        row: dict[str, Any] = {"mb": sum(sizes) / 1e6, "packed_mb": sum(map(len, packed)) / 1e6, "files": len(sizes)}
        row |= {f"{tool}_s": values for tool, values in seconds.items()}
        if "docker" in seconds:
            row["ratio_s"] = statistics.median(seconds["forge-env"]) / statistics.median(seconds["docker"])
        result[shape] = row
        print(json.dumps({shape: row}), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the figures and the machine")
    options = parser.parse_args()
    before = os.getloadavg()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that its files are removed
    with tempfile.TemporaryDirectory(prefix="forge-env-images.", dir="/tmp") as work:
        tools = {"forge-env": [str(Path(sys.executable).parent / "forge-env"), "image", "pull"]}
        if is_answering("docker"):
            tools["docker"] = ["docker", "pull"]
        result = measure(options.rounds, Path(work), tools)
    machine = {**describe(), "load_before": before, "load_after": os.getloadavg()}
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "result": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
