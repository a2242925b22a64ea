"""Reads the lines of a file into rows of the index, in several processes where the file is large.

A worker process answers requests on its standard input until that is closed. So the workers end with the viewer, also
when it is killed. multiprocessing is not used: its processes outlive a parent that is killed, and they import the
program's main module again.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_env.viewer.index_row import Row, episode_row, trained_row
from forge_env.viewer.lenient_json import encodable
from forge_env.viewer.stored_runs import FileKind

BLOCK_BYTES = 4 << 20
PARALLEL_FROM_BYTES = 4 * BLOCK_BYTES
MAX_LINE_BYTES = 256 << 20
MAX_WORKERS = 8
_WORKER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from forge_env.viewer.scan import work; work()"

Block = tuple[int, int]
"""First byte, which begins a line, and the byte behind the last one."""


@dataclass(slots=True, kw_only=True)
class ScannedBlock:
    """The rows of one block of a file."""

    end: int
    """Where the next block begins: behind the last whole line."""
    rows: list[Row] = field(default_factory=list)
    bad_lines: list[tuple[int, str]] = field(default_factory=list)
    """Offset of each line that cannot be read, and the reason."""


def scan_block(path: Path, kind: FileKind, start: int, end: int) -> ScannedBlock:
    """Read the lines that begin at or after `start` and before `end`; `start` begins a line.

    A last line without a line end counts when it is valid JSON, which half of an object never is.
    """
    make_row = trained_row if kind == "trained" else episode_row
    block = ScannedBlock(end=start)
    with path.open("rb") as file:
        file.seek(start)
        while block.end < end:
            line = file.readline(MAX_LINE_BYTES)
            if not line:
                break
            text = line.strip()
            try:
                if text:
                    block.rows.append(make_row(text, block.end + line.index(text)))
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    break  # it is still being written
                block.bad_lines.append((block.end, encodable(str(error)[:300])))
            block.end += len(line)
    return block


def scan_file(path: Path, kind: FileKind, start: int, end: int) -> Iterator[ScannedBlock]:
    """Read a file from the start of a line up to `end`, block by block, in order."""
    if end - start >= PARALLEL_FROM_BYTES:
        yield from _scan_in_workers(path, kind, _cut_into_blocks(path, start, end))
        return
    while start < end:
        block = scan_block(path, kind, start, min(end, start + BLOCK_BYTES))
        if block.end == start:
            return
        yield block
        start = block.end


def _cut_into_blocks(path: Path, start: int, end: int) -> list[Block]:
    """Cut a part of a file at line ends."""
    cuts = [start]
    with path.open("rb") as file:
        while cuts[-1] + BLOCK_BYTES < end:
            file.seek(cuts[-1] + BLOCK_BYTES)
            file.readline()
            cuts.append(min(file.tell(), end))
    return [(a, b) for a, b in zip(cuts, [*cuts[1:], end], strict=True) if a < b]


def _scan_in_workers(path: Path, kind: FileKind, blocks: list[Block]) -> Iterator[ScannedBlock]:
    """Hand out the blocks in turn. A worker gets its next block before its result is read, so it never waits."""
    count = max(1, min(len(os.sched_getaffinity(0)), MAX_WORKERS, len(blocks)))
    workers = [_Worker() for _ in range(count)]
    try:
        for worker, block in zip(workers, blocks, strict=False):
            worker.request(path, kind, block)
        for number, block in enumerate(blocks):
            worker = workers[number % count]
            if number + count < len(blocks):
                worker.request(path, kind, blocks[number + count])
            result = worker.result()
            yield result
            if result.end < block[1]:
                return  # the file has become shorter, or ends in half a line
    finally:
        for worker in workers:
            worker.close()


class _Worker:
    """A process that scans blocks."""

    def __init__(self) -> None:
        path = json.dumps([folder or os.getcwd() for folder in sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the viewer
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._results = self._process.stdin, self._process.stdout

    def request(self, path: Path, kind: FileKind, block: Block) -> None:
        pickle.dump((path, kind, *block), self._requests)
        self._requests.flush()

    def result(self) -> ScannedBlock:
        """The result of the oldest request."""
        try:
            result: ScannedBlock | OSError = pickle.load(self._results)
        except (EOFError, pickle.UnpicklingError):
            raise OSError("a process that reads episodes for the viewer has died") from None
        if isinstance(result, OSError):
            raise result
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def work() -> None:
    """Answer requests until standard input ends: the main function of a worker."""
    with os.fdopen(os.dup(1), "wb") as results:
        while True:
            try:
                request: Any = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            result: ScannedBlock | OSError
            try:
                result = scan_block(*request)
            except OSError as error:
                result = error
            pickle.dump(result, results, protocol=pickle.HIGHEST_PROTOCOL)
            results.flush()
