"""The gateway through the `openai` client: what a program is answered, and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from agents.renderer.rendering import Renderer
from agents.scripted import ScriptedAgent
from contrib.common.http_server import RequestRefused
from contrib.external.dialects.openai_completions import OpenAICompletions
from contrib.external.dialects.reading import limit
from contrib.external.gateway import MAX_TOOLS, Gateway
from contrib.external.served.requests import read_wish
from contrib.external.tests.external_playing import ADD, Check, Play, calls, plain, playing, says
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.rollout.factory import EnvFactory


async def test_a_conversation_with_a_tool_is_one_row_of_exact_tokens(
    play: Play, check: Check, tiny_model: Path
) -> None:
    async with play(calls("add", a=1, b=2), "3") as program:
        first = await program.chat("What is 1 + 2?", tools=[ADD])
        [call] = first.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
        assert (first.choices[0].finish_reason, first.choices[0].message.content) == ("tool_calls", None)
        answer = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        second = await program.chat("What is 1 + 2?", first.choices[0].message, answer, tools=[ADD])
        assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("3", "stop")
        episode = await program.end()

    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True)
    assert "turns_at_once" not in episode.info
    [row] = episode.rows
    (prompt, _, _), (longer, _, _) = program.requests
    said = episode.turns[0].token_ids
    assert longer[: len(prompt) + len(said)] == (*prompt, *said), "bridged onto what was sampled"
    assert tuple(row.token_ids) == (*longer, *episode.turns[1].token_ids)
    assert "# Tools" in Renderer(tiny_model).decode(prompt), "the program's tools are in the prompt"
    usage = second.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(longer), len(episode.turns[1].token_ids))
    assert usage.total_tokens == len(row.token_ids)
    tool_message = episode.turns[1].observation[0]
    assert tool_message["tool_call_id"] == episode.turns[0].tool_calls[0].id, "the record has the turn's own ids"
    assert call.id != episode.turns[0].tool_calls[0].id, "which come again in every turn, and a program's do not"
    check(episode)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_each_route_that_is_read_may_be_asked_for_its_head(method: str) -> None:
    gateway, sent = Gateway(), []
    headers = [(b"authorization", f"Bearer {gateway.open().token}".encode())]

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    for path in ("/v1/models", "/v1/models/policy"):
        await gateway({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    assert [message["status"] for message in sent if "status" in message] == [200, 200]


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert limit({"max_tokens": 16.0}, "max_tokens") == 16
    assert read_wish({"seed": 7.0, "limits": {"max_turns": 2.0}}, EpisodeLimits()).limits.max_turns == 2
    assert OpenAICompletions().read({"model": "m", "prompt": [1.0, 2]}, {}).prompt == (1, 2)
    for wrong in (16.5, True, float("inf"), 0.0, "16"):
        with pytest.raises(RequestRefused, match="it is a whole number from 1 on"):
            limit({"max_tokens": wrong}, "max_tokens")


async def test_a_stream_says_the_same_as_the_whole(play: Play, check: Check) -> None:
    async with play(calls("add", a=1, b=2), "three") as program:
        stream = await program.chat("1 + 2?", tools=[ADD], stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        [delta] = [d for c in chunks for choice in c.choices for d in choice.delta.tool_calls or ()]
        assert (delta.index, delta.function.name, json.loads(delta.function.arguments)) == (0, "add", {"a": 1, "b": 2})
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
        assert all(chunk.usage is None for chunk in chunks[:-1])

        call = {"id": delta.id, "type": "function", "function": {"name": "add", "arguments": delta.function.arguments}}
        history = [
            {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]},  # the same text in parts
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": delta.id, "content": "3"},
        ]
        async with program.client.chat.completions.stream(model="m", messages=history, tools=[ADD]) as helper:  # type: ignore[list-item]
            final = await helper.get_final_completion()
        assert final.choices[0].message.content == "three"
        episode = await program.end()
    assert (len(episode.turns), len(episode.rows)) == (2, 1)
    check(episode)


async def test_two_conversations_in_turns_leave_two_whole_rows(play: Play, check: Check, tiny_model: Path) -> None:
    def said(text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text}

    async with play("a1", "b1", "a2", "b2", "a3") as program:
        helper = {"role": "developer", "content": "You help."}
        await program.chat("main")
        await program.chat(helper, "look it up")
        await program.chat("main", said("a1"), "more")
        await program.chat(helper, "look it up", said("b1"), "again")
        await program.chat("main", said("a1"), "more", said("a2"), "and?")
        episode = await program.end()
    assert [turn.message["content"] for turn in episode.turns] == ["b1", "b2", "a1", "a2", "a3"]
    assert [turn.starts_row for turn in episode.turns] == [True, False, True, False, False]
    assert episode.turns[0].observation[0]["role"] == "system"
    prompts, samplings, ids = zip(*program.requests, strict=True)
    assert ids == ("e0/0", "e0/context1/0", "e0/1", "e0/context1/1", "e0/2")
    assert len({sampling.seed for sampling in samplings}) == 5
    assert tuple(episode.rows[1].token_ids[: len(prompts[4])]) == prompts[4]
    check(episode)


def test_equal_tools_are_one_object_and_1_is_neither_true_nor_a_fraction() -> None:
    """An agent renders a list of tools that it knows only once, so that another list must not pass for it."""
    gateway = Gateway()

    def tools(text: str) -> Any:
        function = {"name": "f", "description": "", "parameters": json.loads(f'{{"minimum": {text}}}')}
        return gateway.shared_tools(({"type": "function", "function": function},))

    first = tools("1")
    assert tools("1") is first
    assert [str(tools(text)[0]["function"]["parameters"]["minimum"]) for text in ("1.0", "true")] == ["1.0", "True"]
    for number in range(2, 2 + MAX_TOOLS):
        tools(str(number))
    assert tools("1") is not first, "only a few are kept"


async def test_limits_and_stops_of_a_request_hold(play: Play, check: Check) -> None:
    async with play("How many pens are added?", "46 boxes hold pens") as program:
        short = await program.chat("hi", max_completion_tokens=2)
        assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 2)
        stopped = await program.chat("again", stop=["hold"])
        assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("46 boxes ", "stop")
        known = {"role": "assistant", "content": "46 boxes "}
        with pytest.raises(openai.BadRequestError, match="whole number"):
            await program.chat("again", known, "so?", max_tokens=0)
        episode = await program.end()
    [first, second] = program.requests
    assert (first[1].max_tokens, second[1].stop) == (2, ("hold",))
    assert "hold" in episode.turns[1].message["content"], "the record has all that was sampled, up to the stop"
    assert episode.turns[1].finish_reason == "stop"
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), "the program itself cut the answer"
    check(episode)


async def test_an_answer_that_our_own_limit_cut_is_truncated(play: Play) -> None:
    async with play("How many pens?", limits=EpisodeLimits(max_turn_tokens=2)) as program:
        cut = await program.chat("hi", max_tokens=100)
        assert cut.choices[0].finish_reason == "length"
        assert (await program.end()).outcome is Outcome.TRUNCATED


async def test_plain_completions_are_turns_as_well(play: Play, check: Check, tiny_model: Path) -> None:
    renderer = Renderer(tiny_model)
    async with play("88 pens", "52 pens", "46 boxes", "hold") as program:
        complete = program.client.completions.create
        first = await complete(model="m", prompt="How many ", max_tokens=3)
        text = "How many " + first.choices[0].text
        second = await complete(model="m", prompt=text + " or ")
        assert second.choices[0].text == "52 pens"
        ids = renderer.encode("How many pens?")
        third = await complete(model="m", prompt=ids, stop="boxes")
        assert third.choices[0].text == "46 "
        stream = await complete(model="m", prompt="88 ", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "hold"
        episode = await program.end()
    prompts = [prompt for prompt, _, _ in program.requests]
    assert list(prompts[0]) == renderer.encode("How many ")
    assert prompts[1][: len(prompts[0]) + 3] == (*prompts[0], *episode.turns[0].token_ids), "goes on with the row's ids"
    assert list(prompts[2]) == ids
    assert [turn.starts_row for turn in episode.turns] == [True, False, True, True]
    assert episode.turns[0].observation == ({"role": "user", "content": "How many "},)
    check(episode)


async def test_an_agent_of_messages_completes_no_prompt(play: Play) -> None:
    agent = ScriptedAgent(lambda messages: {"role": "assistant", "content": "hi"})
    async with play(agent=agent) as program:
        with pytest.raises(openai.APIError):
            await program.client.completions.create(model="m", prompt="a")
        episode = await program.episode()
    assert episode.outcome is Outcome.ENV_FAULT
    assert "ScriptedAgent answers messages only" in episode.error


async def test_what_is_no_request_is_refused_and_is_no_turn(play: Play) -> None:
    async with play("fine") as program:
        url, headers = f"{program.base_url}/chat/completions", {"Authorization": f"Bearer {program.token}"}
        good = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        async with plain(headers=headers) as client:
            for text in ("{", "[" * 100_000, "5"):
                assert (await client.post(url, content=text)).status_code == 400
            form = await client.post(url, data={"model": "m"})
            assert (form.status_code, form.json()["error"]["code"]) == (400, "no_json")
            assert "its content type is 'application/x-www-form-urlencoded'" in form.json()["error"]["message"]
            assert (await client.get(url)).status_code == 405
            assert (await client.post(f"{program.base_url}/embeddings", json={})).status_code == 404
            assert (await client.post(url, content=b" " * (16 * 2**20 + 1))).status_code == 413
            done = await client.post(url, json={**good, "temperature": 0.2, "top_p": 1, "tool_choice": "auto"})
            assert done.headers["x-forge-env-ignored"] == "temperature, top_p"
        episode = await program.end()
    assert (len(episode.turns), episode.reward) == (1, 1.0)


async def test_a_token_opens_its_own_session_and_nothing_else(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    one, two = says(tiny_model, "for one"), says(tiny_model, "for two")
    async with playing(factory, one, tmp_path, seed=1) as first, playing(factory, two, tmp_path, seed=2) as second:
        assert first.base_url == second.base_url and first.token != second.token
        answers = await asyncio.gather(second.chat("hi"), first.chat("hi"))
        assert [a.choices[0].message.content for a in answers] == ["for two", "for one"]
        for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": first.token}):
            async with plain(headers=headers) as client:
                done = await client.get(f"{first.base_url}/models")
                assert (done.status_code, done.json()["error"]["code"]) == (401, "invalid_api_key")
        ended = await first.end()
        with pytest.raises(openai.AuthenticationError):
            await first.chat("hi")  # its token is worth nothing any more
        assert [e.reward for e in (ended, await second.end())] == [1.0, 1.0]
