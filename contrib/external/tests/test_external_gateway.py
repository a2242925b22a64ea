"""The gateway through the `openai` client: what a program is answered, and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from agents.renderer.rendering import Renderer
from agents.scripted import ScriptedAgent
from contrib.common.http_server import RequestRefused
from contrib.external.dialects.openai_completions import OpenAICompletions
from contrib.external.dialects.reading import limit
from contrib.external.gateway import MAX_TOOLS, Gateway
from contrib.external.served.requests import read_wish
from contrib.external.tests.external_playing import Playing, calls, opened, playing, says
from contrib.records.audit import audit, open_decoder
from forge_env.core.episode import Episode, write_jsonl
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.rollout.factory import EnvFactory

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


@pytest.fixture
async def factory(tmp_path: Path) -> AsyncIterator[EnvFactory]:
    async with opened(folder=tmp_path) as opened_factory:
        yield opened_factory


def check(episode: Episode, model: Path, folder: Path) -> None:
    """All that can be checked of a record: its rules, its digests, and that its tokens say what its messages say."""
    file = folder / "episodes.jsonl"
    write_jsonl(file, [episode])
    found = audit(file, open_decoder(model))
    assert (found.problems, found.episodes, found.decoded_turns) == ([], 1, len(episode.turns))
    assert Episode.from_json(episode.to_json()) == episode


async def test_a_conversation_with_a_tool_is_one_row_of_exact_tokens(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    agent = says(tiny_model, calls("add", a=1, b=2), "3")
    async with playing(factory, agent, tmp_path) as program:
        first = await program.chat("What is 1 + 2?", tools=[TOOL])
        [call] = first.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
        assert (first.choices[0].finish_reason, first.choices[0].message.content) == ("tool_calls", None)
        answer = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        second = await program.chat("What is 1 + 2?", first.choices[0].message, answer, tools=[TOOL])
        assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("3", "stop")
        episode = await program.end()

    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True)
    [row] = episode.rows
    (prompt, _, _), (longer, _, _) = agent._policy.asked  # type: ignore[attr-defined]
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
    check(episode, tiny_model, tmp_path)


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


async def test_the_sync_client_and_models(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    async with playing(factory, says(tiny_model, "hello"), tmp_path) as program:

        def ask() -> tuple[str, str, str]:
            with OpenAI(base_url=program.base_url, api_key=program.token, max_retries=0) as client:
                [model] = client.models.list()
                same = client.models.retrieve(model.id)
                done = client.chat.completions.create(model=model.id, messages=[{"role": "user", "content": "hi"}])
                return model.id, same.id, str(done.choices[0].message.content)

        assert await asyncio.to_thread(ask) == ("policy", "policy", "hello")
        assert (await program.end()).reward == 1.0


async def test_a_stream_says_the_same_as_the_whole(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    agent = says(tiny_model, calls("add", a=1, b=2), "three")
    async with playing(factory, agent, tmp_path) as program:
        stream = await program.chat("1 + 2?", tools=[TOOL], stream=True, stream_options={"include_usage": True})
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
        async with program.client.chat.completions.stream(model="m", messages=history, tools=[TOOL]) as helper:  # type: ignore[list-item]
            final = await helper.get_final_completion()
        assert final.choices[0].message.content == "three"
        episode = await program.end()
    assert (len(episode.turns), len(episode.rows)) == (2, 1)
    check(episode, tiny_model, tmp_path)


async def test_a_history_that_was_rewritten_begins_a_new_row(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    async with playing(factory, says(tiny_model, "one", "two", "three"), tmp_path) as program:
        await program.chat("first")
        await program.chat("a summary of what was said", "go on")
        await program.chat("a summary of what was said", "go on", {"role": "assistant", "content": "two"}, "and then?")
        episode = await program.end()
    assert [turn.starts_row for turn in episode.turns] == [True, True, False]
    assert [m["content"] for m in episode.turns[1].observation] == ["a summary of what was said", "go on"]
    assert [m["content"] for m in episode.turns[2].observation] == ["and then?"]
    assert (len(episode.rows), episode.is_trainable) == (2, True)
    check(episode, tiny_model, tmp_path)


async def test_two_conversations_in_turns_leave_two_whole_rows(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    agent = says(tiny_model, "a1", "b1", "a2", "b2", "a3")

    def said(text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text}

    async with playing(factory, agent, tmp_path) as program:
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
    asked = agent._policy.asked  # type: ignore[attr-defined]
    ids = [request_id for _, _, request_id in asked]
    assert ids == ["e0/0", "e0/context1/0", "e0/1", "e0/context1/1", "e0/2"]
    assert len({sampling.seed for _, sampling, _ in asked}) == 5
    assert tuple(episode.rows[1].token_ids[: len(asked[4][0])]) == asked[4][0]
    check(episode, tiny_model, tmp_path)


async def test_other_tools_begin_a_new_row(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    async with playing(factory, says(tiny_model, "one", "two"), tmp_path) as program:
        first = await program.chat("hi", tools=[TOOL])
        await program.chat("hi", first.choices[0].message, "and?", tools=[TOOL], tool_choice="none")
        episode = await program.end()
    assert [turn.starts_row for turn in episode.turns] == [True, True]


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


async def test_requests_at_once_are_rows_of_their_own(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    async with playing(factory, says(tiny_model, *map(str, range(5))), tmp_path) as program:
        answers = await asyncio.gather(*(program.chat(f"question {i}") for i in range(5)))
        episode = await program.end()
    assert sorted(a.choices[0].message.content for a in answers) == list("01234")
    assert len(episode.rows) == 5 and episode.is_trainable


async def test_the_same_question_twice_is_two_turns(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    async with playing(factory, says(tiny_model, "x", "y"), tmp_path) as program:
        answers = await asyncio.gather(program.chat("hi"), program.chat("hi"))
        episode = await program.end()
    assert {a.choices[0].message.content for a in answers} == {"x", "y"}
    assert [turn.starts_row for turn in episode.turns] == [True, True]


async def test_limits_and_stops_of_a_request_hold(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    agent = says(tiny_model, "How many pens are added?", "46 boxes hold pens")
    async with playing(factory, agent, tmp_path) as program:
        short = await program.chat("hi", max_completion_tokens=2)
        assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 2)
        stopped = await program.chat("again", stop=["hold"])
        assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("46 boxes ", "stop")
        known = {"role": "assistant", "content": "46 boxes "}
        with pytest.raises(openai.BadRequestError, match="whole number"):
            await program.chat("again", known, "so?", max_tokens=0)
        episode = await program.end()
    [first, second] = agent._policy.asked  # type: ignore[attr-defined]
    assert (first[1].max_tokens, second[1].stop) == (2, ("hold",))
    assert "hold" in episode.turns[1].message["content"], "the record has all that was sampled, up to the stop"
    assert episode.turns[1].finish_reason == "stop"
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), "the program itself cut the answer"
    check(episode, tiny_model, tmp_path)


async def test_an_answer_that_our_own_limit_cut_is_truncated(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    limits = EpisodeLimits(max_turn_tokens=2)
    async with playing(factory, says(tiny_model, "How many pens?"), tmp_path, limits=limits) as program:
        cut = await program.chat("hi", max_tokens=100)
        assert cut.choices[0].finish_reason == "length"
        assert (await program.end()).outcome is Outcome.TRUNCATED


async def test_plain_completions_are_turns_as_well(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    renderer = Renderer(tiny_model)
    agent = says(tiny_model, "88 pens", "52 pens", "46 boxes", "hold")
    async with playing(factory, agent, tmp_path) as program:
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
    prompts = [prompt for prompt, _, _ in agent._policy.asked]  # type: ignore[attr-defined]
    assert list(prompts[0]) == renderer.encode("How many ")
    assert prompts[1][: len(prompts[0]) + 3] == (*prompts[0], *episode.turns[0].token_ids), "goes on with the row's ids"
    assert list(prompts[2]) == ids
    assert [turn.starts_row for turn in episode.turns] == [True, False, True, True]
    assert episode.turns[0].observation == ({"role": "user", "content": "How many "},)
    check(episode, tiny_model, tmp_path)


async def test_an_agent_of_messages_completes_no_prompt(factory: EnvFactory, tmp_path: Path) -> None:
    agent = ScriptedAgent(lambda messages: {"role": "assistant", "content": "hi"})
    async with playing(factory, agent, tmp_path) as program:
        with pytest.raises(openai.APIError):
            await program.client.completions.create(model="m", prompt="a")
        episode = await program.episode()
    assert episode.outcome is Outcome.ENV_FAULT
    assert "ScriptedAgent answers messages only" in episode.error


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n is 2"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"response_format": {"type": "grammar"}}, "response_format is"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"unheard_of": 1}, "'unheard_of' is no field"),
    ({"stop": [""]}, "stop is a text"),
    ({"max_tokens": "many"}, "max_tokens is"),
    ({"messages": []}, "messages is missing"),
    ({"messages": ["hi"]}, "no role"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "no role"),
    ({"messages": [{"role": "user", "content": [{"type": "guess", "guess": {"url": "x"}}]}]}, "text only"),
    ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "tool_calls"),
    ({"tools": [{"type": "function", "function": {}}]}, "no function with a name"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": 1}}}, "tool_choice is"),
]


async def test_what_is_not_offered_is_refused_and_is_no_turn(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    async with playing(factory, says(tiny_model, "fine"), tmp_path) as program:
        url, headers = f"{program.base_url}/chat/completions", {"Authorization": f"Bearer {program.token}"}
        good = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        async with httpx.AsyncClient(headers=headers) as client:
            for change, reason in REFUSED:
                done = await client.post(url, json={**good, **change})
                assert (done.status_code, done.json()["error"]["type"]) == (400, "invalid_request_error"), change
                assert reason in done.json()["error"]["message"]
            for text in ("{", "[" * 100_000, "5"):
                assert (await client.post(url, content=text)).status_code == 400
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
            async with httpx.AsyncClient(headers=headers) as client:
                done = await client.get(f"{first.base_url}/models")
                assert (done.status_code, done.json()["error"]["code"]) == (401, "invalid_api_key")
        ended = await first.end()
        with pytest.raises(openai.AuthenticationError):
            await first.chat("hi")  # its token is worth nothing any more
        assert [e.reward for e in (ended, await second.end())] == [1.0, 1.0]


def says_later(tiny_model: Path) -> tuple[Any, asyncio.Event, asyncio.Event]:
    """An agent that says "late", then "more"; with an event for its first request, and one that it waits for."""
    asked, slow = asyncio.Event(), asyncio.Event()
    agent = says(tiny_model, "late", "more")
    generate = agent._policy.generate

    class Slow:
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            asked.set()
            await slow.wait()
            return await generate(*args, **kwargs)

    agent._policy = Slow()
    return agent, asked, slow


async def leave(program: Playing, asked: asyncio.Event) -> None:
    """Ask, and break the connection off once the question has come, as a client does that waited long enough."""
    asking = asyncio.create_task(program.chat("hi"))
    await asked.wait()
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()


async def test_a_client_that_leaves_and_comes_back_is_given_the_same_answer(
    factory: EnvFactory, tiny_model: Path, tmp_path: Path
) -> None:
    """A time-out of the client, and its own second try: one turn, not two."""
    agent, asked, slow = says_later(tiny_model)
    async with playing(factory, agent, tmp_path) as program:
        await leave(program, asked)
        again = asyncio.create_task(program.chat("hi"))
        slow.set()
        first = await again
        assert first.choices[0].message.content == "late"
        episode = await program.end()
    assert (len(episode.turns), episode.reward) == (1, 1.0)


async def test_an_answer_that_nobody_took_is_a_fault(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> None:
    agent, asked, slow = says_later(tiny_model)
    async with playing(factory, agent, tmp_path) as program:
        await leave(program, asked)
        slow.set()
        await program.chat("something else")
        episode = await program.end()
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.ENV_FAULT, None, False)
    assert "the answer to request 1 did not reach the program" in episode.error
