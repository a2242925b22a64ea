"""Grammars of answers: XGrammar accepts with them what a dialect writes, and its marks are tokens if they can be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import xgrammar

from agents.renderer.dialects import DIALECTS, new_id, parse, write
from agents.renderer.reading import AnswerForm, ChannelForm
from contrib.external.answer_grammar import grammar_of
from contrib.external.constraint import Constraint
from contrib.external.engine_grammars import grammar_compiler
from forge_env.core.errors import TurnRefused
from forge_env.core.types import FunctionSpec, ToolCall, ToolSpec

FUNCTION: FunctionSpec = {
    "name": "look_up",
    "description": "",
    "parameters": {
        "type": "object",
        "properties": {
            "word": {"type": "string"},
            "times": {"type": "integer"},
            "exact": {"type": "boolean"},
            "items": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["word"],
    },
}
TOOLS: list[ToolSpec] = [{"type": "function", "function": FUNCTION}]
WITHOUT = [
    *("pythonic", "lfm2", "olmo3", "longcat_xml", "hy_v3_opensource", "solar"),
    *("gemma4", "functiongemma", "minicpm5", "openai", "none"),
]
END = 256
"""Ends an answer; the tokens before it are the 256 bytes, those after it marks."""


def compiled(grammar: str, marks: list[str]) -> xgrammar.GrammarMatcher:
    vocabulary = [*(bytes([byte]) for byte in range(256)), b"</s>", *(mark.encode() for mark in marks)]
    info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])
    return xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_structural_tag(grammar))


def accepts(matcher: xgrammar.GrammarMatcher, text: str) -> bool:
    matcher.reset()
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(END)


@pytest.mark.parametrize("dialect", [dialect for dialect in DIALECTS if dialect not in WITHOUT])
def test_a_grammar_takes_what_its_dialect_writes(dialect: str) -> None:
    form = AnswerForm(dialect=dialect)
    matcher = compiled(grammar_of(Constraint(tools=("look_up",)), TOOLS, form, lambda text: None), [])
    every: dict[str, Any] = {"word": 'é "q" <b>\nx', "times": 3, "exact": True, "items": ["x", "y"]}
    for arguments in (every, {"word": "a"}):
        call = ToolCall(id=new_id(dialect, "look_up", 0), name="look_up", arguments=arguments)
        text = write([call], dialect)
        assert accepts(matcher, text), text
        assert parse(text, dialect, TOOLS) == ("", (call,))
    missing = write([ToolCall(id=new_id(dialect, "look_up", 0), name="look_up", arguments={"times": 1})], dialect)
    assert not accepts(matcher, missing) and not accepts(matcher, "Hello.")


@pytest.mark.parametrize("dialect", WITHOUT)
def test_a_dialect_without_a_grammar_is_refused_in_one_sentence(dialect: str) -> None:
    with pytest.raises(TurnRefused, match=f"'look_up' has to be called, and no grammar can say .* {dialect}: let"):
        grammar_of(Constraint(tools=("look_up",)), TOOLS, AnswerForm(dialect=dialect), lambda text: None)


def test_a_mark_is_a_token_if_the_vocabulary_has_it() -> None:
    ids = {"<tool_call>": 257, "</tool_call>": 258}
    grammar = grammar_of(Constraint(tools=("look_up",)), TOOLS, AnswerForm(dialect="qwen_xml"), ids.get)
    elements = json.loads(grammar)["format"]["elements"]
    assert elements[0] == {"type": "token", "token": 257} and elements[-1] == {"type": "token", "token": 258}
    assert elements[1]["value"] == "\n<function=look_up>\n"
    written = write([ToolCall(id="", name="look_up", arguments={"word": "a"})], "qwen_xml")
    inner = written.removeprefix("<tool_call>").removesuffix("</tool_call>")
    matcher = compiled(grammar, [*ids])
    assert all(matcher.accept_token(token) for token in (257, *inner.encode(), 258, END))
    assert not accepts(matcher, written), "the mark's text is another sequence of tokens"


def check_masks(
    compiler: Any, encode: Callable[[str], list[int]], token_id: Callable[[str], int | None], size: int
) -> None:
    """Check that grammars of one compiler allow each token of answers in channels, whatever was compiled before."""
    mask, call = xgrammar.allocate_token_bitmask(1, size), ToolCall(id="", name="look_up", arguments={"word": "a"})
    cases = ((Constraint(schema="{}"), {"content": "1"}), (Constraint(tools=("look_up",)), [call]))
    for constraint, answer in (*cases, *cases):
        grammar, text = (
            grammar_of(constraint, TOOLS, ChannelForm(dialect="harmony"), token_id),
            write(answer, "harmony"),
        )
        matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(grammar))
        for token in encode(text):
            matcher.fill_next_token_bitmask(mask)
            assert int(mask[0, token // 32]) >> token % 32 & 1, (text, token)
            assert matcher.accept_token(token)


def test_a_mark_is_allowed_after_other_grammars() -> None:
    """XGrammar's own cache would allow the mark of another grammar in its place."""
    ids = {"<|channel|>": 257, "<|message|>": 258}
    vocabulary = [*(bytes([byte]) for byte in range(256)), b"</s>", *(mark.encode() for mark in ids)]
    info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END])

    def encode(text: str) -> list[int]:
        parts = re.split(r"(<\|\w+\|>)", text)
        return [token for part in parts for token in ([ids[part]] if part in ids else part.encode())]

    check_masks(grammar_compiler(info), encode, ids.get, len(vocabulary))


