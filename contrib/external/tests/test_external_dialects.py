"""The gateway through the clients of Anthropic's Messages and OpenAI's Responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic

from agents.renderer.rendering import Renderer
from agents.scripted import ScriptedAgent
from contrib.common.http_server import RequestRefused
from contrib.common.json_text import read as read_json
from contrib.external.conversations import ProgramConversations
from contrib.external.dialects.anthropic_messages import AnthropicMessages
from contrib.external.dialects.dialect import Dialect
from contrib.external.dialects.openai_chat import OpenAIChat
from contrib.external.requests import ProgramRequest
from contrib.external.tests.external_playing import Check, Play, Playing, calls, plain
from forge_env.core.types import EpisodeLimits, Outcome

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
FUNCTION: Any = {"type": "function", "name": "add", "description": "Add.", "parameters": SCHEMA}
CUSTOM: Any = {"name": "add", "description": "Add.", "input_schema": SCHEMA}

NAMESPACE: Any = {"type": "namespace", "name": "sums", "description": "Sums.", "tools": [FUNCTION, {"type": "custom"}]}


@asynccontextmanager
async def claude(program: Playing) -> AsyncIterator[Any]:
    """Anthropic's client with what a program is told."""
    url = program.base_url.removesuffix("/v1")
    async with AsyncAnthropic(
        base_url=url, api_key=program.token, max_retries=0, http_client=plain(anthropic)
    ) as client:
        yield client


async def test_messages_with_a_tool_are_one_row(play: Play, check: Check, tiny_model: Path) -> None:
    async with play(calls("add", a=1, b=2), "3") as program, claude(program) as client:
        options: Any = {"model": "any", "max_tokens": 100, "system": [{"type": "text", "text": "Add."}]}
        asked: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
        first = await client.messages.create(messages=asked, tools=[CUSTOM], **options)
        [use] = first.content
        assert (use.type, use.name, use.input) == ("tool_use", "add", {"a": 1, "b": 2})
        assert (first.stop_reason, first.stop_sequence, first.role) == ("tool_use", None, "assistant")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "3"}]}
        asked += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = await client.messages.create(messages=asked, tools=[CUSTOM], extra_body={"top_k": 2}, **options)
        assert (second.content[0].text, second.stop_reason) == ("3", "end_turn")
        episode = await program.end()

    assert (episode.outcome, episode.reward, len(episode.rows)) == (Outcome.SCORED, 1.0, 1)
    (prompt, _, _), (longer, _, _) = program.requests
    assert longer[: len(prompt)] == prompt
    assert (second.usage.input_tokens, second.usage.output_tokens) == (len(longer), len(episode.turns[1].token_ids))
    assert [m["role"] for m in episode.turns[0].observation] == ["system", "user"]
    assert [m["role"] for m in episode.turns[1].observation] == ["tool"]
    assert "# Tools" in Renderer(tiny_model).decode(prompt)
    check(episode)


async def test_tokens_are_counted_and_are_no_turn(play: Play, check: Check) -> None:
    """Before, within and after a conversation: the numbers are those of the prompts, and the record has none of it."""
    async with play("three", "four") as program, claude(program) as client:
        asked: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
        options: Any = {"model": "any", "system": "Add.", "tools": [CUSTOM]}
        counts = [(await client.messages.count_tokens(messages=asked, **options)).input_tokens]
        first = await client.messages.create(messages=asked, max_tokens=100, **options)
        asked += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "And 2 + 2?"}]
        at_once = [client.messages.count_tokens(messages=asked, **options) for _ in range(3)]
        counts += [count.input_tokens for count in await asyncio.gather(*at_once)]
        other = await client.messages.count_tokens(model="any", messages=[{"role": "user", "content": "Hi."}])
        second = await client.messages.create(messages=asked, max_tokens=100, **options)
        for changed in ({"max_tokens": 9}, {"mcp_servers": [{"url": "http://x"}]}, {"messages": []}):
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.count_tokens(**{"messages": asked, **options}, extra_body=changed)
        episode = await program.end()
    assert counts == [first.usage.input_tokens, *[second.usage.input_tokens] * 3]
    assert 0 < other.input_tokens < counts[0]
    assert (len(episode.turns), len(episode.rows)) == (2, 1)
    assert episode.lineage == ()
    check(episode)


