"""Dialects: what is written is read back, nothing raises, and what cannot be read tells the model the right form.

`test_dialects_vllm.py` compares them with vLLM's parsers.
"""

from __future__ import annotations

import functools
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agents.renderer.dialects import DIALECTS, begin_of, from_openai, matching, new_id, parse, to_openai, write
from agents.renderer.dialects.table import dialect_of
from agents.renderer.model_json import MAX_DEPTH, flaw
from forge_env.core.errors import UserError
from forge_env.core.types import Message, ToolCall, ToolSpec
from tests.helpers.rows import rows

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
identifiers = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
# Texts between marks, which no quotes protect: they hold neither marks nor the line ends that some templates add.
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<|\n\r"), max_size=9)


def numbered(dialect: str, named: list[tuple[str, dict[str, Any]]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=new_id(dialect, n, i), name=n, arguments=a) for i, (n, a) in enumerate(named))


calls = st.lists(st.tuples(names, arguments), max_size=3)
simple_calls = st.lists(
    st.tuples(identifiers, st.dictionaries(identifiers, json_values.filter(lambda v: type(v) is not str) | plain)),
    max_size=3,
    unique_by=lambda call: call[0],
)
IN_JSON = [dialect for dialect in CALLING if 'name": "TOOL"' in dialect_of(dialect).form]
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


# To draw an example takes far longer than to read it: all dialects share each.


@given(text=any_text | structured)
@example(text="so <|python_tag|> <|eot_id|>")
@example(text='{"type": "function"}0\n0')
def test_reading_never_raises_and_is_stable(text: str) -> None:
    for dialect in DIALECTS:
        content, calls = parse(text, dialect)
        check(calls)
        assert calls or content == text, f"text without calls stays as it is in {dialect}"
        write(calls, dialect)
        json.dumps(to_openai(calls))


@given(content=words, made=calls)
def test_what_is_written_is_read_back(content: str, made: list[tuple[str, dict[str, Any]]]) -> None:
    for dialect in IN_JSON:
        check_written(dialect, content, numbered(dialect, made), tools=[])


@given(content=words, made=simple_calls)
@example(content="", made=[("a", {"x": "null", "y": "3", "z": "[1]"})])
def test_what_is_written_without_quotes_is_read_back(content: str, made: list[tuple[str, dict[str, Any]]]) -> None:
    tools = [tool(name, args) for name, args in made]
    for dialect in sorted({*CALLING} - {*IN_JSON}):
        check_written(dialect, content, numbered(dialect, made), tools)


def check_written(dialect: str, content: str, wanted: tuple[ToolCall, ...], tools: list[ToolSpec]) -> None:
    message: Message = {"role": "assistant", "content": content, "tool_calls": to_openai(wanted)}
    assert parse(write(message, dialect), dialect, tools) == (content, wanted), dialect
    assert parse(write(wanted, dialect), dialect, tools) == ("", wanted), dialect


def tool(name: str, arguments: dict[str, Any]) -> ToolSpec:
    """A tool whose parameters have the types of some arguments."""
    kinds = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    properties = {key: {"type": kinds.get(type(value), "object")} for key, value in arguments.items()}
    function: Any = {"name": name, "description": "", "parameters": {"type": "object", "properties": properties}}
    return {"type": "function", "function": function}


