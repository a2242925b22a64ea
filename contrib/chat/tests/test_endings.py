"""What providers send in place of a whole answer: whole and streamed, it is an answer, a cut one, a full context or a
fault. The texts are the providers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents.renderer.dialects import from_openai
from contrib.chat.agent import ChatAgent
from contrib.chat.client import Usage
from contrib.chat.refusals import says_context_full
from contrib.chat.reply import Reply, read_reply
from contrib.chat.stream import read_body
from contrib.common.json_text import read as read_json
from contrib.common.json_text import write
from envs.math import Math
from forge_env.core.errors import PolicyError
from forge_env.core.protocols import ContextFull, Conversation
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from tests.helpers.rows import rows

BESIDE = Path(__file__).parent
TASK = Math.tasks(count=1)[0]
FULL = "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens."


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrib.chat.client._FIRST_PAUSE", 0.001)


def make(chat_server: Any, *, streamed: bool, **options: Any) -> ChatAgent:
    idle = 20.0 if streamed else None
    return ChatAgent("m", chat_server.url, api_key_env="", timeout=20.0, idle_timeout=idle, **options)


async def ask(agent: ChatAgent, **limits: int) -> tuple[str, str]:
    """The text of an answer and how it ended, or "full" or "broken" and the sentence of it."""
    conversation = Conversation(request_id="c", max_turn_tokens=50, observation=({"role": "user", "content": "?"},))
    try:
        _, action = await agent.act(conversation, [])
    except ContextFull as full:
        return "full", str(full)
    except PolicyError as error:
        return "broken", str(error)
    return action.finish_reason, action.text


def events(*pieces: Any) -> str:
    """A stream: dictionaries as JSON, texts as they are."""
    return "".join(piece if isinstance(piece, str) else f"data: {json.dumps(piece)}\n\n" for piece in pieces)


async def read(text: str, kind: str = "text/event-stream") -> tuple[str, str]:
    """What the client makes of a body: how the answer ended and its text, or the sentence where there is none."""
    body = await read_body(httpx.Response(200, headers={"content-type": kind}, content=text.encode()))
    if body is None:
        return "broken", "its stream ended before the answer did"
    reply = read_reply(body)
    if isinstance(reply, Reply):
        return reply.finish_reason, reply.text
    return "full" if reply.is_full else "broken", reply.reason


async def read_both(choice: dict[str, Any], **body: Any) -> tuple[str, str]:
    """The same choice, whole and in three chunks, which must be read alike; `text` is its text."""
    text, end = choice.pop("text", "4"), dict(choice)
    whole = {"choices": [{"message": {"role": "assistant", "content": text}, **end}], **body}
    first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]}
    parts = events(first, {"choices": [{"index": 0, "delta": {}, **end}], **body}, "data: [DONE]\n\n")
    found, streamed = await read(json.dumps(whole), "application/json"), await read(parts)
    assert found[0] == streamed[0], streamed
    return found[0], found[1] if found[0] != "broken" else f"{found[1]} | {streamed[1]}"


REASONS = {
    "stop": "OpenAI stop, function_call, tool_calls; Anthropic end_turn, stop_sequence, tool_use; TGI eos_token; "
    "Gemini STOP, FINISH_REASON_STOP, FinishReason.STOP; Vercel tool-calls; Together eos; Cohere COMPLETE; "
    "Cerebras done",
    "length": "OpenAI length; Anthropic max_tokens; Gemini MAX_TOKENS; Responses max_output_tokens; vLLM repetition; "
    "watsonx token_limit; Mistral model_length; Z.ai model_context_window_exceeded; Cohere ERROR_LIMIT",
    "broken": "OpenRouter error; vLLM abort; SGLang aborted; Z.ai network_error, sensitive; Azure content_filter; "
    "DeepSeek insufficient_system_resource; Gemini SAFETY, RECITATION, OTHER, MALFORMED_FUNCTION_CALL; "
    "Cohere ERROR_TOXIC, USER_CANCEL, TIMEOUT; Anthropic refusal, pause_turn; "
    "Bedrock guardrail_intervened; ours not_known",
}
CASES = [
    (reason, ending)
    for ending, rows in REASONS.items()
    for row in rows.split(";")
    for reason in row.strip().partition(" ")[2].split(", ")
] + [
    ("content_filter: PROHIBITED_CONTENT", "broken"),
    ("function_call_filter: MALFORMED_FUNCTION_CALL", "broken"),
    ({"type": "abort", "message": "aborted"}, "broken"),
    ({"type": "length", "length": 50}, "length"),
]


async def test_a_finish_reason_says_what_an_answer_is() -> None:
    for reason, ending in CASES:
        found, said = await read_both({"finish_reason": reason})
        assert found == ending, reason
        assert said.count("the finish reason") == 2 if ending == "broken" else said == "4", reason


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_answer_that_is_broken_is_asked_for_again(chat_server: Any, streamed: bool) -> None:
    end = {"choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": "abort"}]}
    chat_server.will(chat_server.streams(end) if streamed else chat_server.says("4", finish="abort"))
    async with make(chat_server, streamed=streamed, retries=1) as agent:
        found, said = await ask(agent)
    assert found == "broken" and "finish reason 'abort' (2 attempts)" in said and len(chat_server.asked) == 2


STOP = {"finish_reason": "stop"}
NONE = {"finish_reason": None}
WINDOW = {"status_code": 2013, "status_msg": "invalid params, context window exceeds limit"}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an error of the choice": ({"error": {"code": 502, "message": "gone"}, "finish_reason": "error"}, {}, "gone"),
    "an error of the choice beside stop": ({"error": {"message": "gone"}, **STOP}, {}, "gone"),
    "MiniMax's": (STOP, {"base_resp": {"status_code": 1027, "status_msg": "gone"}}, "gone"),
    "MiniMax's full context": (NONE, {"base_resp": WINDOW}, "full"),
    "MiniMax's for none": (STOP, {"base_resp": {"status_code": 0, "status_msg": ""}}, "4"),
    "an error beside the choices": (STOP, {"error": {"code": 429, "message": "slow"}}, "slow"),
    "an error that is a text": (NONE, {"error": "model runner crashed"}, "model runner crashed"),
    "a full context in the choice": ({"error": {"message": FULL}, "finish_reason": "error"}, {}, "full"),
    "a full context beside the choices": (NONE, {"error": {"message": FULL}}, "full"),
    "a full context before a word": ({"finish_reason": "model_context_window_exceeded", "text": ""}, {}, "full"),
    "no error": ({"error": None, **STOP}, {"error": None}, "4"),
}


@pytest.mark.parametrize("case", SHAPES)
async def test_an_error_beside_an_answer_leaves_none(case: str) -> None:
    choice, body, expected = SHAPES[case]
    ending, said = await read_both(dict(choice), **body)
    assert ending == ("full" if expected == "full" else "stop" if expected == "4" else "broken")
    assert expected == "full" or said.count(expected) == (1 if expected == "4" else 2)


def end(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


ENDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "an event of the name error": (('event: error\ndata: {"message": "gone", "code": 500}\n\n',), "gone"),
    "Anthropic's": (('event: error\ndata: {"type": "error", "error": {"message": "Overloaded"}}\n\n',), "Overloaded"),
    "vLLM's of 2024": (({"object": "error", "message": "gone", "code": 500},), "gone"),
    "of the type error": (({"type": "error", "message": "gone"},), "gone"),
    "only a message": (({"message": "gone", "code": 500},), "gone"),
    "llama.cpp's": (('error: {"code": 500, "message": "gone"}\n\n',), "gone"),
    "text": (("data: upstream connect error\n\n",), "upstream connect error"),
    "after the end": ((end("stop"), {"error": {"message": "gone"}}), "gone"),
    "stop after an error": ((end("error"), end("stop")), "'error'"),
    "nothing": ((), "its stream ended before the answer did"),
    "only the mark of the end": (("data: [DONE]\n\n",), "its stream ended before the answer did"),
}


@pytest.mark.parametrize("case", ENDS)
async def test_a_stream_that_ends_in_an_error_is_no_answer(case: str) -> None:
    pieces, expected = ENDS[case]
    ending, said = await read(events({"choices": [{"index": 0, "delta": {"content": "4"}}]}, *pieces))
    assert ending == "broken" and expected in said


ANSWER = 'data: {"choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
FORMS: dict[str, tuple[str, str]] = {
    "a byte order mark": ("\ufeff" + ANSWER, "text/event-stream"),
    "no type": (ANSWER, ""),
    "another type": (": ping\n\n" + ANSWER, "text/plain"),
    "capital letters": (ANSWER, "Text/Event-Stream"),
    "data of several lines": (ANSWER.replace("[{", "\ndata: [{"), "text/event-stream"),
}


async def test_a_stream_is_read_in_each_form() -> None:
    for form, (text, kind) in FORMS.items():
        assert await read(text, kind) == ("stop", "4"), form


def delta(content: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}


async def test_a_text_is_read_in_each_form() -> None:
    for content in ("42", {"type": "text", "text": "42"}, ["4", {"type": "text", "text": "2"}], [{"text": "42"}]):
        assert await read_both({"text": content, **STOP}) == ("stop", "42")
    again = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "42"}, **STOP}]}  # MiniMax's last
    assert await read(events(delta("4"), delta("2"), again)) == ("stop", "42")
    ending, said = await read(events({"choices": [{"index": 0, "text": "42", **STOP}]}))  # of the older API
    assert ending == "broken" and "its answer is no chat completion" in said


async def test_what_a_model_thinks_in_parts_of_its_content_is_read(chat_server: Any) -> None:
    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": "2 + 2"}]}, {"type": "text", "text": "4"}]
    for streamed in (False, True):
        says = chat_server.streams(delta(thought), end("stop")) if streamed else chat_server.says(thought)
        chat_server.will(says)
        async with make(chat_server, streamed=streamed) as agent:
            conversation = Conversation(
                request_id="c", max_turn_tokens=9, observation=({"role": "user", "content": "?"},)
            )
            turn, action = await agent.act(conversation, [])
        assert turn.message is not None
        assert (action.text, turn.message.get("reasoning_content")) == ("4", "2 + 2")


@pytest.mark.parametrize(
    ("written", "count"), [("5", 5), ("5.0", 5), ("null", 0), ("true", 0), ("-1", 0), ("1e400", 0)]
)
def test_a_count_of_tokens_may_be_written_as_a_float(written: str, count: int) -> None:
    choice = '{"message": {"content": "4"}, "finish_reason": "stop"}'
    reply = read_reply(read_json(f'{{"choices": [{choice}], "usage": {{"prompt_tokens": {written}}}}}'))
    assert isinstance(reply, Reply) and reply.usage == {"prompt_tokens": count, "completion_tokens": 0}


async def test_a_broken_answer_is_asked_again_and_never_scored(chat_server: Any) -> None:
    broken = chat_server.says("<answer>7</answer>", finish="error")
    chat_server.will(broken, broken, chat_server.says("4"))
    async with make(chat_server, streamed=False) as agent, EnvFactory(Math) as factory:
        assert await ask(agent) == ("stop", "4")
        assert (agent.usage.requests, agent.usage.retries) == (3, 2)
        chat_server.will(broken)
        limits = EpisodeLimits()
        episode = await run_episode(factory, agent, TASK, seed=0, episode_id="e", limits=limits)
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
    assert "finish reason 'error' (5 attempts)" in episode.error


# ---- calls ----


ONE = ("look", {"x": 1})
LINES = (BESIDE / "parts.jsonl").read_text(encoding="utf-8").splitlines()
PARTS = {part.pop("case"): part for part in map(json.loads, LINES)}


async def calls_of(text: str, kind: str = "text/event-stream") -> list[tuple[str, Any]]:
    reply = read_reply(await read_body(httpx.Response(200, headers={"content-type": kind}, content=text.encode())))
    assert isinstance(reply, Reply), reply
    return [(made.name, made.arguments) for made in from_openai(reply.message)]


@pytest.mark.parametrize("case", PARTS)
async def test_streamed_parts_make_the_calls_that_were_meant(case: str) -> None:
    """Whether the last of them comes with the end or before it."""
    for is_at_end in (False, True):
        deltas = [{"tool_calls": part} for part in PARTS[case]["chunks"]]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        if is_at_end:
            chunks[-1]["choices"][0]["finish_reason"] = "tool_calls"  # type: ignore[index]
        more = () if is_at_end else (end("tool_calls"),)
        assert [list(call) for call in await calls_of(events(*chunks, *more))] == PARTS[case]["calls"]


async def test_a_function_call_of_the_first_api_is_a_call() -> None:
    call = {"name": "look", "arguments": '{"x": 1}'}
    whole = {"choices": [{"message": {"content": None, "function_call": call}, "finish_reason": "function_call"}]}
    assert await calls_of(json.dumps(whole), "application/json") == [ONE]
    parts = ({"name": "look", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ": 1}"})
    chunks = [{"choices": [{"index": 0, "delta": {"function_call": part}}]} for part in parts]
    assert await calls_of(events(*chunks, end("function_call"))) == [ONE]


@pytest.mark.parametrize("field", ["message", "delta"])
async def test_numbers_of_arguments_that_are_no_text_keep_their_digits(field: str) -> None:
    written = '{"x": 1.10, "y": -0, "z": 0.12345678901234567}'
    function = f'{{"function": {{"name": "look", "arguments": {written}}}}}'
    body = f'{{"choices": [{{"{field}": {{"tool_calls": [{function}]}}, "finish_reason": "stop"}}]}}'
    text, kind = (f"data: {body}\n\n", "text/event-stream") if field == "delta" else (body, "application/json")
    [(_, arguments)] = await calls_of(text, kind)
    assert write(arguments) == written


# ---- full contexts ----

REFUSALS: dict[str, list[str]] = {}
for maker, refusal in rows(__file__, "full_context.tsv"):
    REFUSALS.setdefault(maker, []).append(refusal)
BODIES: dict[str, Any] = {
    "a code": {"error": {"message": "no", "code": "context_length_exceeded"}},
    "a type": {"error": {"message": "no", "type": "exceed_context_size_error", "n_ctx": 9}},
    "an inner error": {"error": {"code": "bad", "message": "no", "innererror": {"code": "context_length_exceeded"}}},
    "bytes": {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}},
    "a text": FULL,
    "TGI": {"error": "Input validation error: `inputs` must have less than 9 tokens. Given: 10", "error_type": "v"},
    "SGLang": {"object": "error", "message": REFUSALS["SGLang"][1], "type": "BadRequestError", "code": 400},
    "a detail": {"detail": [{"msg": "prompt is too long"}]},
    "OpenRouter": {"error": {"message": "returned", "code": 400, "metadata": {"raw": '{"error": "' + FULL}}},
}
OTHERS: dict[str, tuple[int, Any]] = {
    "a rate in the body": (200, {"error": {"message": "Too many tokens", "code": 429}}),
    "what was sent": (422, {"detail": [{"msg": "Field required", "input": {"messages": [{"content": FULL}]}}]}),
    **{case: (int(status), text) for case, status, text in rows(__file__, "other_refusals.tsv")},
}


def test_a_full_context_is_known_in_the_words_of_its_maker_and_in_each_form() -> None:
    for maker, texts in REFUSALS.items():
        for text in texts:
            for status in (400, 422, 500):
                said = {"error": {"message": text, "type": "invalid_request_error"}}
                assert says_context_full(said, status), f"{maker}: {text}"
            assert not says_context_full({"error": {"message": text}}, 429)
    for form, body in BODIES.items():
        assert says_context_full(body), form


def test_other_refusals_are_no_full_context() -> None:
    for case, (status, message) in OTHERS.items():
        body = message if isinstance(message, dict) else {"error": {"message": message}}
        assert not says_context_full(body, status), case


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_full_context_ends_a_turn_without_a_retry(chat_server: Any, streamed: bool) -> None:
    error = {"error": {"message": REFUSALS["llama.cpp"][0], "code": 400}}
    chat_server.will(chat_server.streams(error) if streamed else chat_server.sends(error, status=400))
    async with make(chat_server, streamed=streamed) as agent:
        assert (await ask(agent))[0] == "full"
    assert len(chat_server.asked) == 1


async def test_a_server_that_says_so_is_not_asked_again(chat_server: Any) -> None:
    chat_server.will(chat_server.fails(503, "the session is over", x_should_retry="false"))
    async with make(chat_server, streamed=False) as agent:
        ending, said = await ask(agent)
        assert (ending, "attempts" in said) == ("broken", False)
        assert agent.usage == Usage(requests=1)
