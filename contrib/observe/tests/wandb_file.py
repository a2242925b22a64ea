"""Reads back the file that W&B keeps of an offline run: a log in LevelDB's format, of protocol buffers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7


def records(path: Path) -> Iterator[Any]:
    """Every whole record of a .wandb file; the end may be missing, as after a kill."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if at > len(data):
            return
        if kind in (1, 4):  # full, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, row by row."""
    rows = [record.history.item for record in records(path) if record.WhichOneof("record_type") == "history"]
    return [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row} for row in rows]


def run_of(path: Path) -> Any:
    """The record that says what the run is."""
    return next(record.run for record in records(path) if record.WhichOneof("record_type") == "run")
