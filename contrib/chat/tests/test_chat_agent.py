"""ChatAgent against a real server: what is sent, what is kept, what is retried, and a key that never shows."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
import threading
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.renderer.dialects import from_openai
from contrib.chat.agent import ChatAgent
from contrib.chat.client import Usage
from contrib.chat.reply import Reply, read_reply
from envs.math import Math
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.protocols import ContextFull, Conversation
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.utils.deadlines import Deadline
from tests.helpers.waiting import until

KEY = 'sk-a/very+secret key"of\\tests-0123456789'.replace(" ", "_")
TOOLS = Math().tools
TASK = Math.tasks(count=1)[0]
QUESTION: tuple[Message, ...] = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2? \ud800"})
CALL = {"id": "abc", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "2 + 2"}'}}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setattr("contrib.chat.client._FIRST_PAUSE", 0.001)


def make(chat_server: Any, **options: Any) -> ChatAgent:
    return ChatAgent("m", chat_server.url, **{"api_key_env": "TEST_KEY", "timeout": 20.0, **options})


def asks(turns: list[Turn] | None = None, observation: tuple[Message, ...] = QUESTION) -> Conversation:
    return Conversation(request_id="c", max_turn_tokens=50, turns=turns or [], observation=observation)


async def ask(chat_server: Any, **options: Any) -> tuple[Turn, Action]:
    async with make(chat_server, **options) as agent:
        return await agent.act(asks(), TOOLS)


async def refused(chat_server: Any, kind: type[Exception], **options: Any) -> str:
    """Ask, see it fail, and return the sentence. It is one, and no word of the traceback holds the key."""
    with pytest.raises(kind) as caught:
        await ask(chat_server, **options)
    text = str(caught.value)
    assert "\n" not in text and KEY not in text
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is None
    return text


# ---- what is sent, and what is kept ----


async def test_a_question_is_sent_as_openai_expects_it(chat_server: Any) -> None:
    turn, action = await ask(chat_server, temperature=0.5, extra_body={"top_p": 0.9})
    [asked] = chat_server.asked
    assert asked.authorization == f"Bearer {KEY}"
    assert asked.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2? ?"}],
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "tools": TOOLS,
    }
    assert (turn.kind, turn.observation, turn.message) == ("text", QUESTION, {"role": "assistant", "content": "ok"})
    assert (action.text, action.tool_calls, action.finish_reason) == ("ok", (), "stop")
    assert dict(turn.usage) == {"prompt_tokens": 7, "completion_tokens": 3}


async def test_none_in_extra_body_removes_a_field(chat_server: Any) -> None:
    await ask(chat_server, temperature=None, extra_body={"max_tokens": None, "max_completion_tokens": 9})
    assert chat_server.asked[0].body.keys() == {"model", "messages", "tools", "max_completion_tokens"}


async def test_a_conversation_with_tools_goes_back_whole_and_reasoning_does_not(chat_server: Any) -> None:
    chat_server.will(chat_server.says(None, tool_calls=[CALL], reasoning_content="hm"), chat_server.says("4"))
    async with make(chat_server) as agent:
        turn, action = await agent.act(asks(), TOOLS)
        assert turn.message.get("reasoning_content") == "hm"
        [call] = action.tool_calls
        assert (call.id, call.name, call.arguments) == ("abc", "calculator", {"expression": "2 + 2"})
        assert turn.message["tool_calls"] == [CALL]
        result: Message = {"role": "tool", "content": "4", "tool_call_id": "abc", "name": "calculator"}
        await agent.act(asks([turn], (result,)), TOOLS)
    assert chat_server.asked[1].body["messages"][2:] == [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "abc"},
    ]


async def test_arguments_that_cannot_be_read_are_kept_and_go_back_as_json(chat_server: Any) -> None:
    bad = {"id": "abc", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": '}}
    chat_server.will(chat_server.says("", tool_calls=[bad]), chat_server.says("4"))
    async with make(chat_server) as agent:
        turn, action = await agent.act(asks(), TOOLS)
        [call] = action.tool_calls
        assert (call.arguments, call.raw) == (None, '{"expression": ')
        assert "not valid JSON" in call.error
        assert turn.message["tool_calls"] == [bad]
        await agent.act(asks([turn], ({"role": "tool", "content": "?", "tool_call_id": "abc"},)), TOOLS)
    sent = chat_server.asked[1].body["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"unreadable": '{"expression": '}


CONTENTS = {
    "parts": ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, 3]}, "ab"),
    "refusal": ({"content": None, "refusal": "I will not."}, "I will not."),
    "no text": ({"content": {"a": 1}}, ""),
    "bad calls": ({"content": "x", "tool_calls": [3, {"function": None}]}, "x"),
}


async def test_content_of_other_shapes_is_read(chat_server: Any) -> None:
    for case, (fields, text) in CONTENTS.items():
        chat_server.will(chat_server.says(**fields))
        _, action = await ask(chat_server)
        assert action.text == text, case
        assert all(call.error for call in action.tool_calls)


async def test_how_it_ended_is_kept(chat_server: Any) -> None:
    chat_server.will(chat_server.says("4", finish="length"))
    turn, action = await ask(chat_server)
    assert turn.finish_reason == action.finish_reason == "length"


async def test_an_episode_is_played_to_its_reward(chat_server: Any) -> None:
    async def play(asked: Any) -> Any:
        message = Math.expert(asked.body["messages"])
        functions = [call["function"] for call in message.get("tool_calls", [])]
        texts = [function | {"arguments": json.dumps(function["arguments"])} for function in functions]
        calls = [{"id": "x", "type": "function", "function": function} for function in texts]
        return await chat_server.says(message["content"], tool_calls=calls or None)(asked)

    chat_server.will(play)
    async with make(chat_server) as agent, EnvFactory(Math) as factory:
        episode = await run_episode(factory, agent, TASK, seed=0, episode_id="e", limits=EpisodeLimits())
    assert (episode.outcome, episode.reward, len(episode.turns)) == (Outcome.SCORED, 1.0, 2)
    assert Episode.from_json(episode.to_json()) == episode
    assert agent.usage == Usage(prompt_tokens=14, completion_tokens=6, requests=2, retries=0)
    assert agent.usage.cost(prompt=1.0, completion=10.0) == pytest.approx((14 + 60) / 1e6)


async def test_an_endpoint_that_fails_is_a_fault_and_no_zero(chat_server: Any) -> None:
    chat_server.will(chat_server.fails(500, KEY))
    async with make(chat_server, retries=0) as agent, EnvFactory(Math) as factory:
        episode = await run_episode(factory, agent, TASK, seed=0, episode_id="e", limits=EpisodeLimits())
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
    assert "HTTP 500" in episode.error and KEY not in episode.to_json()


NAMES = st.sampled_from(["content", "tool_calls", "function", "name", "arguments", "id", "reasoning"])
MESSAGES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)


@given(MESSAGES)
def test_any_message_is_read_or_refused(message: Any) -> None:
    reply = read_reply({"choices": [{"message": message}], "usage": message})
    assert isinstance(reply, Reply) == isinstance(message, dict)
    if isinstance(reply, Reply):
        assert isinstance(reply.text, str) and from_openai(reply.message) is not None
    else:
        assert "no chat completion" in reply.reason


# ---- failures ----


async def test_temporary_failures_are_tried_again(chat_server: Any) -> None:
    for status in (408, 409, 429, 500, 503):
        chat_server.will(chat_server.fails(status), chat_server.fails(status), chat_server.says("ok"))
        async with make(chat_server) as agent:
            await agent.act(asks(), TOOLS)
        assert agent.usage == Usage(prompt_tokens=7, completion_tokens=3, requests=3, retries=2)


@pytest.mark.parametrize("data", ["<html>", "", {}, {"choices": []}, {"choices": [{"message": 3}]}, [], "[" * 99_999])
async def test_garbage_is_tried_again_and_then_named(chat_server: Any, data: Any) -> None:
    chat_server.will(chat_server.sends(data), chat_server.says("ok"))
    await ask(chat_server)
    chat_server.will(chat_server.sends(data))
    assert "no chat completion" in await refused(chat_server, PolicyError, retries=1)
    assert len(chat_server.asked) == 4


async def test_an_error_of_null_is_not_the_reason(chat_server: Any) -> None:
    chat_server.will(chat_server.sends({"error": None, "detail": "it sleeps"}))
    assert "it sleeps" in await refused(chat_server, PolicyError, retries=0)


REFUSALS: dict[str, tuple[tuple[int, str, str | None], type[Exception], str]] = {
    "wrong key": ((401, f"Incorrect: {KEY}", None), UserError, "in the environment variable TEST_KEY"),
    "no right": ((403, "no", None), UserError, "refused the API key"),
    "unknown model": ((404, "no such model", None), UserError, "has no model 'm'"),
    "bad request": ((400, "tools: not allowed", None), PolicyError, "HTTP 400: tools: not allowed"),
    "too long, by code": ((400, "no", "context_length_exceeded"), ContextFull, "HTTP 400"),
    "too long, by vLLM": ((400, "This model's maximum context length is 4096 tokens.", None), ContextFull, "4096"),
    "too long, by Anthropic": ((400, "prompt is too long: 9 tokens > 8 maximum", None), ContextFull, "too long"),
    "no credit": ((429, "You exceeded your current quota", "insufficient_quota"), PolicyError, "exceeded"),
    "elsewhere": ((307, "moved", None), PolicyError, "HTTP 307"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refusal_is_one_clear_sentence_and_not_tried_again(chat_server: Any, case: str) -> None:
    (status, message, code), kind, said = REFUSALS[case]
    chat_server.will(chat_server.fails(status, message, code=code))
    text = await refused(chat_server, kind)
    assert said in text
    assert "[API key]" in text if KEY in message else True
    assert len(chat_server.asked) == 1


async def test_retries_end(chat_server: Any) -> None:
    chat_server.will(chat_server.fails(503, f"busy {KEY}\nnow"))
    assert "HTTP 503: busy [API key] now (3 attempts)" in await refused(chat_server, PolicyError, retries=2)
    assert len(chat_server.asked) == 3


@pytest.mark.parametrize(
    "headers", [{"retry_after": "0.2"}, {"retry_after_ms": "200"}, {"x_ratelimit_reset_tokens": "200ms"}]
)
async def test_retry_after_is_honoured(chat_server: Any, headers: dict[str, str]) -> None:
    chat_server.will(chat_server.fails(429, **headers), chat_server.says("ok"))
    started = asyncio.get_running_loop().time()
    await ask(chat_server)
    assert asyncio.get_running_loop().time() - started >= 0.2


@pytest.mark.parametrize(
    "headers",
    [
        {"retry_after": "3600"},
        {"retry_after": "3600.5"},
        {"retry_after_ms": "3600000"},
        {"retry_after": format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)},
        {"retry_after": "9" * 400},
        {"x_ratelimit_reset_requests": "1h0m0.5s"},
    ],
)
async def test_a_wait_beyond_the_deadline_is_not_begun(chat_server: Any, headers: dict[str, str]) -> None:
    chat_server.will(chat_server.fails(429, **headers))
    assert "too little of the 20 s is left to wait" in await refused(chat_server, PolicyError)
    assert len(chat_server.asked) == 1


OPENROUTER = {"message": "slow", "code": 429, "metadata": {"headers": {"Retry-After": 3600}}}
RETRY = {"@type": "type.googleapis.com/RetryInfo", "retryDelay": "3600s"}
GEMINI = {"code": 429, "details": [{"@type": "Help"}, RETRY]}


@pytest.mark.parametrize(
    ("status", "body"), [(200, {"error": OPENROUTER}), (429, {"error": GEMINI}), (429, [{"error": GEMINI}])]
)
async def test_a_wait_in_the_body_is_read(chat_server: Any, status: int, body: Any) -> None:
    chat_server.will(chat_server.sends(body, status=status))
    assert "is left to wait 3600.0 s" in await refused(chat_server, PolicyError)


async def test_a_wait_that_is_none_is_a_usual_pause(chat_server: Any) -> None:
    for value in ("-3600", "nan", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", "0"):
        chat_server.reset()
        chat_server.will(chat_server.fails(429, retry_after=value), chat_server.says("ok"))
        await ask(chat_server)
        assert len(chat_server.asked) == 2, value


def piece(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


USED = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}


async def test_a_streamed_answer_equals_an_unstreamed_one(chat_server: Any) -> None:
    half = {"index": 0, "function": {"arguments": '"2 + 2"}'}}
    begun = {**CALL, "index": 0, "function": {"name": "calculator", "arguments": '{"expression": '}}
    chat_server.will(
        chat_server.streams(
            ": a comment\n\n",
            piece(role="assistant", content="I "),
            piece(content="add", reasoning_content="hm"),
            piece(tool_calls=[begun]),
            piece(tool_calls=[half]),
            piece("tool_calls"),
            USED,
            "data: [DONE]\n\n",
        )
    )
    turn, action = await ask(chat_server, idle_timeout=20.0)
    body = chat_server.asked[0].body
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}
    assert turn.message == {"role": "assistant", "content": "I add", "reasoning_content": "hm", "tool_calls": [CALL]}
    assert (action.tool_calls[0].arguments, action.finish_reason) == ({"expression": "2 + 2"}, "stop")
    assert dict(turn.usage) == {"prompt_tokens": 9, "completion_tokens": 4}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_only_ends_of_lines_cut_a_stream(chat_server: Any, end: str) -> None:
    text = "a\u2028b\u2029c\x85d"
    pieces = (one | {"error": None} for one in (piece(content=text), piece("stop")))
    events = "".join(f"data: {json.dumps(one, ensure_ascii=False)}{end}{end}" for one in pieces)
    chat_server.will(chat_server.streams(*events))  # by single characters, so that a part ends between CR and LF
    turn, _ = await ask(chat_server, idle_timeout=20.0, retries=0)
    assert turn.message["content"] == text


async def test_a_streamed_answer_may_take_longer_than_any_deadline(chat_server: Any) -> None:
    """It is longer than the deadline of a whole answer; it has failed where no byte comes any more."""
    alone = threading.Event()

    async def slowly() -> Any:
        for _ in range(10):
            await asyncio.sleep(0.01)
            yield piece(content="a")
        yield piece("stop")

    async def then_nothing() -> Any:
        yield piece(content="a")
        await asyncio.to_thread(alone.wait, 60.0)

    chat_server.will(chat_server.streams(more=slowly()))
    turn, _ = await ask(chat_server, idle_timeout=20.0, timeout=0.02)
    assert turn.message["content"] == "a" * 10
    chat_server.reset()
    chat_server.will(chat_server.streams(more=then_nothing()))
    try:
        assert "sent nothing for 0.2 s" in await refused(chat_server, PolicyError, idle_timeout=0.2)
        await until(lambda: chat_server.asked, "the request has come")
    finally:
        alone.set()
    assert len(chat_server.asked) == 1, "it is not asked again: the server may still be at it"


async def test_a_stream_that_breaks_is_asked_again_and_one_that_says_why_is_an_error(chat_server: Any) -> None:
    cut, whole = chat_server.streams(piece(content="4")), chat_server.streams(piece(content="4"), piece("stop"))
    chat_server.will(cut, whole)
    turn, _ = await ask(chat_server, idle_timeout=20.0)
    assert turn.message["content"] == "4" and len(chat_server.asked) == 2
    chat_server.will(chat_server.streams({"error": {"message": f"out of memory, {KEY}"}}))
    text = await refused(chat_server, PolicyError, idle_timeout=20.0, retries=0)
    assert "its answer is no chat completion: out of memory, [API key]" in text
    chat_server.will(chat_server.says("whole"))
    turn, _ = await ask(chat_server, idle_timeout=20.0)  # a server that does not stream
    assert turn.message["content"] == "whole"


async def test_a_server_that_hangs_is_left_at_the_deadline(chat_server: Any) -> None:
    chat_server.will(chat_server.waits())
    assert "did not answer within 0.2 s" in await refused(chat_server, PolicyError, timeout=0.2)


async def test_nobody_there_is_a_policy_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    # Closed again: nobody listens.
    async with ChatAgent("m", f"http://127.0.0.1:{port}/v1", api_key_env="TEST_KEY", retries=1) as agent:
        with pytest.raises(PolicyError, match=r"the connection failed: ConnectError.*2 attempts"):
            await agent.act(asks(), TOOLS)


async def test_a_cancelled_question_lets_its_place_go(chat_server: Any) -> None:
    arrived = threading.Event()
    chat_server.will(chat_server.waits(arrived), chat_server.says("ok"))
    async with make(chat_server, max_concurrency=1) as agent:
        hung = asyncio.create_task(agent.act(asks(), TOOLS))
        await asyncio.to_thread(arrived.wait, 20)
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        _, action = await agent.act(asks(), TOOLS)
    assert action.text == "ok"


def test_a_full_context_is_noticed_before_a_request(chat_server: Any) -> None:
    async def use_up() -> None:
        chat_server.will(chat_server.says("a", used=(60, 30)))
        async with make(chat_server) as agent:
            first = asks()
            first.max_tokens = 100
            turn, _ = await agent.act(first, [])
            first.turns.append(turn)
            await agent.act(first, [])
            assert chat_server.asked[1].body["max_tokens"] == 10
            first.max_tokens = 90
            with pytest.raises(ContextFull):
                await agent.act(first, [])

    asyncio.run(use_up())
    assert len(chat_server.asked) == 2


# ---- places and rates ----


async def test_requests_at_once_never_exceed_max_concurrency(chat_server: Any) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slowly(asked: Any) -> Any:
        if chat_server.running == 2:
            loop.call_soon_threadsafe(release.set)
        while not release.is_set():
            await asyncio.sleep(0)
        return await chat_server.says("ok")(asked)

    chat_server.will(slowly)
    async with make(chat_server, max_concurrency=2) as agent:
        await asyncio.gather(*(agent.act(asks(), []) for _ in range(8)))
    assert (chat_server.most_at_once, len(chat_server.asked)) == (2, 8)


async def test_waiting_for_a_place_stops_the_clock_of_the_episode(chat_server: Any) -> None:
    """With 60 a minute, two requests are 1 s apart; the episode's clock of 0.9 s does not run meanwhile."""
    async with make(chat_server, requests_per_minute=60) as agent:
        await agent.act(asks(), [])
        started = asyncio.get_running_loop().time()
        await Deadline(0.9).run(agent.act(asks(), []))
        assert asyncio.get_running_loop().time() - started >= 0.9