@given(content=any_text | structured, made=calls)
def test_the_openai_dialect_carries_any_content(content: str, made: list[tuple[str, dict[str, Any]]]) -> None:
    wanted = numbered("openai", made)
    message: Message = {"role": "assistant", "content": content, "tool_calls": to_openai(wanted)}
    text = write(message, "openai")
    if wanted:
        text.encode()
    assert parse(text, "openai")[1] == wanted
    assert parse(text, "openai")[0] in (content, content.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


@given(made=calls)
def test_openai_messages_are_read_back_with_arguments_as_text_or_object(made: list[tuple[str, dict[str, Any]]]) -> None:
    wanted = numbered("openai", made)
    listed = to_openai(wanted)
    assert from_openai({"tool_calls": listed}) == wanted
    as_objects = [
        c | {"function": c["function"] | {"arguments": json.loads(c["function"]["arguments"])}} for c in listed
    ]
    assert from_openai({"tool_calls": as_objects}) == wanted


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

SCHEMA = [tool("a", {"x": 1}), tool("b", {})]
READ = {
    case["name"]: case
    for case in tomllib.loads(Path(__file__).with_name("read.toml").read_text(encoding="utf-8"))["read"]
}


@pytest.mark.parametrize("case", READ)
def test_what_models_write_is_read(case: str) -> None:
    wanted = READ[case]
    calls = tuple(ToolCall(**call) for call in wanted.get("calls", ()))
    assert parse(wanted["text"], wanted["dialect"], SCHEMA) == (wanted.get("content", ""), calls)


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
    "more after it": ("hermes", '<tool_call>{"name": "a", "arguments": {}} x</tool_call>', "goes on after its end (x)"),
    "duplicate key": (
        "hermes",
        '<tool_call>{"name": "a", "arguments": {"x": 1, "x": 2}}</tool_call>',
        'the key "x" appears twice',
    ),
    "NaN": ("llama", '{"name": "a", "parameters": {"x": NaN}}', "NaN is no JSON number"),
    "infinite": ("llama", '{"name": "a", "parameters": {"x": -1e999}}', "-1e999 is beyond what a float holds"),
    "huge": ("llama", f'{{"name": "a", "parameters": {{"x": {"9" * 5000}}}}}', "thousands of digits"),
    "deep": (
        "llama",
        '{"name": "a", "parameters": {"x": ' + "[" * 99 + "]" * 99 + "}}",
        f"more than {MAX_DEPTH} levels",
    ),
    "very deep": ("llama", '{"name": "a", "parameters": {"x": ' + "[" * 99_999, "levels deep"),
    "code": ("llama", "<|python_tag|>print(1)", "not a JSON object"),
    "no end of a key": ("glm", "<tool_call>a\n<arg_key>x</tool_call>", "of a parameter does not end with </arg_key>"),
    "cut off": ("llama", '{"name": "a", "parameters": {"x"', "not valid JSON"),
    "openai, cut off": ("openai", '[{"function": {"name": "a", "argu', "not valid JSON"),
    "openai, arguments": ("openai", '[{"function": {"name": "a", "arguments": "{"}}]', "not valid JSON"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_says_why_and_shows_the_form(case: str) -> None:
    dialect, text, why = WRONG[case]
    content, [call] = parse(text, dialect)
    assert (content, call.arguments) == ("", None)
    assert why in call.error and call.error.endswith(f": write {FORMS.get(dialect) or dialect_of(dialect).form}.")
    assert call.raw and call.raw in text.replace('\\"', '"')


FORMS = {  # of the others: as the table has it
    "hermes": '<tool_call>{"name": "TOOL", "arguments": {...}}</tool_call>',
    "llama": '{"name": "TOOL", "parameters": {...}}',
    "qwen_xml": "<tool_call><function=TOOL> <parameter=PARAMETER> VALUE </parameter></function></tool_call>",
    "pythonic": "[TOOL(PARAMETER=VALUE, ...)]",
    "mistral": "[TOOL_CALLS]TOOL[ARGS]{...}",
}
TWO = ToolCall(id="", name="add", arguments={"key_x": "a", "key_y": "b"})
# The dialect "openai" is a document, and no text around calls.
WITH_TEXT = [dialect for dialect in CALLING if dialect != "openai"]


@pytest.mark.parametrize("dialect", WITH_TEXT)
class TestAllDialectsReadAlike:
    def test_a_key_that_appears_twice(self, dialect: str) -> None:
        content, [call] = parse(write([TWO], dialect).replace("key_y", "key_x"), dialect)
        assert (content, call.arguments) == ("", None)
        form = dialect_of(dialect).form
        assert call.error == f'The call cannot be read because the key "key_x" appears twice: write {form}.'

    def test_a_mark_inside_a_value(self, dialect: str) -> None:
        for mark in dialect_of(dialect).marks or (write([TWO], dialect),):
            call = ToolCall(id=new_id(dialect, "add", 0), name="add", arguments={"x": f"a {mark} b"})
            assert parse(write([call], dialect), dialect) == ("", (call,)), mark

    def test_text_after_the_calls(self, dialect: str) -> None:
        written = write([TWO], dialect)
        for after in (" ok", "\n\nok\n"):
            content, [call] = parse(written + after, dialect)
            assert (content, call.arguments) == ("ok", TWO.arguments)

    def test_a_call_without_its_end(self, dialect: str) -> None:
        close = getattr(dialect_of(dialect), "close", "")
        written = write([TWO], dialect)
        cut = written[: written.rindex(close)] if close else written[:-1]
        content, [call] = parse(f"{cut}", dialect)
        assert (content, call.arguments) == ("", None) and call.raw in written
        assert call.error.endswith(f": write {dialect_of(dialect).form}.")
        assert not close or f"because it does not end with {close}:" in call.error


@pytest.mark.parametrize("dialect", [dialect for dialect in IN_JSON if dialect != "openai"])
def test_what_is_written_has_the_form_that_a_model_is_told(dialect: str) -> None:
    written = write([ToolCall(id="", name="TOOL", arguments={"x": 1})], dialect).replace('{"x": 1}', "{...}")
    assert "".join(written.split()) == "".join(dialect_of(dialect).form.split())


@pytest.mark.parametrize("dialect", ["lfm2", "olmo3", "jamba", "cohere"])
def test_a_list_of_calls_has_one_mark(dialect: str) -> None:
    assert write([TWO, TWO], dialect).count(begin_of(dialect)) == 1


@pytest.mark.parametrize("dialect", [d for d in WITH_TEXT if getattr(dialect_of(d), "close", "")])
def test_a_bad_call_between_good_ones(dialect: str) -> None:
    good = write([TWO], dialect)
    _, calls = parse(f"{good}\n{good.replace('key_y', 'key_x')}\n{good}", dialect)
    assert [call.arguments for call in calls] == [TWO.arguments, None, TWO.arguments]


def test_marks_around_no_call_are_a_call_that_cannot_be_read() -> None:
    content, [call] = parse("so <minimax:tool_call>\nadd 1\n</minimax:tool_call>", "minimax_m2")
    assert content == "so" and "it holds no call" in call.error and call.raw.startswith("add 1")


INTEGER: Any = {"type": "integer"}
TYPES: dict[str, tuple[Any, str, Any]] = {"object, deep": ({"type": "object"}, '{"a":' * 99, '{"a":' * 99)}
for name, schema, text, value in rows(__file__, "types.tsv"):
    TYPES[name] = json.loads(schema), text, json.loads(value)
for levels, value in ((8, 3), (9, "3")):
    TYPES[f"choices, {levels} levels"] = (
        functools.reduce(lambda s, _: {"anyOf": [s]}, range(levels), INTEGER),
        "3",
        value,
    )


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "none"])
def test_numbers_keep_the_digits_that_the_model_wrote(dialect: str) -> None:
    text = '{"x": 1.10, "y": [-0, 5.0, 1E5, 0.123456789012345678], "z": 12345678901234567890}'
    [call] = from_openai({"tool_calls": [{"function": {"name": "add", "arguments": text}}]})
    parameters: Any = {"properties": {name: {} for name in "xyz"}}
    function: Any = {"name": "add", "description": "", "parameters": {**parameters, "properties": {}}}
    for name, kind in (("x", "number"), ("y", "array"), ("z", "integer")):
        function["parameters"]["properties"][name] = {"type": kind}
    [read] = parse(write([call], dialect), dialect, [{"type": "function", "function": function}])[1]
    assert to_openai([read])[0]["function"]["arguments"] == text


