"""What the readers of all dialects share: calls from values, and the sentence for a call that cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agents.renderer.model_json import arguments_of, kind
from forge_env.core.types import ToolCall, ToolSpec

Calls = tuple[ToolCall, ...]
Tools = Sequence[ToolSpec]
_NO_NAME = 'its "name" is missing, or is no text'


class Written(NamedTuple):
    """One call as a reader finds it: its parts, or the problem."""

    name: str = ""
    arguments: dict[str, Any] | None = None
    problem: str = ""
    raw: str = ""
    """The text of the call, if there is a problem."""
    id: str = ""
    """From the text, in a dialect that writes ids."""

    def call(self, form: str) -> ToolCall:
        """The call; with a problem, its error says what `form` to write."""
        if self.problem:
            error = f"The call cannot be read because {self.problem}: write {form}."
            return ToolCall(id=self.id, name=self.name, arguments=None, raw=self.raw, error=error)
        # Interned, as new ids are: thousands of live episodes call the same few tools.
        return ToolCall(id=self.id, name=sys.intern(self.name), arguments=self.arguments)


class Block(NamedTuple):
    """What a reader finds at a place of a text."""

    calls: list[Written]
    end: int
    problem: str = ""
    """Why there are no calls; `end` is then the place of the problem."""
    name: str = ""
    """The name of the call that has the problem, if it is known."""


def read_call(value: Any, raw: str, name_key: str, keys: Sequence[str]) -> Written:
    """A call from a JSON value {NAME_KEY: ..., KEY: {...}} with the first of `keys` that holds something."""
    if not isinstance(value, dict):
        return Written(problem=f"it is {kind(value)} and not a JSON object", raw=raw)
    if name_key not in value and isinstance(value.get("function"), dict):
        value = {"id": value.get("id"), **value["function"]}
    name = value.get(name_key)
    if not isinstance(name, str) or not name:
        return Written(problem=_NO_NAME, raw=raw)
    arguments, problem = arguments_of(value, keys)
    id_ = value["id"] if isinstance(value.get("id"), str) else ""
    return Written(name, arguments, problem, raw if problem else "", id_)


def names_a_call(value: Any, keys: Sequence[str], tools: Tools) -> bool:
    """Whether JSON without a mark is a call: it has a name, and arguments or the name of an offered tool."""
    if not isinstance(value, dict) or "name" not in value:
        return False
    return any(key in value for key in keys) or any(value["name"] == tool["function"]["name"] for tool in tools)


class Parameters:
    """The schemas of the parameters of one tool; empty if the tool is not offered."""

    def __init__(self, tools: Tools, name: str) -> None:
        self._tools, self._name = tools, name

    def schema(self, parameter: str) -> Mapping[str, Any]:
        """The schema of a parameter, with a reference to a definition resolved."""
        for tool in self._tools:
            if tool["function"]["name"] == self._name:
                root = tool["function"]["parameters"]
                schema = (root.get("properties") or {}).get(parameter)
                reference = schema.get("$ref") if isinstance(schema, Mapping) else None
                if isinstance(reference, str):
                    schema = (root.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
                return schema if isinstance(schema, Mapping) else {}
        return {}


def with_ids(calls: Sequence[ToolCall], form: str = "call_{index}") -> Calls:
    """Give every call a unique id; unique ids are kept.

    Args:
        form: of a new id, with the fields `name` and `index`.
    """
    ids: set[str] = set()
    results: list[ToolCall] = []
    number = 0  # the lowest index that may be free
    for index, call in enumerate(calls):
        id_ = call.id
        if not id_ or id_ in ids:
            number = max(number, index)
            while (id_ := sys.intern(form.format(name=call.name, index=number))) in ids:
                number += 1
            call = ToolCall(id=id_, name=call.name, arguments=call.arguments, raw=call.raw, error=call.error)
        ids.add(id_)
        results.append(call)
    return tuple(results)
