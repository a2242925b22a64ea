"""Whether two texts say the same, and how they differ: what is compared when an episode is replayed."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from forge_env.core.types import Message

LINES, WIDTH = 12, 160
"""Of a difference that is shown."""
_VOLATILE = re.compile(
    r"""
      \b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b             # a UUID
    | \b0x[0-9a-f]{6,}\b                                          # where an object lies in memory
    | \b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?   # a moment
    | \b\d+\.\d+(?:e-?\d+)?(?=\s?(?:s|ms|us|µs|ns|sec|seconds)\b)  # measured time
    | (?<=/tmp/)[^/\s"'\\]+                                       # a temporary file
    """,
    re.VERBOSE | re.IGNORECASE,
)


def alike(was: Any, now: Any) -> Literal["same", "expected", "different"]:
    """Compare two JSON values: numbers but for rounding, texts as they are, then but for times and random names."""
    if isinstance(was, (int, float)) and isinstance(now, (int, float)):
        return "same" if math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-9) else "different"
    if isinstance(was, Mapping) and isinstance(now, Mapping) and was.keys() == now.keys():
        return _worst([alike(was[key], now[key]) for key in was])
    if _is_list(was) and _is_list(now) and len(was) == len(now):
        return _worst([alike(a, b) for a, b in zip(was, now, strict=True)])
    if was == now:
        return "same"
    if isinstance(was, str) and isinstance(now, str) and _steady(was) == _steady(now):
        return "expected"
    return "different"


def shown(value: Any) -> str:
    """A value as a person reads it; messages as "role: text"."""
    if isinstance(value, str):
        return value
    if _is_list(value) and all(isinstance(item, Mapping) and "role" in item for item in value):
        return "\n".join(map(_spoken, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(item)}" for key, item in value.items()) or "nothing"
    if _is_list(value):
        return ", ".join(map(shown, value)) or "nothing"
    return f"{value:g}" if isinstance(value, float) else str(value)


def difference(was: str, now: str) -> list[str]:
    """The lines in which two texts differ: "- " was, "+ " is now; at most `LINES`, each cut to `WIDTH`."""
    lines = list(difflib.unified_diff(was.splitlines(), now.splitlines(), n=1, lineterm=""))[2:]
    if not lines:
        lines = [f"-{was!r}", f"+{now!r}"]  # only ends of lines differ
    found = [_cut(f"{line[0]} {line[1:]}") for line in lines if not line.startswith("@@")]
    return found if len(found) <= LINES else [*found[: LINES - 1], f"  and {len(found) - LINES + 1} more lines"]


def _worst(verdicts: Sequence[Literal["same", "expected", "different"]]) -> Literal["same", "expected", "different"]:
    return "different" if "different" in verdicts else "expected" if "expected" in verdicts else "same"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _steady(text: str) -> str:
    return _VOLATILE.sub("~", text)


def _spoken(message: Message) -> str:
    calls = "".join(f" {json.dumps(call)}" for call in message.get("tool_calls", ()))
    name = f" ({message['name']})" if message.get("name") else ""
    return f"{message['role']}{name}: {message['content']}{calls}"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
