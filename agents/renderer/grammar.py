"""The grammar of an answer that must have a form, as a structural tag of XGrammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from forge_env.core.constraint import Constraint
from forge_env.core.errors import TurnRefused
from forge_env.core.types import FunctionSpec, ToolSpec

_MOST_WHITESPACE = 32
"""Characters between two parts of a JSON text; without a limit a model may write white space forever."""
_Format = dict[str, Any]


def grammar_of(
    constraint: Constraint, tools: Sequence[ToolSpec], calls: str, token_id: Callable[[str], int | None]
) -> str:
    """A structural tag of XGrammar, as JSON. The JSON of an answer follows the order of its schema.

    Args:
        constraint: the form of the answer.
        tools: the tools that it may name; the arguments of a call fit the parameters of its tool.
        calls: the form of calls in the model's template.
        token_id: the id of a text that is one token of the vocabulary, such as a mark; otherwise None.

    Raises:
        TurnRefused: the constraint names a tool that is not there.
    """
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    if missing := [name for name in constraint.tools if name not in functions]:
        offered = ", ".join(functions) or "none"
        raise TurnRefused(
            f"the tool {missing[0]!r:.80} has to be called, and is no tool of the request; they are {offered}"
        )
    choices = [_call(functions[name], calls, token_id) for name in constraint.tools]
    if constraint.schema:
        choices.append(_json(json.loads(constraint.schema)))
    answer = choices[0] if len(choices) == 1 else {"type": "or", "elements": choices}
    return json.dumps({"type": "structural_tag", "format": answer})


def _call(function: FunctionSpec, calls: str, token_id: Callable[[str], int | None]) -> _Format:
    name, arguments = json.dumps(function["name"]), _json(function["parameters"])
    if calls == "llama":
        return _sequence(_text(f'{{"name": {name}, "parameters": '), arguments, _text("}"))
    begin, end = (_mark(mark, token_id) for mark in ("<tool_call>", "</tool_call>"))
    return _sequence(begin, _text(f'\n{{"name": {name}, "arguments": '), arguments, _text("}\n"), end)


def _mark(text: str, token_id: Callable[[str], int | None]) -> _Format:
    id_ = token_id(text)
    return _text(text) if id_ is None else {"type": "token", "token": id_}


def _text(value: str) -> _Format:
    return {"type": "const_string", "value": value}


def _json(schema: Any) -> _Format:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _MOST_WHITESPACE}


def _sequence(*elements: _Format) -> _Format:
    return {"type": "sequence", "elements": list(elements)}
