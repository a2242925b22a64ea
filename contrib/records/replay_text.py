"""Comparison of recorded and replayed values: whether they are equal, and how they differ."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from forge_env.core.types import Message

MAX_LINES, MAX_WIDTH = 12, 160
"""Size of a printed difference."""
_VOLATILE = re.compile(
    r"""
      \b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b             # a UUID
    | \b0x[0-9a-f]{6,}\b                                          # a memory address
    | \b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?   # a time stamp
    | \b\d+\.\d+(?:e-?\d+)?(?=\s?(?:s|ms|us|µs|ns|sec|seconds)\b)  # a duration
    | (?<=/tmp/)[^/\s"'\\]+                                       # a temporary file
    """,
    re.VERBOSE | re.IGNORECASE,
)


def compare_values(was: Any, now: Any) -> Literal["same", "expected", "different"]:
    """Compare two JSON values; texts that differ only in times and random names are "expected"."""
    if isinstance(was, (int, float)) and isinstance(now, (int, float)):
        return "same" if math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-9) else "different"
    if isinstance(was, Mapping) and isinstance(now, Mapping) and was.keys() == now.keys():
        return _worst([compare_values(was[key], now[key]) for key in was])
    if _is_list(was) and _is_list(now) and len(was) == len(now):
        return _worst([compare_values(a, b) for a, b in zip(was, now, strict=True)])
    if was == now:
        return "same"
    if isinstance(was, str) and isinstance(now, str) and _without_volatile(was) == _without_volatile(now):
        return "expected"
    return "different"


def readable(value: Any) -> str:
    """Return a value as text for people; messages as "role: text"."""
    if isinstance(value, str):
        return value
    if _is_list(value) and all(isinstance(item, Mapping) and "role" in item for item in value):
        return "\n".join(map(_message_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {readable(item)}" for key, item in value.items()) or "nothing"
    if _is_list(value):
        return ", ".join(map(readable, value)) or "nothing"
    return f"{value:g}" if isinstance(value, float) else str(value)


def diff_lines(was: str, now: str) -> list[str]:
    """Return the lines in which two texts differ, with "- " before the old and "+ " before the new ones.

    There are at most `MAX_LINES`, each cut to `MAX_WIDTH`.
    """
    lines = list(difflib.unified_diff(was.splitlines(), now.splitlines(), n=1, lineterm=""))[2:]
    if not lines:
        lines = [f"-{was!r}", f"+{now!r}"]  # only line endings differ
    cut = [_cut(f"{line[0]} {line[1:]}") for line in lines if not line.startswith("@@")]
    return cut if len(cut) <= MAX_LINES else [*cut[: MAX_LINES - 1], f"  and {len(cut) - MAX_LINES + 1} more lines"]


def _worst(verdicts: Sequence[Literal["same", "expected", "different"]]) -> Literal["same", "expected", "different"]:
    return "different" if "different" in verdicts else "expected" if "expected" in verdicts else "same"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _without_volatile(text: str) -> str:
    return _VOLATILE.sub("~", text)


def _message_text(message: Message) -> str:
    calls = "".join(f" {json.dumps(call)}" for call in message.get("tool_calls", ()))
    name = f" ({message['name']})" if message.get("name") else ""
    return f"{message['role']}{name}: {message['content']}{calls}"


def _cut(line: str) -> str:
    return line if len(line) <= MAX_WIDTH else f"{line[: MAX_WIDTH - 1]}…"