@pytest.mark.parametrize("form", [AnswerForm(dialect="hermes"), ChannelForm(dialect="harmony")])
def test_json_or_a_call(form: AnswerForm) -> None:
    constraint = Constraint(schema='{"type": "object", "properties": {"x": {"type": "integer"}}}', tools=("look_up",))
    matcher = compiled(grammar_of(constraint, TOOLS, form, lambda text: None), [])
    assert accepts(matcher, write({"content": '{"x": 1}'}, form.dialect))
    assert accepts(matcher, write([ToolCall(id="", name="look_up", arguments={"word": "a"})], form.dialect))


def test_a_tool_that_is_not_offered_is_named() -> None:
    with pytest.raises(TurnRefused, match="'add' has to be called, and is no tool of the request; they are look_up"):
        grammar_of(Constraint(tools=("add",)), TOOLS, AnswerForm(dialect="hermes"), lambda text: None)


NUMBER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "required": ["a"]}, "the required name 'a' without a property"),
        ({"properties": {"a": NUMBER}, "anyOf": [{"required": []}]}, "properties beside anyOf"),
        ({"properties": {"a": {"items": [{"patternProperties": {"^x": NUMBER}}]}}}, "patternProperties"),
        ({"$defs": {"n": {"allOf": [{"not": NUMBER}]}}}, "not"),
        ({"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": NUMBER}}, "minimum beside $ref"),
        ({"$ref": "#/$defs/n", "description": "A number.", "$defs": {"n": NUMBER}}, ""),
        ({"properties": {"not": NUMBER, "required": NUMBER}, "required": ["not"]}, ""),
    ],
)
def test_what_a_grammar_takes_otherwise_than_the_schema_is_refused(schema: dict[str, Any], named: str) -> None:
    constraint = Constraint(schema=json.dumps(schema))
    form, no_marks = AnswerForm(dialect="hermes"), dict[str, int]().get
    if named:
        with pytest.raises(TurnRefused, match=re.escape(f"the schema has {named},")):
            grammar_of(constraint, [], form, no_marks)
    else:
        compiled(grammar_of(constraint, [], form, no_marks), [])


@pytest.mark.parametrize("limit", [{"minLength": 1}, {"maxLength": 9}, {"pattern": "^[^x]+$"}])
def test_a_string_with_a_limit_fits_its_schema_and_has_no_escapes(limit: dict[str, Any]) -> None:
    """The last may change with XGrammar: then the docstring of `grammar_of` is to be changed too."""
    constraint = Constraint(schema=json.dumps({"type": "string"} | limit))
    matcher = compiled(grammar_of(constraint, [], AnswerForm(dialect="hermes"), dict[str, int]().get), [])
    assert accepts(matcher, '"a 1"') and not accepts(matcher, '"xxxxxxxxxx"' if limit != {"minLength": 1} else '""')
    assert not any(accepts(matcher, json.dumps(text)) for text in ('a"b', "a\\b", "a\nb"))