@pytest.mark.parametrize("case", TYPES)
def test_values_without_quotes_have_the_type_of_their_parameter(case: str) -> None:
    schema, text, value = TYPES[case]
    function: Any = {
        "name": "add",
        "description": "",
        "parameters": {"properties": {"x": schema}, "$defs": {"Point": {"type": "object"}}},
    }
    written = f"<tool_call>\n<function=add>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    [call] = parse(written, "qwen_xml", [{"type": "function", "function": function}])[1]
    assert call.arguments == {"x": value} and isinstance(call.arguments["x"], type(value))
    assert isinstance(call.arguments["x"], bool) == isinstance(value, bool)
    assert parse(written, "qwen_xml")[1][0].arguments == {"x": text}, "without the tool it is text"


ADD = [tool("add", {})]


@pytest.mark.parametrize(
    ("text", "tools", "called"),
    [
        ('{"name": "Bob", "age": 5}', [], False),
        ('{"name": "Bob", "age": 5}', ADD, False),
        ('{"name": "add"}', ADD, True),
        ('{"name": "add"}', [], False),
        ('{"name": "Bob", "arguments": {}}', [], True),
        ('{"name": "Bob", "parameters": {}}', ADD, True),
        ('{"name": "Bob", "arguments"', [], True),
    ],
)
def test_json_without_a_mark_is_a_call_only_with_arguments_or_an_offered_name(
    text: str, tools: list[ToolSpec], called: bool
) -> None:
    for dialect, answer in (("llama", text), ("xlam", f"[{text}]" if text.endswith("}") else f"[{text}")):
        content, calls = parse(answer, dialect, tools)
        assert (len(calls) == 1) == called and (content == answer) != called


ARGUMENTS = {written: json.loads(arguments) for written, arguments in rows(__file__, "arguments.tsv")}


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
        with pytest.raises(UserError, match=r"no dialect 'hermse'.*Did you mean hermes\?.*llama.*none, olmo3, openai"):
            use()


def test_the_dialect_of_a_text_is_one_that_writes_it() -> None:
    calls = [ToolCall(id="", name="a", arguments={"x": 1}), ToolCall(id="", name="b", arguments={})]
    assert {d: matching(f"{write(calls, d)}<|im_end|>", calls, SCHEMA) for d in CALLING if d != "openai"} == {
        d: d for d in CALLING if d != "openai"
    }
    assert matching("no call", calls, SCHEMA) == ""
