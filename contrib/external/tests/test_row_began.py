"""Why a request begins a row: the kind, and the sentence that lets a user mend his agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrib.external.conversations import ProgramConversations
from contrib.external.requests import ProgramRequest
from contrib.external.row_began import why_row_began
from forge_env.core.protocols import RowBegan
from forge_env.core.types import Message, ToolSpec


def tool(name: str, about: str = "") -> ToolSpec:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {}}}


ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def messages(*texts: str) -> tuple[Message, ...]:
    """Of texts such as "u:hello", whose first letter is the role."""
    return tuple({"role": ROLES[text[0]], "content": text[2:]} for text in texts)  # type: ignore[misc]


BEFORE = ("s:Be brief. Now it is 12:00.", "u:go", "a:one", "t:done", "u:and?")
WHOLE = (*BEFORE, "a:two")


def began(conversations: ProgramConversations, request: ProgramRequest, answer: str | None = "ok") -> RowBegan:
    """Why a request begins a row; it is answered then."""
    placed, _ = conversations.place(request)
    assert not placed.turns, "it begins a row"
    why = why_row_began(request, placed.asked or (), conversations.before(placed))
    if answer is not None:
        conversations.answered(placed, request, {"role": "assistant", "content": answer})
    return why


def why(
    *texts: str,
    tools: Sequence[ToolSpec] = (),
    before: Sequence[str] = BEFORE,
    had: Sequence[ToolSpec] = (),
    answered: bool = True,
) -> RowBegan:
    """Why a request begins a row after one of `before`, which was answered by "two"."""
    conversations = ProgramConversations()
    first = ProgramRequest(model="m", messages=messages(*before), tools=tuple(had))
    began(conversations, first, "two" if answered else None)
    return began(conversations, ProgramRequest(model="m", messages=messages(*texts), tools=tuple(tools)))


CASES: dict[str, tuple[Sequence[str], str, str]] = {
    "a clock in the system prompt": (
        ("s:Be brief. Now it is 12:01.", *WHOLE[1:], "u:more"),
        "system_prompt",
        "the system prompt differs at character 24: 'w it is 12:00.' became 'w it is 12:01.'",
    ),
    "no system prompt any more": ((*WHOLE[1:], "u:more"), "system_prompt", "became ''"),
    "a message that was edited in the middle": (
        (*WHOLE[:3], "t:", *WHOLE[4:], "u:more"),
        "edited_message",
        "message 3 (tool) differs at character 0: 'done' became ''",
    ),
    "another role": (
        (*WHOLE[:3], "u:done", *WHOLE[4:], "u:more"),
        "edited_message",
        "of the role user, and was of tool",
    ),
    "all later messages in another form": (
        (*WHOLE[:2], "a:ONE", "t:DONE", "u:AND?", "a:TWO", "u:more"),
        "edited_message",
        "message 2 (assistant) differs at character 0: 'one' became 'ONE'",
    ),
    "a window": (
        (*WHOLE[:2], *WHOLE[4:], "u:more"),
        "dropped_messages",
        "messages 2 to 3 of the earlier conversation, from the assistant's 'one' on, became 0 messages",
    ),
    "a summary": (
        (*WHOLE[:2], "u:a summary", *WHOLE[4:], "u:more"),
        "dropped_messages",
        "messages 2 to 3 of the earlier conversation, from the assistant's 'one' on, became 1 message; message 2 is "
        "now the user's 'a summary'",
    ),
    "another way from here on": ((*WHOLE[:2], "u:otherwise"), "dropped_messages", "messages 2 to 5"),
    "a reminder in between": (
        (*WHOLE[:3], "u:remember", *WHOLE[3:], "u:more"),
        "inserted_messages",
        "it has 1 message more than before, from message 3 (user) on: 'remember'",
    ),
    "the same again": (BEFORE, "repeated", "it repeats 5 messages of an earlier conversation, and adds nothing"),
    "more text in the last message": (
        (*BEFORE[:-1], "u:and? And then?"),
        "edited_message",
        "message 4 (user) differs at character 4: 'and?' became 'and? And then?': text was added to it",
    ),
    "something else": (("s:Be brief. Now it is 12:00.", "u:else"), "independent", "shares no message"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_named(case: str) -> None:
    texts, kind, sentence = CASES[case]
    began = why(*texts)
    assert began.kind == kind, began
    assert sentence in began.why


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        ([tool("a"), tool("c")], "the tools differ: c added, b removed"),
        ([tool("a"), tool("b", "new")], "the tools differ: b changed"),
        ([tool("b"), tool("a")], "the tools differ: they have another order"),
        ([], "the tools differ: a, b removed"),
        ([tool(f"t{i}") for i in range(9)], "the tools differ: t0, t1, t2, t3 and 5 more added, a, b removed"),
    ],
)
def test_other_tools_are_named(tools: list[ToolSpec], sentence: str) -> None:
    assert why(*WHOLE, "u:more", tools=tools, had=[tool("a"), tool("b")])[:2] == ("tools", sentence)


def test_what_comes_while_its_history_is_answered_is_parallel() -> None:
    began = why(*BEFORE[:4], "u:or?", answered=False)
    assert began.kind == "parallel" and "the same 4 messages" in began.why
    assert why("u:else", answered=False).kind == "independent"


def test_the_nearest_conversation_is_compared_and_one_without_an_answer_is_none() -> None:
    conversations = ProgramConversations()
    refused = ProgramRequest(model="m", messages=messages("u:long"))
    conversations.refused(conversations.place(refused)[0])

    def ask(*texts: str) -> RowBegan:
        return began(conversations, ProgramRequest(model="m", messages=messages(*texts)))

    assert [ask(*texts).kind for texts in (("u:one", "u:two"), ("u:three", "u:four"), ("u:five",))] == [
        *("", "independent", "independent")
    ]
    found = ask("u:three", "u:FOUR", "a:ok", "u:on")
    assert found[:2] == ("edited_message", "message 1 (user) differs at character 0: 'four' became 'FOUR'")


def test_plain_prompts_are_compared_as_texts() -> None:
    conversations = ProgramConversations()
    prompts: tuple[Any, ...] = ("one pen", "one pen costs", "else", (1, 2))
    kinds = [began(conversations, ProgramRequest(model="m", prompt=prompt), " is 2").kind for prompt in prompts]
    assert kinds == ["", "edited_message", "independent", "independent"]


@given(
    before=st.lists(st.sampled_from(["u:a", "a:b", "t:c", "u:d" * 3000]), min_size=1, max_size=6),
    now=st.lists(st.sampled_from(["s:x", "u:a", "a:b", "t:c", "u:\ud800" * 3000]), min_size=1, max_size=6),
)
def test_every_request_that_begins_a_row_is_told_why_in_a_bounded_sentence(before: list[str], now: list[str]) -> None:
    if now[: len(before) + 1] == [*before, "a:two"] and len(now) > len(before) + 1:
        return
    began = why(*now, before=before)
    assert 0 < len(began.why) < 400


@pytest.mark.parametrize("system", ["s:Be brief.", "s:Be kind."])
def test_a_transcript_that_grows_in_its_only_message_is_an_edit_and_not_independent(system: str) -> None:
    began = why(system, "u:Task: add. You said: two. Result: 3", before=("s:Be brief.", "u:Task: add."))
    assert began.kind == ("edited_message" if system == "s:Be brief." else "system_prompt")
    assert (began.parent, began.turns, began.known_by) == (0, 0, "messages")
    assert (began.kind == "system_prompt") or "message 1 (user) differs at character 10" in began.why
