"""What providers send in place of a whole answer: whole and streamed, it is an answer, a cut one, a full context or a
fault. The texts are the providers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contrib.chat.agent import ChatAgent
from contrib.chat.client import Usage
from contrib.chat.refusals import says_context_full
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
    return ChatAgent(
        "m", chat_server.url, api_key_env="", timeout=20.0, idle_timeout=20.0 if streamed else None, **options
    )


async def ask(agent: ChatAgent, **limits: int) -> tuple[str, str]:
    """The text of an answer and how it ended, or "full" or "broken" and the sentence of it."""
    conversation = Conversation(
        request_id="c", max_turn_tokens=50, turns=[], observation=({"role": "user", "content": "2 + 2?"},)
    )
    try:
        _, action = await agent.act(conversation, [])
    except ContextFull as full:
        return "full", str(full)
    except PolicyError as error:
        return "broken", str(error)
    return action.finish_reason, action.text


def answers(chat_server: Any, choice: dict[str, Any], *, streamed: bool, **body: Any) -> Any:
    """Send one choice, whole or in three chunks; `message` is its text."""
    text, end = choice.pop("text", "4"), dict(choice)
    if not streamed:
        return chat_server.sends({"choices": [{"message": {"role": "assistant", "content": text}, **end}], **body})
    first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]}
    return chat_server.streams(first, {"choices": [{"index": 0, "delta": {}, **end}], **body}, "data: [DONE]\n\n")


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


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("reason", "ending"), CASES, ids=[str(reason) for reason, _ in CASES])
async def test_a_finish_reason_says_what_an_answer_is(
    chat_server: Any, reason: Any, ending: str, streamed: bool
) -> None:
    chat_server.will(answers(chat_server, {"finish_reason": reason}, streamed=streamed))
    async with make(chat_server, streamed=streamed, retries=1) as agent:
        found, said = await ask(agent)
    assert found == ending
    if ending == "broken":
        assert "finish reason" in said and "2 attempts" in said and len(chat_server.asked) == 2
    else:
        assert said == "4" and len(chat_server.asked) == 1


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an error of the choice": ({"error": {"code": 502, "message": "gone"}, "finish_reason": "error"}, {}, "gone"),
    "an error of the choice beside stop": ({"error": {"message": "gone"}, "finish_reason": "stop"}, {}, "gone"),
    "MiniMax's": ({"finish_reason": "stop"}, {"base_resp": {"status_code": 1027, "status_msg": "gone"}}, "gone"),
    "MiniMax's full context": (
        {"finish_reason": None},
        {"base_resp": {"status_code": 2013, "status_msg": "invalid params, context window exceeds limit"}},
        "full",
    ),
    "MiniMax's for none": ({"finish_reason": "stop"}, {"base_resp": {"status_code": 0, "status_msg": ""}}, "4"),
    "an error beside the choices": ({"finish_reason": "stop"}, {"error": {"code": 429, "message": "slow"}}, "slow"),
    "an error that is a text": ({"finish_reason": None}, {"error": "model runner crashed"}, "model runner crashed"),
    "a full context in the choice": ({"error": {"message": FULL}, "finish_reason": "error"}, {}, "full"),
    "a full context beside the choices": ({"finish_reason": None}, {"error": {"message": FULL}}, "full"),
    "a full context before a word": ({"finish_reason": "model_context_window_exceeded", "text": ""}, {}, "full"),
    "no error": ({"error": None, "finish_reason": "stop"}, {"error": None}, "4"),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", SHAPES)
async def test_an_error_beside_an_answer_leaves_none(chat_server: Any, case: str, streamed: bool) -> None:
    choice, body, expected = SHAPES[case]
    chat_server.will(answers(chat_server, dict(choice), streamed=streamed, **body))
    async with make(chat_server, streamed=streamed, retries=0) as agent:
        ending, said = await ask(agent)
    assert (ending == expected) if expected == "full" else expected in said
    assert ending == ("full" if expected == "full" else "stop" if expected == "4" else "broken")


ENDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "an event of the name error": (('event: error\ndata: {"message": "gone", "code": 500}\n\n',), "gone"),
    "Anthropic's": (('event: error\ndata: {"type": "error", "error": {"message": "Overloaded"}}\n\n',), "Overloaded"),
    "vLLM's of 2024": (({"object": "error", "message": "gone", "code": 500},), "gone"),
    "of the type error": (({"type": "error", "message": "gone"},), "gone"),
    "only a message": (({"message": "gone", "code": 500},), "gone"),
    "llama.cpp's": (('error: {"code": 500, "message": "gone"}\n\n',), "gone"),
    "text": (("data: upstream connect error\n\n",), "upstream connect error"),
    "after the end": (
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"error": {"message": "gone"}}),
        "gone",
    ),
    "stop after an error": (
        tuple({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]} for reason in ("error", "stop")),
        "'error'",
    ),
    "nothing": ((), "its stream ended before the answer did"),
    "only the mark of the end": (("data: [DONE]\n\n",), "its stream ended before the answer did"),
}


@pytest.mark.parametrize("case", ENDS)
async def test_a_stream_that_ends_in_an_error_is_no_answer(chat_server: Any, case: str) -> None:
    pieces, expected = ENDS[case]
    chat_server.will(chat_server.streams({"choices": [{"index": 0, "delta": {"content": "4"}}]}, *pieces))
    async with make(chat_server, streamed=True, retries=0) as agent:
        ending, said = await ask(agent)
    assert ending == "broken" and expected in said


ANSWER = 'data: {"choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
FORMS: dict[str, tuple[str, str]] = {
    "a byte order mark": ("\ufeff" + ANSWER, "text/event-stream"),
    "no type": (ANSWER, ""),
    "another type": (": ping\n\n" + ANSWER, "text/plain"),
    "capital letters": (ANSWER, "Text/Event-Stream"),
    "data of several lines": (ANSWER.replace("[{", "\ndata: [{"), "text/event-stream"),
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_stream_is_read_in_each_form(chat_server: Any, form: str) -> None:
    text, kind = FORMS[form]
    chat_server.will(chat_server.sends(text, headers={"content-type": kind}))
    async with make(chat_server, streamed=True, retries=0) as agent:
        assert await ask(agent) == ("stop", "4")


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


def streamed_calls(chat_server: Any, parts: list[list[dict[str, Any]]], *, at_end: bool) -> Any:
    deltas = [{"tool_calls": part} for part in parts]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if at_end:
        chunks[-1]["choices"][0]["finish_reason"] = "tool_calls"
    else:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return chat_server.streams(*chunks, "data: [DONE]\n\n")


async def calls_of(chat_server: Any, behaviour: Any, *, streamed: bool) -> list[tuple[str, Any]]:
    chat_server.will(behaviour)
    conversation = Conversation(request_id="c", max_turn_tokens=50, observation=({"role": "user", "content": "?"},))
    async with make(chat_server, streamed=streamed, retries=0) as agent:
        _, action = await agent.act(conversation, Math().tools)
    return [(made.name, made.arguments) for made in action.tool_calls]


@pytest.mark.parametrize("at_end", [False, True], ids=["before the end", "in the last chunk"])
@pytest.mark.parametrize("case", PARTS)
async def test_streamed_parts_make_the_calls_that_were_meant(chat_server: Any, case: str, at_end: bool) -> None:
    behaviour = streamed_calls(chat_server, PARTS[case]["chunks"], at_end=at_end)
    assert [list(call) for call in await calls_of(chat_server, behaviour, streamed=True)] == PARTS[case]["calls"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_function_call_of_the_first_api_is_a_call(chat_server: Any, streamed: bool) -> None:
    whole = chat_server.says(None, function_call={"name": "look", "arguments": '{"x": 1}'}, finish="function_call")
    parts = ({"name": "look", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ": 1}"})
    chunks = [{"choices": [{"index": 0, "delta": {"function_call": part}}]} for part in parts]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]}
    behaviour = chat_server.streams(*chunks, end) if streamed else whole
    assert await calls_of(chat_server, behaviour, streamed=streamed) == [ONE]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_numbers_of_arguments_that_are_no_text_keep_their_digits(chat_server: Any, streamed: bool) -> None:
    written = '{"x": 1.10, "y": -0, "z": 0.12345678901234567}'
    function = f'{{"function": {{"name": "look", "arguments": {written}}}}}'
    field = "delta" if streamed else "message"
    body = f'{{"choices": [{{"{field}": {{"tool_calls": [{function}]}}, "finish_reason": "stop"}}]}}'
    behaviour = chat_server.streams(f"data: {body}\n\n") if streamed else chat_server.sends(body)
    [(_, arguments)] = await calls_of(chat_server, behaviour, streamed=streamed)
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
    "OpenRouter": {
        "error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": '{"error": "' + FULL}}
    },
}
OTHERS: dict[str, tuple[int, Any]] = {
    "a rate in the body": (200, {"error": {"message": "Too many tokens", "code": 429}}),
    "what was sent": (422, {"detail": [{"msg": "Field required", "input": {"messages": [{"content": FULL}]}}]}),
    **{case: (int(status), text) for case, status, text in rows(__file__, "other_refusals.tsv")},
}


@pytest.mark.parametrize("maker", REFUSALS)
def test_a_full_context_is_known_in_the_words_of_its_maker(maker: str) -> None:
    for text in REFUSALS[maker]:
        for status in (400, 422, 500):
            assert says_context_full({"error": {"message": text, "type": "invalid_request_error"}}, status), text
        assert not says_context_full({"error": {"message": text}}, 429)


@pytest.mark.parametrize("body", BODIES)
def test_a_full_context_is_known_in_each_form(body: str) -> None:
    assert says_context_full(BODIES[body])


@pytest.mark.parametrize("case", OTHERS)
def test_other_refusals_are_no_full_context(case: str) -> None:
    status, message = OTHERS[case]
    assert not says_context_full(message if isinstance(message, dict) else {"error": {"message": message}}, status)


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
