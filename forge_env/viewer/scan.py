"""Lines of a file to rows of the index; in several processes where there is much to read.

A worker is a child that answers requests on its standard input until that is closed: when the viewer is killed, its
workers read the end of the pipe and end too.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from forge_env.viewer.index_row import Row, episode_row, plain, trained_row
from forge_env.viewer.stored_runs import FileKind

BLOCK = 4 << 20
PARALLEL_FROM = 4 * BLOCK
LONGEST_LINE = 256 << 20
_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from forge_env.viewer.scan import serve; serve()"
_HEAD = struct.Struct("<Q")


@dataclass(slots=True, kw_only=True)
class Scanned:
    """What one stretch of a file holds."""

    end: int
    """Where the next stretch begins: behind the last whole line."""
    rows: list[Row] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Offset of each line that cannot be read, and why."""


def scan_block(path: Path, kind: FileKind, start: int, end: int) -> Scanned:
    """Read the lines that begin at or after `start` and before `end`; `start` begins a line.

    A last line without its line end counts when it is whole JSON: half of an object never is.

    Raises:
        OSError: when the file cannot be read.
    """
    make_row = trained_row if kind == "trained" else episode_row
    found = Scanned(end=start)
    with path.open("rb") as file:
        file.seek(start)
        while found.end < end:
            line = file.readline(LONGEST_LINE)
            if not line:
                break
            text = line.strip()
            try:
                if text:
                    found.rows.append(make_row(text, found.end + line.index(text)))
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                    break  # it is being written
                found.bad.append((found.end, plain(str(error)[:300])))
            found.end += len(line)
    return found


def scan(path: Path, kind: FileKind, start: int, end: int) -> Iterator[Scanned]:
    """Read a file from a line's start up to `end`, stretch by stretch, in order.

    Raises:
        OSError: when the file cannot be read.
    """
    if end - start < PARALLEL_FROM:
        while start < end:
            found = scan_block(path, kind, start, min(end, start + BLOCK))
            if found.end == start:
                return
            yield found
            start = found.end
        return
    yield from _scan_in_workers(path, kind, _cut(path, start, end))


def _cut(path: Path, start: int, end: int) -> list[tuple[int, int]]:
    """Cut a stretch at line ends."""
    cuts = [start]
    with path.open("rb") as file:
        while cuts[-1] + BLOCK < end:
            file.seek(cuts[-1] + BLOCK)
            file.readline()
            cuts.append(min(file.tell(), end))
    return [(a, b) for a, b in zip(cuts, [*cuts[1:], end], strict=True) if a < b]


def _scan_in_workers(path: Path, kind: FileKind, stretches: list[tuple[int, int]]) -> Iterator[Scanned]:
    """Hand stretches out in turn; each worker has one ahead, so that it never waits."""
    count = max(1, min(len(os.sched_getaffinity(0)), 8, len(stretches)))
    workers = [_start() for _ in range(count)]
    try:
        for worker, (a, b) in zip(workers, stretches, strict=False):
            _ask(worker, path, kind, a, b)
        for number in range(len(stretches)):
            worker = workers[number % count]
            if number + count < len(stretches):
                _ask(worker, path, kind, *stretches[number + count])
            found = _answer(worker)
            if isinstance(found, OSError):
                raise found
            yield found
            if found.end < stretches[number][1]:
                return  # the file has become shorter, or ends in half a line
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    pipe.close()


def _start() -> subprocess.Popen[bytes]:
    path = json.dumps([place or os.getcwd() for place in sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", _CODE, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the viewer's
        bufsize=0,
    )


def _ask(worker: subprocess.Popen[bytes], path: Path, kind: FileKind, start: int, end: int) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps([str(path), kind, start, end]).encode() + b"\n")


def _answer(worker: subprocess.Popen[bytes]) -> Scanned | OSError:
    assert worker.stdout is not None
    head = _exactly(worker.stdout, _HEAD.size)
    answer: Scanned | OSError = pickle.loads(_exactly(worker.stdout, _HEAD.unpack(head)[0]))
    return answer


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = pipe.read(count - len(data))
        if not more:
            raise OSError("a process that reads episodes for the viewer has died")
        data += more
    return bytes(data)


def serve() -> None:
    """Answer requests until standard input ends: what a worker does."""
    out = os.fdopen(os.dup(1), "wb")
    for line in sys.stdin.buffer:
        path, kind, start, end = json.loads(line)
        found: Scanned | OSError
        try:
            found = scan_block(Path(path), kind, start, end)
        except OSError as error:
            found = error
        data = pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL)
        out.write(_HEAD.pack(len(data)) + data)
        out.flush()
