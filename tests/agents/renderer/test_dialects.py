"""Dialects: what is written is read back, nothing raises, and what cannot be read tells the model the right form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.renderer.dialects import DIALECTS, from_openai, parse, to_openai, write
from agents.renderer.model_json import MAX_DEPTH, flaw
from forge_env.core.errors import UserError
from forge_env.core.types import Message, ToolCall

CALLING = [dialect for dialect in DIALECTS if dialect != "none"]

any_text = st.text(st.characters())  # lone surrogates included
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
tricky = st.sampled_from(["</tool_call>", '"}; {"name"', "<tool_call>", "<|python_tag|>", "\ud800", "a\nb", '"\\'])
arguments = st.dictionaries(st.text(max_size=5) | tricky, json_values | tricky, max_size=3)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
calls = st.lists(st.builds(lambda n, a: ToolCall(id="", name=n, arguments=a), names, arguments), max_size=3).map(
    lambda made: tuple(ToolCall(id=f"call_{i}", name=c.name, arguments=c.arguments) for i, c in enumerate(made))
)
# What plain text around calls may hold: nothing that is itself the beginning of one.
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<{["), max_size=12).map(str.strip)

PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "<|eot_id|>",
    '{"name": "a", "arguments": {"x": 1}}',
    '{"name": "a", "parameters": {"x": [1, {}]}}',
    '{"name": "a", "parameters": 3}',
    '{"name": 3}',
    '{"name": "a", "name": "b", "arguments": {}}',
    '{"name": "a", "arguments": {"x": NaN}}',
    '{"name": "a", "arguments": {"x": 1e999}}',
    '{"name": "a", "arguments": {"x": "\\ud800"}}',
    '[{"id": "i", "type": "function", "function": {"name": "a", "arguments": "{}"}}]',
    '{"tool_calls": ',
    '{"tool_calls": {"function": 3}, "content": 4}',
    '[{"function": {"name": "a", "arguments": "{"}}, 3, null]',
    "{",
    "}",
    "[",
    "]",
    '"',
    ";",
    ",",
    "\n",
    "null",
    "\ud800",
    "9" * 5000,
    "[" * 3000,
    '{"a":' * 3000,
]
structured = st.lists(st.sampled_from(PIECES) | any_text, max_size=8).map("".join)


def check(calls: tuple[ToolCall, ...]) -> None:
    assert len({call.id for call in calls}) == len(calls)
    for call in calls:
        assert (call.arguments is None) == bool(call.error)
        assert call.arguments is None or (call.name and flaw(call.arguments) == "")
        assert not call.error or (call.error.endswith(".") and "write " in call.error and "\n" not in call.error)
        assert len(call.error) < 500


# ---- properties ----


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=100, deadline=None)
@given(text=any_text | structured)
@example(text="so <|python_tag|> <|eot_id|>")
@example(text='{"type": "function"}0\n0')
def test_reading_never_raises_and_is_stable(dialect: str, text: str) -> None:
    content, calls = parse(text, dialect)
    check(calls)
    assert calls or content == text, "text without calls stays as it is"
    write(calls, dialect)
    json.dumps(to_openai(calls))


@pytest.mark.parametrize("dialect", CALLING)
@settings(max_examples=100, deadline=None)
@given(content=words, wanted=calls)
def test_what_is_written_is_read_back(dialect: str, content: str, wanted: tuple[ToolCall, ...]) -> None:
    message: Message = {"role": "assistant", "content": content, "tool_calls": to_openai(wanted)}
    assert parse(write(message, dialect), dialect) == (content, wanted)
    assert parse(write(wanted, dialect), dialect) == ("", wanted)


@settings(max_examples=100, deadline=None)
@given(content=any_text | structured, wanted=calls)
def test_the_openai_dialect_carries_any_content(content: str, wanted: tuple[ToolCall, ...]) -> None:
    message: Message = {"role": "assistant", "content": content, "tool_calls": to_openai(wanted)}
    text = write(message, "openai")
    if wanted:
        text.encode()
    assert parse(text, "openai")[1] == wanted
    assert parse(text, "openai")[0] in (content, content.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


@settings(max_examples=100, deadline=None)
@given(wanted=calls)
def test_openai_messages_are_read_back_with_arguments_as_text_or_object(wanted: tuple[ToolCall, ...]) -> None:
    listed = to_openai(wanted)
    assert from_openai({"tool_calls": listed}) == wanted
    as_objects = [
        c | {"function": c["function"] | {"arguments": json.loads(c["function"]["arguments"])}} for c in listed
    ]
    assert from_openai({"tool_calls": as_objects}) == wanted


@settings(max_examples=75, deadline=None)
@given(
    item=st.recursive(
        json_values | any_text,
        lambda i: (
            st.dictionaries(
                st.sampled_from(["id", "type", "function", "name", "arguments", "tool_calls"]), i, max_size=5
            )
            | st.lists(i)
        ),
    )
)
@example(item={"tool_calls": [{"function": {"name": "a", "arguments": {"x": float("nan")}}}]})
@example(item={"tool_calls": [{"id": "call_1", "name": "a"}, {"id": "call_1", "name": "b"}, {"name": "c"}]})
@example(item={"tool_calls": [object()]})
def test_any_message_is_read(item: Any) -> None:
    check(from_openai(item if isinstance(item, dict) else {"tool_calls": item}))


# ---- cases ----

A, B = ToolCall(id="call_0", name="a", arguments={"x": 1}), ToolCall(id="call_1", name="b", arguments={})
READ: dict[str, tuple[str, str, str, tuple[ToolCall, ...]]] = {
    "hermes, by the template": (
        "hermes",
        'so\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>',
        "so",
        (A, B),
    ),
    "hermes, words after it": ("hermes", '<tool_call>{"name":"a","arguments":{"x":1}}</tool_call> ok', "ok", (A,)),
    "llama": ("llama", '{"name": "a", "parameters": {"x": 1}}', "", (A,)),
    "llama, semicolon": ("llama", '{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}', "", (A, B)),
    "llama, newline": ("llama", '{"name": "a", "arguments": {"x": 1}}\n{"name": "b", "parameters": {}}', "", (A, B)),
    "llama, tag": ("llama", 'so <|python_tag|>{"name":"a","parameters":{"x":1}}<|eom_id|>', "so", (A,)),
    "llama, JSON that is the answer": ("llama", '{"answer": 4}', '{"answer": 4}', ()),
    "openai, list": ("openai", '[{"function": {"name": "a", "arguments": "{\\"x\\": 1}"}}]', "", (A,)),
    "openai, one": ("openai", '{"id": "call_0", "function": {"name": "a", "arguments": {"x": 1}}}', "", (A,)),
    "openai, message": ("openai", '{"content": "so", "tool_calls": [{"name": "a", "arguments": {"x":1}}]}', "so", (A,)),
    "openai, no arguments": ("openai", '[{"function": {"name": "b", "arguments": ""}, "id": "call_1"}]', "", (B,)),
    "openai, JSON that is the answer": ("openai", "[1, 2]", "[1, 2]", ()),
    "none": ("none", '<tool_call>{"name": "a"}</tool_call>', '<tool_call>{"name": "a"}</tool_call>', ()),
}


@pytest.mark.parametrize("case", READ)
def test_what_models_write_is_read(case: str) -> None:
    dialect, text, content, calls = READ[case]
    assert parse(text, dialect) == (content, calls)


WRONG = {
    "unclosed": ("hermes", '<tool_call>{"name": "a", "arguments": {}}', "does not end with </tool_call>"),
    "bad JSON": ("hermes", "<tool_call>{name: a}</tool_call>", "not valid JSON (Expecting property name"),
    "no object of arguments": (
        "hermes",
        '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
        "are a list and not",
    ),
    "another key": ("hermes", '<tool_call>{"name": "a", "args": {"x": 1}}</tool_call>', '"args" is not their name'),
    "no name": ("hermes", '<tool_call>{"arguments": {}}</tool_call>', '"name" is missing'),
    "no object": ("hermes", "<tool_call>[]</tool_call>", "a list and not a JSON object"),
    "more after it": ("hermes", '<tool_call>{"name": "a", "arguments": {}} x</tool_call>', "goes on after the end"),
    "duplicate key": (
        "hermes",
        '<tool_call>{"name": "a", "arguments": {"x": 1, "x": 2}}</tool_call>',
        'the key "x" appears twice',
    ),
    "NaN": ("llama", '{"name": "a", "parameters": {"x": NaN}}', "NaN is no JSON number"),
    "infinite": ("llama", '{"name": "a", "parameters": {"x": -1e999}}', "-inf is no JSON number"),
    "huge": ("llama", f'{{"name": "a", "parameters": {{"x": {"9" * 5000}}}}}', "thousands of digits"),
    "deep": (
        "llama",
        '{"name": "a", "parameters": {"x": ' + "[" * 99 + "]" * 99 + "}}",
        f"more than {MAX_DEPTH} levels",
    ),
    "very deep": ("llama", '{"name": "a", "parameters": {"x": ' + "[" * 99_999, "levels deep"),
    "code": ("llama", "<|python_tag|>print(1)", "not a JSON object"),
    "cut off": ("llama", '{"name": "a", "parameters": {"x"', "not valid JSON"),
    "openai, cut off": ("openai", '[{"function": {"name": "a", "argu', "not valid JSON"),
    "openai, arguments": ("openai", '[{"function": {"name": "a", "arguments": "{"}}]', "not valid JSON"),
}
FORMS = {
    "hermes": '<tool_call>{"name": "TOOL", "arguments": {...}}</tool_call>',
    "llama": '{"name": "TOOL", "parameters": {...}}',
    "openai": '"function": {"name": "TOOL", "arguments": {...}}',
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_says_why_and_shows_the_form(case: str) -> None:
    dialect, text, why = WRONG[case]
    content, [call] = parse(text, dialect)
    assert (content, call.arguments) == ("", None)
    assert why in call.error and FORMS[dialect] in call.error
    assert call.raw and call.raw in text.replace('\\"', '"')


ARGUMENTS: dict[str, dict[str, Any] | None] = {
    "": {},
    ', "arguments": null': {},
    ', "arguments": ""': {},
    ', "arguments": "  "': {},
    ', "arguments": "null"': {},
    ', "arguments": []': {},
    ', "parameters": {}': {},
    ', "arguments": "{\\"x\\": [1]}"': {"x": [1]},
    ', "arguments": " {\\"x\\": 1}\\n"': {"x": 1},
    ', "arguments": "\\"{}\\""': {},
    ', "arguments": null, "parameters": {"x": 1}': {"x": 1},
    ', "parameters": "{\\"x\\": 1}"': {"x": 1},
    ', "arguments": "[1]"': None,
    ', "arguments": [1]': None,
    ', "arguments": 0': None,
    ', "arguments": false': None,
    ', "arguments": "{x: 1}"': None,
    ', "arguments": "{\\"x\\": NaN}"': None,
    ', "input": {"x": 1}': None,
}


@pytest.mark.parametrize("written", ARGUMENTS)
def test_all_dialects_and_agents_read_arguments_alike(written: str) -> None:
    call = '{"name": "a"' + written + "}"
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": json.loads(call)}]}
    read = [
        parse(f"<tool_call>{call}</tool_call>", "hermes")[1],
        parse(f"<|python_tag|>{call}", "llama")[1],
        parse(f'[{{"function": {call}}}]', "openai")[1],
        from_openai(message),
    ]
    assert [one.arguments for [one] in read] == [ARGUMENTS[written]] * 4
    assert all(bool(one.error) == (ARGUMENTS[written] is None) for [one] in read)


@pytest.mark.parametrize("dialect", ["hermes", "llama"])
def test_what_cannot_be_read_is_written_as_it_was(dialect: str) -> None:
    bad = {"hermes": '<tool_call>\n{"names": "a"}\n</tool_call>', "llama": "<|python_tag|>print(1)"}[dialect]
    _, calls = parse(bad, dialect)
    assert write(calls, dialect) == bad.removeprefix("<|python_tag|>")


def test_a_bad_call_does_not_take_its_neighbours_with_it() -> None:
    good = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    content, calls = parse(f"{good}<tool_call>{{ {good} 1 <tool_call>]</tool_call>{good}", "hermes")
    assert content == "1"
    assert [call.arguments for call in calls] == [{}, None, {}, None, {}]


def test_ids_of_a_message_are_kept_and_made_unique() -> None:
    ids = ["x", "x", None, "call_0", 7]
    calls = from_openai({"tool_calls": [{"id": i, "function": {"name": "a", "arguments": "{}"}} for i in ids]})
    assert calls[0].id == "x" and calls[3].id == "call_0"
    assert len({call.id for call in calls}) == 5


def test_reasoning_is_not_written() -> None:
    assert write({"role": "assistant", "content": "4", "reasoning_content": "hm"}, "hermes") == "4"


def test_an_unknown_dialect_is_named() -> None:
    for use in (lambda: parse("", "hermse"), lambda: write((), "hermse")):
        with pytest.raises(UserError, match=r"no dialect 'hermse'.*Did you mean hermes\?.*llama, none, openai"):
            use()
