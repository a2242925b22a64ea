"""What providers send in place of a whole answer: whole and streamed, it is an answer, a cut one, a full context or a
fault. The texts are the providers' own."""

from __future__ import annotations

from typing import Any

import pytest

from agents.chat.agent import ChatAgent
from agents.chat.client import Usage
from agents.chat.refusals import says_context_full
from envs.math import Math
from forge_env.core.errors import PolicyError
from forge_env.core.json_text import write
from forge_env.core.protocols import ContextFull, Conversation
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode

TASK = Math.tasks(count=1)[0]
FULL = "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens."


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.chat.client._FIRST_PAUSE", 0.001)


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


def call(**fields: Any) -> dict[str, Any]:
    """A part of a call; `name` and `arguments` are its function's."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {**fields, "function": function} if function else fields


ONE, TWO = ("look", {"x": 1}), ("find", {"y": "{"})
PARTS: dict[str, tuple[list[list[dict[str, Any]]], list[tuple[str, Any]]]] = {
    "one index for two calls": (
        [
            [call(index=0, id="a", name="look", arguments='{"x": 1}')],
            [call(index=0, id="b", name="find", arguments='{"y": "{"}')],
        ],
        [ONE, TWO],
    ),
    "one index, in parts with ids": (
        [
            [call(index=0, id="a", name="look", arguments="")],
            [call(index=0, id="b", name="find", arguments="")],
            [call(index=0, id="a", arguments='{"x": 1}')],
            [call(index=0, id="b", arguments='{"y": "{"}')],
        ],
        [ONE, TWO],
    ),
    "one index without ids": (
        [
            [call(index=0, id="", name="look", arguments='{"x": 1}')],
            [call(index=0, id="", name="find", arguments='{"y": "{"}')],
        ],
        [ONE, TWO],
    ),
    "one index, one name": (
        [
            [call(index=0, id="", name="look", arguments='{"x": 1}')],
            [call(index=0, id="", name="look", arguments='{"x": 2}')],
        ],
        [ONE, ("look", {"x": 2})],
    ),
    "no index": (
        [
            [call(id="a", name="look", arguments='{"x"')],
            [call(arguments=": 1}")],
            [call(index=None, id="b", name="find", arguments='{"y":')],
            [call(index=None, arguments=' "{"}')],
        ],
        [ONE, TWO],
    ),
    "no index and no ids": (
        [[call(name="look", arguments={"x": 1})], [call(name="find", arguments=TWO[1])]],
        [ONE, TWO],
    ),
    "no index, two calls in a chunk": (
        [[call(id="a", name="look", arguments='{"x": 1}'), call(id="b", name="find", arguments='{"y": "{"}')]],
        [ONE, TWO],
    ),
    "ids and names in each part": (
        [
            [call(index=0, id="a", type="function", name="look", arguments="")],
            [call(index=0, id="a", type="function", name="look", arguments='{"x"')],
            [call(index=0, id="a", type="function", name="look", arguments=": 1}")],
            [call(index=1, id="b", name="find", arguments='{"y"')],
            [call(index=1, id="b", name="find", arguments=': "{"}')],
        ],
        [ONE, TWO],
    ),
    "names in each part, no ids": (
        [[call(index=0, name="look", arguments='{"x"')], [call(index=0, name="look", arguments=": 1}")]],
        [ONE],
    ),
    "a new id in each part": (
        [[call(index=0, id="a", name="look", arguments='{"x"')], [call(index=0, id="b", arguments=": 1}")]],
        [ONE],
    ),
    "nulls after the first part": (
        [
            [call(index=0, id="a", name="look", arguments="")],
            [call(index=0, id=None, name=None, arguments='{"x": 1}')],
        ],
        [ONE],
    ),
    "sent twice": ([[call(index=0, id="a", name="look", arguments='{"x": 1}')]] * 2, [ONE]),
    "the same call twice": (
        [[call(index=i, id=f"c{i}", name="look", arguments='{"x": 1}')] for i in range(2)],
        [ONE, ONE],
    ),
    "parts in another order": (
        [
            [call(index=1, id="b", name="find", arguments='{"y": "{"}')],
            [call(index=0, id="a", name="look", arguments='{"x": 1}')],
        ],
        [ONE, TWO],
    ),
    "parts in turn": (
        [
            [call(index=0, id="a", name="look", arguments="{"), call(index=1, id="b", name="find", arguments="{")],
            [call(index=0, arguments='"x": 1}'), call(index=1, arguments='"y": "{"}')],
        ],
        [ONE, TWO],
    ),
    "a name in parts": (
        [[call(index=0, id="a", name="lo")], [call(index=0, name="ok")], [call(index=0, arguments='{"x": 1}')]],
        [ONE],
    ),
    "no arguments": ([[call(index=0, id="a", name="look", arguments={})]], [("look", {})]),
    "without a function": ([[{"index": 0, "id": "a", "name": "look", "arguments": '{"x": 1}'}]], [ONE]),
}


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
    parts, calls = PARTS[case]
    behaviour = streamed_calls(chat_server, parts, at_end=at_end)
    assert await calls_of(chat_server, behaviour, streamed=True) == calls


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

REFUSALS: dict[str, tuple[str, ...]] = {
    "OpenAI": (
        FULL,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens. Please "
        "reduce the length of the messages.",
        "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576, but got a "
        "string with length 1540820 instead.",
    ),
    "Azure": (
        "This model's maximum context length is 8192 tokens. However, you requested 8300 tokens (7800 in the messages, "
        "500 in the completion). Please reduce the length of the messages or completion.",
    ),
    "OpenAI in 2023": (
        "This model's maximum context length is 4097 tokens, however you requested 5000 tokens (4000 in your prompt; "
        "1000 for the completion). Please reduce your prompt; or completion length.",
    ),
    "GitHub": ("Request body too large for gpt-4o-mini model. Max size: 8000 tokens.",),
    "a server of one's own": (
        "the prompt and the tokens to generate exceed the context length",
        "Context too long: 9000 > 8192",
        "Your request contains 9000 tokens, exceeding the 8192-token context window",
        "The length of your prompt (9000) is over the model maximum",
        "input_tokens + max_tokens > context length",
        "input_tokens (9000) + max_tokens (1000) > 8192",
        "exceeds the limit of 8192 tokens",
        "Prompt (9000 tokens) exceeds the limit of 8192 tokens",
        "Number of tokens in the prompt (9000) is greater than the limit of 8192 tokens",
        "Prompt is 9000 tokens long, but the maximum is 8192",
        "Your prompt has 9000 tokens, which is more than the 8192 tokens that this model supports",
        "The request of 9000 tokens does not fit into the context of 8192 tokens",
        "requested 9000 tokens, but the model supports at most 8192",
        "Your messages exceed the maximum of 8192 tokens",
        "Token limit of 8192 exceeded",
        "total_tokens 9000 > max_model_len 8192",
        "Context window of 8192 tokens exceeded by 808 tokens",
        "Unable to fit the prompt in the context window",
        "This model supports a maximum of 8192 tokens, but your request has 9000",
        "The combined length of the prompt and the completion exceeds 4096 tokens",
        "Your prompt with 3 images is too long: 9000 tokens > 8192 maximum",
    ),
    "mistral.rs": ("Prompt sequence length is greater than 4096, perhaps consider using `truncate_sequence`",),
    "Hugging Face": ("Input is too long for this model, shorten your input or use 'parameters': {'truncation': 'x'}",),
    "Cloudflare": (
        "AiError: The estimated number of input and maximum output tokens (9000) exceeded this model context window "
        "limit (8192).",
    ),
    "transformers": ("The sequence length 9000 is larger than max_position_embeddings 8192",),
    "Snowflake": ("max tokens of 8192 exceeded",),
    "Zhipu": ("Prompt 超长",),
    "Spark": ("token数量超过上限。对话历史+问题的字数太多，需要精简输入",),
    "Anthropic": (
        "too many total text bytes: 10000000 > 9000000",
        "prompt is too long: 213462 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or "
        "`max_tokens` and try again",
    ),
    "vLLM": (
        "This model's maximum context length is 32768 tokens. However, you requested 1024 output tokens and "
        "your prompt contains at least 31745 input tokens, for a total of at least 32769 tokens. Please reduce the "
        "length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=31745)",
        "This model's maximum context length is 100 tokens. However, your prompt contains at least 101 input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
        "You passed 8193 input tokens and requested 512 output tokens. However, the model's context length is "
        "only 8192 tokens, resulting in a maximum input length of 7680 tokens. Please reduce the length "
        "of the input prompt.",
        "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 100000 "
        "tokens and your request has 95000 input tokens (32000 > 100000 - 95000).",
        "The decoder prompt (length 8357) is longer than the maximum model length of 8192. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        "The decoder prompt (length 5747) is longer than max_model_len of 4096.",
        "Input prompt (5000 tokens) is too long and exceeds limit of 4096",
        "Input prompt (9000 tokens) + lookahead slots (0) is too long and exceeds the capacity of block_manager",
        "The decoder prompt (length 8357) is longer than the maximum model length of 8192. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens. For image inputs, the "
        "number of image tokens depends on the number of images, and possibly their aspect ratios as well.",
    ),
    "SGLang": (
        "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of "
        "140000 tokens: 130000 tokens from the input messages and 10000 tokens for the completion.",
        "The input (100500 tokens) is longer than the model's context length (100000 tokens).",
        "Input length (100500 tokens) exceeds the maximum allowed length (99999 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
    ),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3900 `inputs` tokens and "
        "500 `max_new_tokens`",
        "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
    ),
    "llama.cpp": (
        "the request exceeds the available context size, try increasing it",
        "request (8391 tokens) exceeds the available context size (8192 tokens), try increasing it",
        "input (8391 tokens) is larger than the max context size (8192 tokens). skipping",
        "Context size has been exceeded.",
        "Requested tokens (2500) exceed context window of 2048",
    ),
    "Ollama": (
        "prompt too long; exceeded max context length by 100918 tokens",
        "the input length exceeds the context length",
        "the prompt is longer than the context length currently available to the model; shorten the prompt",
    ),
    "LM Studio": (
        "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the "
        "model with a larger context length, or provide a shorter input",
        "Trying to keep the first 50785 tokens when context the overflows. However, the model is loaded with context "
        "length of only 45217 tokens, which is not enough.",
        "Reached context length of 4096 tokens with this model, but this model does not currently support "
        "mid-generation context overflow.",
        "Cannot truncate prompt with n_keep (5000) >= n_ctx (4096)",
    ),
    "Together": ("The input (516368 tokens) is longer than the model's context length (262144 tokens).",),
    "Groq": ("Please reduce the length of the messages or completion.",),
    "Fireworks": ("The prompt is too long: 40000, model maximum context length: 32767",),
    "Mistral": ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length",),
    "Vertex": ("Request contains text fields that are too large.",),
    "Gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        "Unable to submit request because the input token count is 1050000 but model only supports up to 1048576. "
        "Reduce the input token count and try again.",
    ),
    "DeepSeek": (
        "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens (65000 in the "
        "messages, 5000 in the completion). Please reduce the length of the messages or completion.",
    ),
    "Cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. Try using a shorter "
        "prompt, or enabling prompt truncating.",
    ),
    "LiteLLM": (
        "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: "
        "Hosted_vllmException - " + FULL,
        "litellm.ContextWindowExceededError: litellm._pre_call_checks: Context Window exceeded for given call. No "
        "models have context window large enough for this call.",
    ),
    "OpenRouter": (
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 200000 tokens (180000 "
        "of text input, 20000 in the output). Please reduce the length of either one.",
    ),
    "xAI": ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.",),
    "Bedrock": (
        "Input is too long for requested model.",
        "Malformed input request: expected maxLength: 100, actual: 120",
        "400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 9000",
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
    ),
    "Copilot": ("prompt token count of 130001 exceeds the limit of 128000",),
    "MiniMax": ("invalid params, context window exceeds limit (2013)",),
    "Kimi": ("Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",),
    "Qwen": ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",),
    "GLM": ("Prompt exceeds max length", "输入长度超过最大长度限制：上下文长度超限"),
    "TensorRT-LLM": (
        "Prompt length (9000) exceeds maximum input length (8192).",
        "The sum of prompt length (9000.0), query length (0) and max_tokens (100) should not exceed max_num_tokens "
        "(8192)",
    ),
    "Databricks": ("prompt_tokens + max_tokens must be less than or equal to model's context length 4096",),
    "tabbyAPI": ("Prompt length 9000 is greater than max_seq_len 8192",),
    "watsonx": ("the number of input tokens 9000 cannot exceed the total tokens limit 8192 for this model",),
    "Volcengine": ("Total tokens of image and text exceed max message tokens",),
    "Poolside": ("Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",),
}
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
    "a rate": (429, "Too many tokens per minute"),
    "a rate, as a mistake": (400, "Too many tokens per minute, please wait before trying again."),
    "a day": (400, "Tokens per day limit exceeded"),
    "the last minute": (400, "Too many tokens in the last minute"),
    "an organization": (400, "Organization token limit exceeded"),
    "a deadline": (500, "context deadline exceeded"),
    "any 429": (429, "Too many tokens"),
    "Bedrock": (400, "Too many tokens, please wait before trying again."),
    "OpenAI": (
        429,
        "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 80715. The "
        "input or output tokens must be reduced in order to run successfully.",
    ),
    "Groq": (
        413,
        "Request too large for model `llama` in organization `org_1` service tier `on_demand` on tokens per minute "
        "(TPM): Limit 6000, Requested 7000, please reduce your message size and try again.",
    ),
    "a quota": (403 + 97, "You exceeded your monthly token limit"),
    "max_tokens of OpenAI": (
        400,
        "max_tokens is too large: 32768. This model supports at most 16384 completion tokens, whereas you "
        "provided 32768.",
    ),
    "max_tokens of Anthropic": (
        400,
        "max_tokens: 30000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet",
    ),
    "max_tokens of Groq": (
        400,
        "`max_tokens` must be less than or equal to `32768`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model",
    ),
    "max_tokens of vLLM": (400, "max_tokens=200000 cannot be greater than max_model_len=100000."),
    "max_tokens of vLLM, as long as the window": (
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: 200000. This model's maximum context length is 32768 "
        "tokens and your request has 20 input tokens (200000 > 32768 - 20).",
    ),
    "max_tokens of TGI": (
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 17 `inputs` tokens and "
        "10000 `max_new_tokens`",
    ),
    "max_tokens of DeepSeek": (400, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
    "a name": (
        400,
        "Invalid 'messages[3].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a "
        "string with length 46 instead.",
    ),
    "a proxy's limit": (413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    "a rate in the body": (200, {"error": {"message": "Too many tokens", "code": 429}}),
    "a rate in Chinese": (400, "请求频率超过最大限制，请稍后再试"),
    "a rate of some minutes": (400, "Too many tokens per 5 minutes"),
    "tokens at once": (400, "Concurrency limit reached: too many input tokens being processed"),
    "a key": (400, "Token limit exceeded for your API key"),
    "OpenRouter's credits": (402, "Prompt tokens limit exceeded: 9000 > 7000. To increase, visit your settings"),
    "time": (504, "Your prompt took too long to process"),
    "max_tokens of OpenAI in 2023": (
        400,
        "This model's maximum context length is 4097 tokens, however you requested 5020 tokens (20 in your prompt; "
        "5000 for the completion). Please reduce your prompt; or completion length.",
    ),
    "a load": (503, "The model is overloaded"),
    "a time": (504, "Request timeout: prompt tokens processed 5000 of 9000, longer than 60 s"),
    "images of messages": (400, "Invalid request: messages exceeds 100 images"),
    "a cache": (500, "KV cache is full"),
    "a cache, of a long prompt": (500, "the prompt is too long for now: the KV cache is full"),
    "an image": (400, "messages.1.content.0.image: image too large"),
    "an image of the input": (400, "Input image is too large. The maximum is 20 MB"),
    "an image of Anthropic": (
        400,
        "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes",
    ),
    "images": (400, "too many images"),
    "images of a prompt": (400, "Too many images in the prompt: the maximum is 8 images"),
    "tokens of an image": (400, "Image tokens exceed the limit of 4096 tokens per image"),
    "a sound": (400, "Input audio file is too long"),
    "pages": (400, "The PDF in your message is too large"),
    "a member": (400, "messages.2.tool_calls.0.id is too long"),
    "a member's name": (400, "The tool name in messages[2] is too long (max 64)"),
    "a key of the bearer": (400, "Invalid request: the bearer token is longer than 4096 characters"),
    "stop tokens": (400, "The request has 5 stop tokens, but the maximum is 4"),
    "tools": (400, "The request has 130 tools, but the maximum is 128"),
    "too short": (400, "Prompt length must be greater than 0"),
    "max_tokens of a server": (400, "Invalid request: max_tokens (20000) is greater than the maximum (8192)"),
    "max_tokens of another": (400, "max_completion_tokens 20000 exceeds the limit of 8192 tokens"),
    "an answer": (400, "The output exceeds the limit of 8192 tokens"),
    "what was sent": (422, {"detail": [{"msg": "Field required", "input": {"messages": [{"content": FULL}]}}]}),
    "a role": (400, "messages[2].role is unknown"),
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
