"""Scripted agents: what the checks do in an environment, without a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from forge_env.core.episode import Turn
from forge_env.core.errors import PolicyError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Action, Message, ToolCall, ToolSpec
from forge_env.core.user_code import NOT_CAUGHT, describe
from forge_env.utils.threads import invoke

Strategy = Callable[[Conversation, Sequence[ToolSpec]], Awaitable[Action]]
"""Returns the next action for a conversation and the tools."""
MAX_TRIED_TOOLS = 8
"""Maximum number of tools that `try_every_tool` calls."""


class StrategyAgent:
    """An agent that acts by a strategy. The barrier keeps episodes that run at the same time in step."""

    def __init__(self, strategy: Strategy, barrier: TurnBarrier | None = None) -> None:
        self._strategy = strategy
        self._barrier = barrier

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if self._barrier is not None:
            await self._barrier.wait()
        action = await self._strategy(conversation, tools)
        turn = Turn(
            kind="text", observation=conversation.observation, message=action.message, tool_calls=action.tool_calls
        )
        return turn, action


class TurnBarrier:
    """Keeps episodes in step: none takes its next turn before all others that still run are ready for theirs.

    With 64 instances, all are reset before the first one steps, so that their shared state is certain to overlap.
    """

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._waiting = 0
        self._open = asyncio.Event()

    async def wait(self) -> None:
        self._waiting += 1
        opening = self._open
        self._open_when_complete()
        await opening.wait()

    def leave(self) -> None:
        self._episodes -= 1
        self._open_when_complete()

    def _open_when_complete(self) -> None:
        if self._waiting >= self._episodes:
            self._open.set()
            self._open, self._waiting = asyncio.Event(), 0


def final_answer(text: str) -> Action:
    return Action(message={"role": "assistant", "content": text})


def tool_calls(*calls: tuple[str, dict[str, Any] | None]) -> Action:
    """Return a turn that calls tools, by name and arguments; None for arguments that are not JSON."""
    turn_calls = tuple(
        ToolCall(id=f"call_{i}", name=name, arguments=arguments)
        if arguments is not None
        else ToolCall(id=f"call_{i}", name=name, arguments=None, raw='{"a": ', error="not a JSON object")
        for i, (name, arguments) in enumerate(calls)
    )
    openai_calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or call.raw}}
        for call in turn_calls
    ]
    return Action(message={"role": "assistant", "content": "", "tool_calls": openai_calls}, tool_calls=turn_calls)


def actions_in_order(*actions: Action) -> Strategy:
    """Return a strategy that takes these actions one after another, then answers "" until the episode ends."""

    async def strategy(conversation: Conversation, tools: Sequence[ToolSpec]) -> Action:
        turn = len(conversation.turns)
        return actions[turn] if turn < len(actions) else final_answer("")

    return strategy


async def try_every_tool(conversation: Conversation, tools: Sequence[ToolSpec]) -> Action:
    """Call every tool once with arguments that fit its schema, then answer "0"."""
    if conversation.turns or not tools:
        return final_answer("0")
    return tool_calls(*((name, sample_arguments(tools, name)) for name in tool_names(tools)[:MAX_TRIED_TOOLS]))


async def never_finish(conversation: Conversation, tools: Sequence[ToolSpec]) -> Action:
    """Call the same tool in every turn; without tools, answer with text in every turn."""
    names = tool_names(tools)
    return tool_calls((names[0], sample_arguments(tools, names[0]))) if names else final_answer("And so on.")


def tool_names(tools: Sequence[ToolSpec]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def follow_expert(expert: Callable[[list[Message]], Any]) -> Strategy:
    """Return the strategy of an environment's `expert`: a coroutine, or a plain function, which runs in a thread."""

    async def strategy(conversation: Conversation, tools: Sequence[ToolSpec]) -> Action:
        try:
            return as_action(await invoke(expert, conversation.messages))
        except NOT_CAUGHT:
            raise
        except BaseException as error:
            raise PolicyError(describe("expert", error)) from error

    return strategy


def as_action(message: Message) -> Action:
    if message["role"] != "assistant" or not isinstance(message["content"], str):
        raise ValueError("it returned no assistant message whose content is text")
    calls = []
    for i, call in enumerate(message.get("tool_calls", [])):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        calls.append(ToolCall(id=call.get("id", f"call_{i}"), name=name, arguments=arguments))
    return Action(message=message, tool_calls=tuple(calls))


_SAMPLE_OF_TYPE: Mapping[str, Any] = {"string": "1", "integer": 1, "number": 1.0, "boolean": True, "null": None}
_MAX_DEPTH = 8  # a schema may refer to itself


def sample_arguments(tools: Sequence[ToolSpec], name: str) -> dict[str, Any]:
    """Return minimal valid arguments for a tool: the required ones only."""
    schema = _parameters(tools, name)
    value = _sample(schema, schema, _MAX_DEPTH)
    return value if isinstance(value, dict) else {}


def uniform_arguments(tools: Sequence[ToolSpec], name: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(_parameters(tools, name).get("properties", {}), value)


def _parameters(tools: Sequence[ToolSpec], name: str) -> Mapping[str, Any]:
    return next(tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name)


def _sample(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if "$ref" in schema:
        return _sample(_resolve(root, schema["$ref"]), root, depth - 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _sample(schema[key][0], root, depth - 1)
    return _sample_of_type(schema, root, depth)


def _sample_of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, {}), root, depth - 1) for name in schema.get("required", ())}
    if kind == "array":
        first = schema.get("prefixItems", [])
        rest = [schema.get("items", {})] * max(0, schema.get("minItems", 0) - len(first))
        return [_sample(item, root, depth - 1) for item in [*first, *rest]]
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    if kind == "string":
        return "1" * max(1, min(schema.get("minLength", 1), 1000))
    return _SAMPLE_OF_TYPE.get(kind)


def _resolve(root: Mapping[str, Any], reference: str) -> Any:
    schema: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        schema = schema.get(part) if isinstance(schema, Mapping) else None
    return schema