async def test_an_agent_without_tokens_counts_none(play: Play) -> None:
    agent = ScriptedAgent(lambda messages: {"role": "assistant", "content": "three"})
    async with play(agent=agent) as program, claude(program) as client:
        asked: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
        with pytest.raises(anthropic.BadRequestError, match="ScriptedAgent counts no tokens"):
            await client.messages.count_tokens(model="any", messages=asked)
        await client.messages.create(model="any", max_tokens=9, messages=asked)
        episode = await program.end()
    assert len(episode.turns) == 1


async def test_messages_in_a_stream(play: Play) -> None:
    said: Any = {**calls("add", a=1, b=2), "content": "I add."}
    async with play(said, "three STOP four") as program, claude(program) as client:
        [model] = [model async for model in client.models.list()]
        assert (model.id, model.type) == ("policy", "model")
        options: Any = {"model": model.id, "max_tokens": 100}
        asked: list[Any] = [{"role": "user", "content": "1 + 2?"}]
        async with client.messages.stream(messages=asked, tools=[CUSTOM], **options) as stream:
            kinds = [event.type async for event in stream]
            first = await stream.get_final_message()
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
        assert [block.type for block in first.content] == ["text", "tool_use"]
        assert (first.content[0].text.strip(), first.content[1].input) == ("I add.", {"a": 1, "b": 2})
        assert (first.stop_reason, first.usage.output_tokens > 0) == ("tool_use", True)
        result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "3"}
        asked += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        async with client.messages.stream(messages=asked, tools=[CUSTOM], stop_sequences=["STOP"], **options) as stream:
            second = await stream.get_final_message()
        assert (second.content[0].text, second.stop_reason, second.stop_sequence) == ("three ", "stop_sequence", "STOP")
        episode = await program.end()
    assert (len(episode.turns), len(episode.rows)) == (2, 1)


async def test_a_limit_above_the_room_is_cut_to_the_room_in_every_dialect(play: Play) -> None:
    async with play("1", "2", "3", limits=EpisodeLimits(max_tokens=500)) as program, claude(program) as client:
        await program.chat("hi", max_tokens=32_000)
        await program.client.responses.create(model="any", input="hello", max_output_tokens=32_000)
        asked: Any = [{"role": "user", "content": "how do you do?"}]
        await client.messages.create(model="any", messages=asked, max_tokens=32_000)
        episode = await program.end()
    assert all(sampling.max_tokens == 500 - len(prompt) for prompt, sampling, _ in program.requests)
    assert (episode.outcome, len(episode.turns)) == (Outcome.SCORED, 3), episode.error


async def test_responses_with_a_function_are_one_row(play: Play, check: Check) -> None:
    async with play(calls("add", a=1, b=2), "3", "bye") as program:
        responses: Any = program.client.responses
        options: Any = {"model": "any", "tools": [FUNCTION], "instructions": "Add."}
        first = await responses.create(input="What is 1 + 2?", **options)
        [call] = first.output
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1, "b": 2})
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        asked = [{"role": "user", "content": "What is 1 + 2?"}, *first.output, output]
        second = await responses.create(input=asked, **options)
        assert (second.output_text, second.status) == ("3", "completed")
        third = await responses.create(input="thanks", previous_response_id=second.id, **options)
        assert (third.output_text, third.previous_response_id) == ("bye", second.id)
        with pytest.raises(openai.BadRequestError, match="has given no such response"):
            await responses.create(input="x", model="any", previous_response_id="resp_other")
        episode = await program.end()
    assert (episode.reward, len(episode.turns), len(episode.rows)) == (1.0, 3, 1)
    assert [m["role"] for m in episode.turns[0].observation] == ["system", "user"]
    assert [[m["role"] for m in turn.observation] for turn in episode.turns[1:]] == [["tool"], ["user"]]
    assert third.usage.input_tokens == len(program.requests[2][0])
    check(episode)


