"""Reads the lines of a file into rows of the index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contrib.viewer.index_row import Row, episode_row, trained_row
from contrib.viewer.lenient_json import encodable
from contrib.viewer.stored_runs import FileKind

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 256 << 20


@dataclass(slots=True, kw_only=True)
class ScannedBlock:
    end: int
    """Where the next block begins: behind the last whole line."""
    rows: list[Row] = field(default_factory=list)
    bad_lines: list[tuple[int, str]] = field(default_factory=list)
    """Offset of each line that cannot be read, and the reason."""


def scan_file(path: Path, kind: FileKind, start: int, end: int) -> Iterator[ScannedBlock]:
    """Read the lines that begin at or after `start` and before `end`, block by block; `start` begins a line.

    A last line without a line end counts when it is valid JSON, which half of an object never is.
    """
    make_row = trained_row if kind == "trained" else episode_row
    block = ScannedBlock(end=start)
    with path.open("rb") as file:
        file.seek(start)
        while block.end < end and (line := file.readline(MAX_LINE_BYTES)):
            text = line.strip()
            try:
                if text:
                    block.rows.append(make_row(text, block.end + line.index(text)))
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    break  # it is still being written
                block.bad_lines.append((block.end, encodable(str(error)[:300])))
            block.end += len(line)
            if block.end - start >= BLOCK_BYTES:
                yield block
                start, block = block.end, ScannedBlock(end=block.end)
    if block.end > start:
        yield block
