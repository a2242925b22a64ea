"""The fields of a request: each is honoured, refused, or ignored and named; one that is unknown is refused."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.external.requests import whole_number
from forge_env.core.errors import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields that the requests of one dialect may have. A field that is null is not set."""

    honoured: Sequence[str]
    ignored: Sequence[str]
    refused: Mapping[str, str]
    """A value that asks for nothing is not refused: false, 0, or an empty one."""

    @classmethod
    def of(cls, dialect: str) -> Fields:
        """The fields of a dialect, from fields.toml."""
        tables = tomllib.loads(Path(__file__).with_name("fields.toml").read_text(encoding="utf-8"))
        row, shared = tables[dialect], {f"@{name}": names for name, names in tables["shared"].items()}
        return cls(**row | {"ignored": [name for part in row["ignored"] for name in shared.get(part, [part])]})

    def check(self, body: Any) -> dict[str, Any]:
        """Return the body of a request."""
        if not isinstance(body, dict):
            raise RequestRefused(400, "the body is no JSON object")
        names = (*self.honoured, *self.ignored, *self.refused)
        for name, value in body.items():
            if value is None:
                continue
            if name not in names:
                text = f"{name!r:.60} is no field that is known here: leave it out. {nearest(name, names)}"
                raise RequestRefused(400, text, code="unknown_parameter", param=name[:60])
            if name not in self.refused:
                check_kind(body, name)
            refuse(body, name, value if name in self.refused else None, self.refused.get(name, ""))
        return body

    def ignored_in(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """The ignored fields that a request has set, in the order of their declaration."""
        return tuple(name for name in self.ignored if body.get(name) is not None)


_KINDS = {
    "true or false": ("disable_parallel_tool_use", "include_usage", "parallel_tool_calls", "store", "stream"),
    "a number": ("frequency_penalty", "min_p", "presence_penalty", "repetition_penalty", "temperature", "top_p"),
    "a whole number": ("best_of", "max_tool_calls", "n", "seed", "top_k"),
    "an object": ("stream_options",),
}
"""What a value is. An ignored field has one of its kind, too: a client with another value means something else."""
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}


def check_kind(part: Mapping[str, Any], name: str, kind: str = "") -> Any:
    """Return a field of a request or of its part, and refuse a value of another kind. None is not a value.

    Args:
        part: the request, or a part of it.
        name: the field.
        kind: a key of `_KINDS`; by default the kind of the name, if there is one.
    """
    value, kind = part.get(name), kind or _KIND_OF.get(name, "")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_kind = {
        "true or false": isinstance(value, bool),
        "a number": is_number,
        "a whole number": is_number and isinstance(whole_number(value), int),
        "an object": isinstance(value, dict),
    }
    if value is not None and not is_kind.get(kind, True):
        raise RequestRefused(400, f"{name} is {json.dumps(value)[:80]}; it is {kind}", param=name)
    return value


def refuse(body: Mapping[str, Any], name: str, wrong: Any, reason: str) -> None:
    if wrong:
        value = json.dumps(body.get(name))[:80]
        raise RequestRefused(400, f"{name} is {value}, which is not offered, for {reason}: leave it out", param=name)


def listed_tools(tools: Any) -> list[dict[str, Any]]:
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise RequestRefused(400, f"tools is {json.dumps(tools)[:80]}; it is a list of objects", param="tools")
    return tools or []


def kinds_left_out(tools: Any, kinds_on_offer: Sequence[str]) -> tuple[str, ...]:
    """The kinds of tools that are not offered to the model, each as "tools KIND".

    Args:
        tools: of a request.
        kinds_on_offer: the kinds that are offered.
    """
    kinds = dict.fromkeys(tool["type"] for tool in listed_tools(tools) if isinstance(tool.get("type"), str))
    return tuple(f"tools {kind[:40]}" for kind in kinds if kind not in kinds_on_offer)


def ignored_of_tools(tools: Any, keys: Sequence[str], within: str = "") -> tuple[str, ...]:
    """The keys of the tools of a request that nobody reads, as "tools.KEY"; of a part of each tool with `within`."""
    parts = [tool.get(within) if within else tool for tool in listed_tools(tools)]
    names = {key: None for part in parts if isinstance(part, dict) for key in part if part[key] and key not in keys}
    return tuple(f"tools.{within + '.' if within else ''}{name[:40]}" for name in names)