async def test_responses_in_a_stream(play: Play) -> None:
    said: Any = {**calls("add", a=1, b=2), "content": "I add."}
    async with play(said) as program:
        responses: Any = program.client.responses
        async with responses.stream(input="1 + 2?", model="any", tools=[FUNCTION]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        kinds = [event.type for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
        assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert final.output_text.strip() == "I add."
        assert json.loads(final.output[1].arguments) == {"a": 1, "b": 2}
        assert (await program.end()).reward == 1.0


async def test_what_cannot_be_served_is_left_out_and_named(play: Play, tiny_model: Path) -> None:
    """The request of a coding agent: built-in tools, marks for a cache, edits of its context, a system message."""
    mark = {"cache_control": {"type": "ephemeral"}}
    asked = {
        "model": "m",
        "max_tokens": 32_000,
        "system": [{"type": "text", "text": "Add.", **mark}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", **mark}]},
            {"role": "system", "content": "Today."},
        ],
        "tools": [CUSTOM, {"type": "web_search_20250305", "name": "web_search"}, {**CUSTOM, "defer_loading": True}],
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "mcp_servers": [],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
    }
    named = [
        "context_management", "thinking", "output_config.effort", "system.cache_control", "messages.cache_control",
        "tools web_search_20250305", "tools.defer_loading",
    ]  # fmt: skip
    async with play("hello") as program:
        headers = {"x-api-key": program.token, "anthropic-version": "2023-06-01", "anthropic-beta": "none-2030-01-01"}
        async with plain(headers=headers) as client:
            url = f"{program.base_url}/messages"
            answered = await client.post(f"{url}?beta=true", json=asked)
            counted = await client.post(f"{url}/count_tokens?beta=true", json={**asked, "max_tokens": None})
        assert answered.headers["x-forge-env-ignored"] == ", ".join(named)
        assert (answered.status_code, counted.status_code) == (200, 200)
        assert counted.json()["input_tokens"] == answered.json()["usage"]["input_tokens"]
        episode = await program.end()
    assert [m["role"] for m in episode.turns[0].observation] == ["system", "user", "system"]
    assert {*named} <= episode.info["ignored_fields"].keys()
    prompt = Renderer(tiny_model).decode(program.requests[0][0])
    assert '"add"' in prompt and "web_search" not in prompt


async def test_a_function_of_a_namespace_is_called_and_sent_back_under_its_own_name(
    play: Play, check: Check, tiny_model: Path
) -> None:
    async with play(calls("sums__add", a=1, b=2), calls("add", a=1, b=2), "3") as program:
        responses: Any = program.client.responses
        asked: list[Any] = [{"role": "developer", "content": "Add."}, {"role": "user", "content": "1 + 2?"}]
        options: Any = {"model": "any", "tools": [NAMESPACE, FUNCTION], "store": False}
        for namespace in ("sums", None):
            async with responses.stream(input=asked, **options) as stream:
                done = [event async for event in stream if event.type == "response.output_item.done"]
            [call] = [event.item for event in done]
            assert (call.name, call.namespace) == ("add", namespace)
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
            asked += [call.model_dump(exclude_none=True), output]
        assert (await responses.create(input=asked, **options)).output_text == "3"
        episode = await program.end()
    assert (len(episode.turns), len(episode.rows)) == (3, 1), episode.info
    prompt = Renderer(tiny_model).decode(program.requests[0][0])
    assert '"sums__add"' in prompt and '"add"' in prompt
    check(episode)


async def test_a_probe_is_answered_without_a_token(play: Play) -> None:
    async with play("hi") as program, plain() as client:
        root = program.base_url.removesuffix("/v1")
        for url in (root, f"{root}/", f"{root}/v1", f"{root}/v1/messages?beta=true"):
            assert ((await client.head(url)).status_code, (await client.head(url)).content) == (200, b"")
        assert (await client.get(f"{root}/v1/messages")).status_code == 401
        await program.chat("hi")
        assert "refused_requests" not in (await program.end()).info


def _sent(messages: list[dict[str, Any]]) -> ProgramRequest:
    return AnthropicMessages().read({"model": "m", "max_tokens": 5, "messages": messages}, {})


TEXT, USE = {"type": "text", "text": "I add."}, {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 16}}


@pytest.mark.parametrize(
    "returned",
    [
        [TEXT, USE],
        [USE, TEXT],
        [{"type": "text", "text": ""}, TEXT, {"type": "text", "text": " "}, USE],
        [{"type": "text", "text": "I "}, {"type": "text", "text": "add."}, {**USE, "id": "other"}],
        [{"type": "thinking", "thinking": "hm", "signature": ""}, TEXT, USE],
        [{"type": "redacted_thinking", "data": "x"}, TEXT, {**USE, "input": {"a": 16.0}}],
    ],
    ids=["same", "order", "empty texts", "parts", "thinking", "redacted, number"],
)
def test_an_answer_that_comes_back_in_another_form_continues_its_row(returned: list[dict[str, Any]]) -> None:
    conversations = ProgramConversations()
    asked: list[dict[str, Any]] = [{"role": "user", "content": "16?"}]
    first, _ = conversations.place(_sent(asked))
    call = {"id": "t", "type": "function", "function": {"name": "add", "arguments": '{"a":   16.0}'}}
    conversations.answered(first, _sent(asked), {"role": "assistant", "content": "\nI add.\n", "tool_calls": [call]})
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "16"}]}
    again, new = conversations.place(_sent([*asked, {"role": "assistant", "content": returned}, result]))
    assert (again.number, [m["role"] for m in new]) == (0, ["tool"])