def test_one_agent_serves_several_event_loops(chat_server: Any) -> None:
    agent = make(chat_server, max_concurrency=1)

    async def use() -> str:
        async with agent:
            turns = await asyncio.gather(*(agent.act(asks(), []) for _ in range(3)))
        return turns[0][1].text

    assert [asyncio.run(use()) for _ in range(3)] == ["ok"] * 3


# ---- the key ----


async def test_the_key_never_shows(chat_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    escaped = "".join(f"\\u{ord(c):04x}" for c in KEY)
    call = {"id": KEY, "type": "function", "function": {"name": KEY, "arguments": json.dumps({KEY: KEY})}}
    message = json.dumps({"role": "assistant", "content": "KEY", "reasoning_content": KEY, "tool_calls": [call]})
    body = f'{{"choices": [{{"message": {message.replace(chr(34) + "KEY" + chr(34), chr(34) + escaped + chr(34))}}}]}}'
    chat_server.will(chat_server.sends(body))
    async with make(chat_server) as agent:
        turn, action = await agent.act(asks(), TOOLS)
        assert chat_server.asked[0].authorization == f"Bearer {KEY}"
        for shown in (turn, action, agent, agent.client, vars(agent), vars(agent.client), caplog.text):
            assert KEY not in str(shown) and KEY not in repr(shown)
        assert KEY.encode() not in pickle.dumps(agent)
    assert action.text == "[API key]"


async def test_an_agent_travels_between_processes(chat_server: Any) -> None:
    async with make(chat_server) as agent:
        await agent.act(asks(), [])
        async with pickle.loads(pickle.dumps(agent)) as copy:
            _, action = await copy.act(asks(), [])
    assert action.text == "ok"
    assert (agent.usage.requests, copy.usage.requests) == (1, 2)


async def test_a_short_word_is_no_secret(chat_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "EMPTY")
    chat_server.will(chat_server.says("The set is EMPTY."))
    _, action = await ask(chat_server)
    assert action.text == "The set is EMPTY."


def test_a_remote_endpoint_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match=r"no API key for https://api.openai.com/v1: set .* OPENAI_API_KEY"):
        ChatAgent("m")
    ChatAgent("m", api_key_env="")


