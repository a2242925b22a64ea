"""The grammar of an answer that must have a form, as a structural tag of XGrammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agents.renderer.dialects.table import dialect_of
from agents.renderer.model_json import dump
from forge_env.core.errors import TurnRefused
from forge_env.core.types import FunctionSpec, ToolCall, ToolSpec

if TYPE_CHECKING:
    from agents.renderer.reading import AnswerForm
    from contrib.external.constraint import Constraint

_MOST_WHITESPACE = 32
"""Characters between two parts of a JSON text; without a limit a model may write white space forever."""
_MARK = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_BESIDE_REF = {"$ref", "$defs", "definitions", "$schema", "$id", "$comment"} | _ANNOTATIONS
_KEY, _VALUE = "a key", "a value"
_STYLES = {
    dump({_KEY: _VALUE}): "json",
    f"<parameter={_KEY}>\n{_VALUE}\n</parameter>\n": "qwen_xml",
    f"<parameter={_KEY}>{_VALUE}</parameter>\n": "qwen_xml",
    f"<arg_key>{_KEY}</arg_key>\n<arg_value>{_VALUE}</arg_value>\n": "glm_xml",
    f'<parameter name="{_KEY}">{_VALUE}</parameter>\n': "minimax_xml",
    f'<｜DSML｜parameter name="{_KEY}" string="true">{_VALUE}</｜DSML｜parameter>\n': "deepseek_xml",
}
"""An argument as a dialect writes it -> what XGrammar calls this form of arguments. It has no other forms."""
_Piece = str | tuple[Any, str]
"""A part of a call: text, or the schema of the arguments and their form."""
_Format = dict[str, Any]
_TokenId = Callable[[str], int | None]


def grammar_of(constraint: Constraint, tools: Sequence[ToolSpec], form: AnswerForm, token_id: _TokenId) -> str:
    """A structural tag of XGrammar, as JSON, for `Sampling.grammar`. An answer's JSON follows the order of its schema.

    A string with minLength, maxLength or pattern has no escapes in XGrammar 0.2.8: no quotes, backslashes or ends of
    lines. Such answers fit their schema, so it is not refused: a minLength of 1 is in many schemas.

    Args:
        constraint: the form of the answer.
        tools: the tools that it may name; the arguments of a call fit the parameters of its tool.
        form: how the model writes its answers.
        token_id: the id of a text that is one token of the vocabulary, such as a mark; otherwise None.

    Raises:
        TurnRefused: the form names a tool that is not one of them, the dialect has no grammar, or XGrammar would make
            answers that a schema forbids.
    """
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    if missing := [name for name in constraint.tools if name not in functions]:
        names = ", ".join(functions) or "none"
        raise TurnRefused(
            f"the tool {missing[0]!r:.80} has to be called, and is no tool of the request; they are {names}"
        )
    choices = [_call(functions[name], form.dialect, token_id) for name in constraint.tools]
    if constraint.schema:
        choices.append(_sequence([form.begin_content, (json.loads(constraint.schema), "json")], token_id))
    answer = choices[0] if len(choices) == 1 else {"type": "or", "elements": choices}
    return json.dumps({"type": "structural_tag", "format": answer})


def _call(function: FunctionSpec, dialect: str, token_id: _TokenId) -> _Format:
    call = ToolCall(id="", name=function["name"], arguments={_KEY: _VALUE})
    text = dialect_of(dialect).write("", (call,))
    argument = next((argument for argument in _STYLES if argument in text), "")
    if not argument:
        raise TurnRefused(
            f"the tool {function['name']!r:.80} has to be called, and no grammar can say the calls of the model's "
            f"dialect, {dialect}: let the model choose"
        )
    start, _, end = text.partition(argument)
    return _sequence([start, (function["parameters"], _STYLES[argument]), end], token_id)


def _sequence(pieces: Sequence[_Piece], token_id: _TokenId) -> _Format:
    elements = [element for piece in pieces for element in _elements(piece, token_id)]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _elements(piece: _Piece, token_id: _TokenId) -> list[_Format]:
    if not isinstance(piece, str):
        schema, style = piece
        if otherwise := _otherwise(schema):
            raise TurnRefused(
                f"the schema has {otherwise}, and the engine's grammar would allow other answers: leave it out"
            )
        json_ = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _MOST_WHITESPACE}
        return [json_ | ({} if style == "json" else {"style": style})]
    parts = [(part, token_id(part) if _MARK.fullmatch(part) else None) for part in _MARK.split(piece) if part]
    elements: list[_Format] = []
    for text, id_ in parts:
        if id_ is not None:
            elements.append({"type": "token", "token": id_})
        elif elements and elements[-1]["type"] == "const_string":
            elements[-1]["value"] += text
        else:
            elements.append({"type": "const_string", "value": text})
    return elements


def _otherwise(schema: Any) -> str:
    """What XGrammar 0.2.8 takes otherwise than JSON Schema, without a word; "" if a schema has nothing of it."""
    if isinstance(schema, list):
        return next(filter(None, map(_otherwise, schema)), "")
    if not isinstance(schema, dict):
        return ""
    properties = schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in properties]:
        return f"the required name {missing[0]!r:.80} without a property"
    for name in ("anyOf", "oneOf"):
        if properties and name in schema:
            return f"properties beside {name}"
    for name in ("patternProperties", "not"):
        if name in schema:
            return name
    if "$ref" in schema and (beside := sorted(schema.keys() - _BESIDE_REF)):
        return f"{beside[0]} beside $ref"
    members = [part for name in ("properties", "$defs", "definitions") for part in schema.get(name, {}).values()]
    others = [schema.get(name) for name in ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")]
    return _otherwise([*members, *others])