@pytest.mark.parametrize("is_dropped", [True, False])
def test_an_empty_answer_that_is_dropped_continues_its_row(is_dropped: bool) -> None:
    conversations = ProgramConversations()
    asked: list[dict[str, Any]] = [{"role": "user", "content": "16?"}]
    first, _ = conversations.place(_sent(asked))
    conversations.answered(first, _sent(asked), {"role": "assistant", "content": ""})
    kept = [] if is_dropped else [{"role": "assistant", "content": " "}]
    again, new = conversations.place(_sent([*asked, *kept, {"role": "user", "content": "Go on."}]))
    assert (again.number, [m["content"] for m in new]) == (0, ["Go on."])
    conversations.answered(
        again, _sent([*asked, *kept, {"role": "user", "content": "Go on."}]), {"role": "assistant", "content": "16"}
    )
    repeated, new = conversations.place(_sent(asked))
    assert (repeated.number, len(new)) == (1, 1)


def from_user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [{"role": "user", "content": list(blocks)}]}


RESULT = {"type": "tool_result", "tool_use_id": "t"}
DOCUMENT = {"type": "document", "title": "Plan", "context": "Draft", "source": {"type": "text", "data": "Go."}}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": read_json('{"x": 1.10}')}}]}


@pytest.mark.parametrize(
    ("dialect", "body", "text"),
    [
        (OpenAIChat(), {"messages": [{"role": "assistant", "content": None, "refusal": "No."}]}, "No."),
        (AnthropicMessages(), from_user(DOCUMENT), "Plan\nDraft\nGo."),
        (AnthropicMessages(), from_user({**RESULT, "content": [], "is_error": True}), "Error"),
        (AnthropicMessages(), from_user({**RESULT, "content": "disk full", "is_error": True}), "disk full"),
    ],
)
def test_all_that_a_message_says_is_read(dialect: Dialect, body: Any, text: str) -> None:
    assert dialect.read(body, {}).messages[-1]["content"] == text


def test_arguments_that_are_no_text_keep_their_digits() -> None:
    [message] = OpenAIChat().read({"messages": [CALL]}, {}).messages
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": 1.10}'


def test_a_schema_of_a_tool_that_is_a_text_is_refused() -> None:
    body = {"messages": [{"role": "user", "content": "?"}]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": "{}"}}]
    with pytest.raises(RequestRefused, match="the schema of the tool 'f' is .*; it is an object"):
        OpenAIChat().read({**body, "tools": tools}, {})
