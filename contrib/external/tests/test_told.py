"""What clients say of their requests, in the forms in which four coding agents have sent it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from contrib.external.conversations import ProgramConversations
from contrib.external.requests import ProgramRequest
from contrib.external.tests.test_row_began import began
from contrib.external.told import RULES, Told, read_rules, told
from forge_env.core.errors import UserError
from forge_env.core.protocols import RowBegan
from forge_env.core.types import Message

USER: tuple[Message, ...] = ({"role": "user", "content": "go"},)


OPENCODE = {b"user-agent": b"opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"}
QWEN_CODE = {b"user-agent": b"QwenCode/0.24.4 (linux; x64)"}
MEMORY = "You are now acting as the managed memory extraction subagent"


def says(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def form_of(*names: str) -> dict[str, Any]:
    """A request for an answer as an object with these keys."""
    return {"output_config": {"format": {"type": "json_schema", "schema": {"required": list(names)}}}}


def codex(**metadata: str) -> dict[bytes, bytes]:
    return {b"x-codex-turn-metadata": json.dumps(metadata).encode()}


def claude(session: str, **more: str) -> dict[bytes, bytes]:
    named = {f"x-claude-code-{name.replace('_', '-')}".encode(): value.encode() for name, value in more.items()}
    return {b"x-claude-code-session-id": session.encode(), **named}


def user_id(session: str) -> dict[str, Any]:
    return {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": session})}}


@pytest.mark.parametrize(
    ("headers", "body", "agent", "parent"),
    [
        (claude("s1", agent_id="a1"), user_id("s1"), "a1", "s1"),
        (claude("s1", agent_id="a2", parent_agent_id="a1"), {}, "a2", "a1"),
        ({}, user_id("s1"), "s1", ""),
        (codex(session_id="s", thread_id="t1", request_kind="turn"), {}, "t1", ""),
        (codex(session_id="s", thread_id="t2", parent_thread_id="t1"), {}, "t2", "t1"),
        ({**codex(thread_id="t2"), b"x-codex-parent-thread-id": b"t1"}, {}, "t2", "t1"),
        ({b"x-session-id": b"s2", b"x-parent-session-id": b"s1"}, {}, "s2", "s1"),
        ({}, {"metadata": {"session_id": "s2", "parent_session_id": "s1"}}, "s2", "s1"),
        ({b"x-codex-turn-metadata": b"{no json"}, {"metadata": "text"}, "", ""),
        ({}, [], "", ""),
    ],
)
def test_agents_and_their_parents_are_named(headers: Any, body: Any, agent: str, parent: str) -> None:
    said = told(headers, body, USER)
    assert (said.agent, said.parent, said.auxiliary) == (agent, parent, "")


@pytest.mark.parametrize(
    ("headers", "body", "messages", "what"),
    [
        (codex(request_kind="compaction"), {}, USER, "a summary"),
        (codex(request_kind="prewarm"), {}, USER, "a helper of Codex"),
        (claude("s", request_class="compaction"), {}, USER, "a summary"),
        (claude("s", request_class="auxiliary"), {}, USER, "a helper of Claude Code"),
        (claude("s"), {}, (says("user", "quota"),), "a probe of the quota"),
        (claude("s"), {}, (says("user", "What is a quota?"),), ""),
        (claude("s"), form_of("title"), USER, "a title"),
        (claude("s"), form_of("title", "year"), USER, ""),
        (OPENCODE, {}, (says("system", "You are a title generator. You"), *USER), "a title"),
        (QWEN_CODE, {}, (says("system", f"{MEMORY}. You"), *USER), "a memory agent"),
        (QWEN_CODE, {}, (says("user", f"{MEMORY}. You"),), "a memory agent"),
        (claude("s", request_class="main"), {}, USER, ""),
    ],
)
def test_auxiliary_requests_are_known_by_what_clients_send(headers: Any, body: Any, messages: Any, what: str) -> None:
    assert told(headers, body, messages).auxiliary.partition(":")[0] == what


@pytest.mark.parametrize("headers", [{}, {b"user-agent": b"python-httpx/0.28"}, codex(request_kind="turn")])
@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({"max_tokens": 1}, (says("user", "quota"),)),
        (form_of("title"), USER),
        ({}, (says("system", "You are a title generator. You"), *USER)),
        ({}, (says("system", MEMORY), *USER)),
        ({}, (says("user", MEMORY),)),
    ],
)
def test_what_one_client_sends_as_auxiliary_is_work_of_every_other_program(
    headers: Any, body: Any, messages: Any
) -> None:
    assert told(headers, body, messages).auxiliary == ""


def test_no_text_holds_up_the_rules_of_a_user() -> None:
    hostile = (says("user", "a" * 100_000 + "\ud800"),)
    assert told({}, {}, hostile, read_rules("user: ^(a+)+$")).auxiliary == ""
    assert told({}, {}, hostile, read_rules("user: ^(a+)+.$")).auxiliary


def test_the_rules_of_a_user_come_first_and_may_say_that_a_request_is_work() -> None:
    rules = (*read_rules("!x-codex-turn-metadata.request_kind: ^compaction$\n\n max_tokens: ^1$ "), *RULES)
    assert told({}, {"max_tokens": 1}, USER, rules).auxiliary == "max_tokens matches '^1$'"
    assert told({}, {"max_tokens": 10}, USER, rules).auxiliary == ""
    assert told(codex(request_kind="compaction"), {}, USER, rules).auxiliary == ""
    assert told(codex(request_kind="prewarm"), {}, USER, rules).auxiliary


@pytest.mark.parametrize(
    "text", ["title", ": x", "system:", "system: (", "!: x", "system: (?=a)", "system: a{1000}{1000}{1000}"]
)
def test_a_rule_that_is_none_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"auxiliary (is|has)"):
        read_rules(text)


def request(*texts: str, **said: str) -> ProgramRequest:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    messages = tuple({"role": roles[text[0]], "content": text[2:]} for text in texts)
    return ProgramRequest(model="m", messages=messages, told=Told(**said))  # type: ignore[arg-type]


def calls(**arguments: str) -> dict[str, Any]:
    function = {"name": "agent", "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": "1", "type": "function", "function": function}]}


def test_a_sub_agent_that_nobody_names_is_known_by_the_call_that_has_its_prompt() -> None:
    conversations = ProgramConversations()
    assert began(conversations, request("u:go"))[:2] == ("", "")
    main = request("u:go", "a:ok", "u:on")
    conversations.answered(
        conversations.place(main)[0], main, {"role": "assistant", "content": "", **calls(prompt="count all files")}
    )
    found = began(conversations, request("s:You help.", "u:It is Monday. count all files\n"))
    assert (found.kind, found.parent, found.turns, found.known_by) == ("sub_agent", 0, 2, "call")
    assert began(conversations, request("s:You help.", "u:count all flies")).kind == "independent"


def test_a_named_parent_counts_more_than_equal_messages() -> None:
    conversations = ProgramConversations()
    for name in ("main", "other"):
        began(conversations, request("u:the same", agent=name))
    found = began(
        conversations, request("u:the same", "a:ok", "u:sub", agent="sub", parent="main", parent_field="x-parent")
    )
    assert (found.kind, found.parent, found.known_by, found.agent) == ("sub_agent", 0, "x-parent", "sub")


def test_equal_conversations_of_two_agents_go_on_each_in_its_own() -> None:
    conversations = ProgramConversations()
    for name in ("a", "b"):
        began(conversations, request("u:the same", agent=name))
    places = [conversations.place(request("u:the same", "a:ok", "u:on", agent=name))[0].number for name in "ab"]
    assert places == [0, 1]


def test_an_auxiliary_request_continues_no_work_and_no_work_comes_from_it() -> None:
    conversations = ProgramConversations()
    title = began(conversations, request("s:You are a title generator", "u:go", auxiliary="a title"))
    assert title[:2] == ("auxiliary", "a title")
    assert began(conversations, request("s:Work.", "u:go")) == RowBegan("", "")
    summary = request("s:Work.", "u:go", "a:ok", "u:summarise", auxiliary="a summary")
    found = began(conversations, summary)
    assert (found.kind, found.parent, found.turns) == ("auxiliary", 1, 1)
    placed, new = conversations.place(replace(summary, messages=(*summary.messages[:3], USER[0]), told=Told()))
    assert (placed.number, len(new)) == (1, 1), "the work goes on where it was"
