"""What a stream has of an answer is the beginning of what the reader returns for the full answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.renderer.dialects import DIALECTS, harmony, write
from agents.renderer.dialects.table import dialect_of
from agents.renderer.reading import END_THINK, THINK, AnswerForm, ChannelForm
from contrib.serve.streamed import before_marks, read_beginning, sure_content
from forge_env.core.types import ToolCall, ToolSpec

TOOLS: tuple[ToolSpec, ...] = (
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
        },
    },
)


def pieces(dialect: str) -> st.SearchStrategy[str]:
    """Parts of answers: marks, parts of marks, calls and other text."""
    calls = [ToolCall(id="call_0", name="add", arguments={"a": 1, "b": "<x> {"})]
    written = write(calls, dialect)
    marks = [mark for mark in dialect_of(dialect).marks if mark]
    parts = [
        THINK,
        END_THINK,
        written,
        written[: len(written) // 2],
        written[1:],
        *marks,
        *(mark[:-1] for mark in marks),
    ]
    return st.sampled_from(
        [*parts, " ", "\n", "So", "{", "[", "}", '{"name": "add", "arguments": {"a": 2}}', "<tool", "é"]
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=settings.default.max_examples // 2)  # of each dialect
@given(data=st.data())
def test_what_was_streamed_stays(dialect: str, data: st.DataObject) -> None:
    form = AnswerForm(dialect=dialect, opens_thought=data.draw(st.booleans()), one_call=data.draw(st.booleans()))
    text = "".join(data.draw(st.lists(pieces(dialect), max_size=8)))
    tools = data.draw(st.sampled_from([TOOLS, ()]))
    full = [form.read(text, tools=tools, is_cut=is_cut) for is_cut in (False, True)]
    for end in range(len(text) + 1):
        thought, content = read_beginning(form, text[:end], tools=tools)
        for answer in full:
            assert (answer.thought or "").startswith(thought) and answer.content.startswith(content), text[:end]


def test_a_stream_does_not_wait_without_need() -> None:
    hermes = AnswerForm(dialect="hermes")
    assert read_beginning(hermes, "The sum", tools=TOOLS) == ("", "The sum")
    assert read_beginning(hermes, "The sum <tool", tools=TOOLS) == ("", "The sum")
    assert read_beginning(hermes, "The sum <tool", tools=()) == ("", "The sum <tool")
    assert read_beginning(hermes, "<think>\nI add. </thi", tools=TOOLS) == ("I add.", "")
    assert read_beginning(hermes, "<think>I add.</think>\n\nThree", tools=TOOLS) == ("I add.", "Three")
    assert read_beginning(hermes, "<thi", tools=TOOLS) == ("", "")
    assert read_beginning(AnswerForm(dialect="llama"), "Three <|python", tools=TOOLS) == ("", "Three")
    assert read_beginning(AnswerForm(dialect="pythonic"), "[add", tools=TOOLS) == ("", "")


def test_only_an_end_that_may_become_a_mark_waits() -> None:
    assert before_marks("a <b", ["<b>"]) == 2
    assert before_marks("a <c", ["<b>"]) == 4
    assert before_marks("a <b> <b> <", ["<b>"]) == 2
    assert sure_content("{", "llama") == sure_content("", "llama") == 0


THOUGHT, CALL = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant", '<|message|>{"a": 1}'


@pytest.mark.parametrize(
    "text",
    [
        f"{THOUGHT}<|channel|>final<|message|>Yes.",
        f"{THOUGHT} to=functions.add<|channel|>commentary json{CALL}",
        f"{THOUGHT}<|channel|>commentary to=functions.add <|constrain|>json{CALL}",
        f"<|channel|>commentary<|message|>I add.<|end|><|start|>assistant to=add{CALL}",
        f"{THOUGHT}{THOUGHT}<|channel|>final<|message|>Yes.",
        f"{THOUGHT}<|channel|>final<|message|>Yes.{harmony.END}",
    ],
)
def test_what_was_streamed_of_channels_stays(text: str) -> None:
    form = ChannelForm(dialect="harmony")
    answer = form.read(text, tools=TOOLS, is_cut=False)
    known = [read_beginning(form, text[:size], tools=TOOLS) for size in range(len(text))]
    assert all((answer.thought or "").startswith(one) and answer.content.startswith(two) for one, two in known)
    assert known[-1] != ("", "")
