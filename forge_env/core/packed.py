"""Long sequences of numbers as bytes: how the tokens of an episode travel between processes.

A tuple of 32,000 numbers is pickled and unpickled one object at a time, and no other thread of the process runs
meanwhile. As bytes it is one copy of memory. What arrives stays packed until somebody reads it, so that a process that
only passes episodes on makes no objects of their tokens.

Ids and versions are 32-bit integers, logprobs 64-bit floats (every logprob comes back as the same number), and masks
one byte each, in the byte order of the machine.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from forge_env.core.types import NOT_SAMPLED

Kind = Literal["i", "d", "?"]
"""int32, float64 or bool, as `struct` names them."""
MOST_NUMBERS = 2048
"""Numbers that are written as JSON at once: about 2 ms of floats, after which other threads may run."""

_NO_VERSION = struct.pack("i", NOT_SAMPLED)


class PackedTurn(NamedTuple):
    """The tokens of a turn."""

    ids: bytes
    """int32: the ids of the prompt, then those of the sampled tokens."""
    num_prompt: int
    logprobs: bytes
    """float64; empty where there are none."""


class PackedRow(NamedTuple):
    """The four fields of a row, one entry per token."""

    token_ids: bytes
    loss_mask: bytes
    generator_logprobs: bytes
    versions: bytes


ROW_KINDS: dict[str, Kind] = {"token_ids": "i", "loss_mask": "?", "generator_logprobs": "d", "versions": "i"}


def pack(values: Sequence[Any], kind: Kind) -> bytes:
    """Pack numbers; `unpack` returns them again."""
    # `struct` packs numbers twice as fast as `array` does.
    return bytes(map(bool, values)) if kind == "?" else struct.pack(f"{len(values)}{kind}", *values)


def unpack(data: bytes, kind: Kind) -> tuple[Any, ...]:
    """Return the numbers as Python objects."""
    return tuple(memoryview(data).cast(kind))


def join_turns(turns: Sequence[tuple[PackedTurn, Sequence[tuple[int, int]]]]) -> PackedRow:
    """Join the turns of one row.

    Args:
        turns: of each one its tokens, and the spans (weight version, number of tokens) of the sampled ones.
    """
    masks, logprobs, versions = [], [], []
    for packed, spans in turns:
        n, k = packed.num_prompt, len(packed.ids) // 4 - packed.num_prompt
        is_sampled = [bytes([version != NOT_SAMPLED]) * count for version, count in spans]
        masks += [bytes(n), *(is_sampled or [b"\1" * k])]
        logprobs.append(bytes(8 * n) + (packed.logprobs or bytes(8 * k)))
        versions.append(_NO_VERSION * n)
        versions += [struct.pack("i", version) * count for version, count in spans] or [_NO_VERSION * k]
    ids = b"".join(packed.ids for packed, _ in turns)
    return PackedRow(ids, b"".join(masks), b"".join(logprobs), b"".join(versions))


def json_list(values: Sequence[Any]) -> str:
    """Write numbers as `json.dumps` does, but in parts: between two of them other threads may run."""
    parts = (values[start : start + MOST_NUMBERS] for start in range(0, len(values), MOST_NUMBERS))
    return f"[{', '.join(json.dumps(part)[1:-1] for part in parts)}]"
