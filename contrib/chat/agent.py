"""ChatAgent: an OpenAI-compatible endpoint as an agent. Its turns hold no tokens, so it serves evaluation only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from agents.renderer.dialects import from_openai, to_openai
from agents.renderer.model_json import decode_all
from contrib.chat.client import ChatClient, Reply
from contrib.chat.reply import thought_of
from contrib.common.usage import Usage
from forge_env.core.episode import Turn
from forge_env.core.protocols import ContextFull, Conversation
from forge_env.core.types import Action, Message, ToolCall, ToolSpec
from forge_env.core.usage import Prices

OPENAI = "https://api.openai.com/v1"
TIMEOUT = 120.0
"""Time limit in seconds for an answer that is not streamed."""


class ChatAgent:
    """Answers with a model behind an endpoint. Close it, or use it with `async with`.

    If the environment asks for a form of the answer, the endpoint gets it as `response_format` or `tool_choice`, and an
    answer of another form is an error. It sends no seed, since many endpoints refuse one.

    Args:
        model: the model's name, as the endpoint knows it.
        base_url: the address before "/chat/completions".
        api_key_env: the environment variable that holds the API key; "" for an endpoint that takes none.
        temperature: sampling temperature; None leaves it to the endpoint, as some models require.
        max_concurrency: concurrent requests per event loop.
        requests_per_minute: rate limit; None sets none.
        timeout: seconds for one answer with its retries, without the wait for a free connection.
        idle_timeout: stream the answers, without a total limit; an answer fails if no byte came for this number of
            seconds. None asks for complete answers.
        answer_seconds: seconds for one answer, streamed or not, with its retries, without the wait for a free
            connection; None sets no limit in addition to `timeout` or `idle_timeout`.
        retries: further attempts after a temporary refusal (HTTP 408, 409, 429, 5xx), a failed connection, or a
            broken answer.
        sends_thoughts: send the reasoning of earlier turns back, as `reasoning` and `reasoning_content`. Some endpoints
            refuse these fields.
        extra_body: further fields of every request; None takes a field out.
        prices: of a million tokens; `usage.spent` then counts the cost.

    Raises:
        UserError: a setting is out of range, or a remote endpoint has no API key.
    """

    constrains = True

    def __init__(
        self,
        model: str,
        base_url: str = OPENAI,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        temperature: float | None = 1.0,
        max_concurrency: int = 16,
        requests_per_minute: float | None = None,
        timeout: float = TIMEOUT,
        idle_timeout: float | None = None,
        answer_seconds: float | None = None,
        retries: int = 4,
        sends_thoughts: bool = False,
        extra_body: Mapping[str, Any] | None = None,
        prices: Prices | None = None,
    ) -> None:
        self.temperature = temperature
        self.answer_seconds = answer_seconds
        self.sends_thoughts = sends_thoughts
        self.client = ChatClient(
            model=model,
            base_url=base_url,
            api_key_env=api_key_env,
            max_concurrency=max_concurrency,
            requests_per_minute=requests_per_minute,
            timeout=timeout,
            idle_timeout=idle_timeout,
            retries=retries,
            extra_body=dict(extra_body or {}),
            prices=prices,
        )

    def __repr__(self) -> str:
        return f"ChatAgent({self.client.model!r}, {self.client.base_url!r})"

    @property
    def usage(self) -> Usage:
        return self.client.usage

    async def compare_rendering(self, prompt: Sequence[Message], tools: Sequence[ToolSpec], *, like: str = "") -> str:
        """See `contrib.chat.rendering_check`."""
        from contrib.chat.rendering_check import compare_rendering

        return await compare_rendering(self, prompt, tools, like=like)

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        """Ask for one turn.

        Raises:
            UserError: the endpoint refuses the key, or does not know the model.
            ContextFull: the endpoint says that the conversation is too long, or its count has reached the limit.
            PolicyError: there was no answer.
        """
        constraint = conversation.constraint
        tools_on_offer, form = (tools, {}) if constraint is None else constraint.request(tools)
        reply = await self.client.complete(
            self.sent(conversation.messages),
            tools=tools_on_offer,
            max_tokens=_room(conversation),
            temperature=self.temperature,
            more=form,
        )
        action = _action(reply)
        if constraint is not None and not reply.message.get("refusal"):
            constraint.check(action, repr(self))
        turn = Turn(
            kind="text",
            observation=conversation.observation,
            message=action.message,
            tool_calls=action.tool_calls,
            finish_reason=action.finish_reason,
            usage=reply.usage,
            constraint="" if constraint is None else constraint.label,
        )
        return turn, action

    def sent(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages in the form that the endpoint gets."""
        return [_as_sent(message, thoughts=self.sends_thoughts) for message in messages]

    async def aclose(self) -> None:
        await self.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _room(conversation: Conversation) -> int:
    """Tokens of the next answer at most. The size of the conversation is known from the last answer's usage."""
    used_tokens = sum((conversation.turns[-1].usage or {}).values()) if conversation.turns else 0
    room = min(conversation.max_turn_tokens, conversation.max_tokens - int(used_tokens))
    if conversation.next_turn is not None and conversation.next_turn.max_tokens is not None:
        room = min(room, conversation.next_turn.max_tokens)
    if room < 1 or conversation.is_long(int(used_tokens)):
        raise ContextFull(f"the conversation holds {used_tokens:g} tokens of {conversation.max_tokens}")
    return room


def _action(reply: Reply) -> Action:
    calls = from_openai(reply.message)
    if isinstance(items := reply.message.get("tool_calls"), list):
        calls = tuple(map(_with_refusal, calls, items))
    message: Message = {"role": "assistant", "content": reply.text}
    reasoning = reply.message.get("reasoning_content") or reply.message.get("reasoning")
    reasoning = reasoning or thought_of(reply.message.get("content"))
    if reasoning and isinstance(reasoning, str):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = to_openai(calls)
    return Action(message=message, tool_calls=calls, finish_reason=reply.finish_reason, usage=dict(reply.usage))


def _with_refusal(call: ToolCall, item: Any) -> ToolCall:
    """A call with the sentence of `forge-env serve`, which has read the text of the call and could not."""
    function = item.get("function") if isinstance(item, Mapping) else None
    error = function.get("unreadable") if isinstance(function, Mapping) else None
    if not error or not isinstance(error, str):
        return call
    return replace(call, arguments=None, raw=str(function.get("arguments") or ""), error=error)  # type: ignore[union-attr]


def _as_sent(message: Message, *, thoughts: bool) -> dict[str, Any]:
    """A message in the endpoint's form: arguments as JSON text, no fields of forge_env."""
    result: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message["role"] == "tool":
        return result | {"tool_call_id": message.get("tool_call_id", "")}
    if "name" in message:
        result["name"] = message["name"]
    if thoughts and "reasoning_content" in message:
        result |= dict.fromkeys(("reasoning", "reasoning_content"), message["reasoning_content"])
    calls = to_openai(from_openai(message))
    if calls:
        for call in calls:
            call["function"]["arguments"] = _as_object(call["function"]["arguments"])
        # Several endpoints refuse an empty text beside calls.
        result |= {"content": message["content"] or None, "tool_calls": calls}
    return result


def _as_object(arguments: str) -> str:
    """Wrap unreadable arguments as text: some servers parse the arguments of earlier calls and fail on bad ones."""
    value, _ = decode_all(arguments)
    return arguments if isinstance(value, dict) else json.dumps({"unreadable": arguments})