async def test_an_endpoint_here_needs_no_key(chat_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY")
    await ask(chat_server)
    await ask(chat_server, api_key_env="")
    assert [asked.authorization for asked in chat_server.asked] == ["", ""]


@pytest.mark.parametrize("key", ["sk-\n1234567", "sk-äöüäöüäöü"])
def test_a_malformed_key_is_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("TEST_KEY", key)
    with pytest.raises(UserError, match="TEST_KEY holds characters") as caught:
        ChatAgent("m", api_key_env="TEST_KEY")
    assert key not in str(caught.value)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no address": ({"base_url": "api.openai.com/v1"}, "no plain address"),
    "a password": ({"base_url": "https://me:hunter2@host/v1"}, "no plain address"),
    "half an address": ({"base_url": "http://[::1/v1"}, "no address"),
    "places": ({"max_concurrency": 0}, "max_concurrency=0"),
    "time": ({"timeout": 0}, "timeout=0"),
    "idle": ({"idle_timeout": 0}, "idle_timeout=0"),
    "rate": ({"requests_per_minute": 0}, "requests_per_minute=0"),
}


def test_a_wrong_setting_is_named() -> None:
    for options, said in WRONG.values():
        with pytest.raises(UserError, match=said) as caught:
            ChatAgent("m", **{"api_key_env": "TEST_KEY", **options})
        assert "hunter2" not in str(caught.value)
