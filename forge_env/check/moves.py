"""Scripted play: what the checks do in an environment, without a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from forge_env.check.samples import sample_arguments
from forge_env.core.episode import Turn
from forge_env.core.errors import PolicyError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Action, Message, ToolCall, ToolSpec
from forge_env.core.user_code import NOT_CAUGHT, describe
from forge_env.utils.threads import invoke

Move = Callable[[Conversation, Sequence[ToolSpec]], Awaitable[Action]]
"""Reads a conversation and the tools, and says what to do next."""
PROBED_TOOLS = 8
"""How many tools `probe` calls at most."""


class Player:
    """An agent that does what a Move says.

    Args:
        gate: where it waits before every turn, for all who play at the same time.
    """

    def __init__(self, move: Move, gate: Gate | None = None) -> None:
        self._move = move
        self._gate = gate

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if self._gate is not None:
            await self._gate.wait()
        action = await self._move(conversation, tools)
        turn = Turn(
            kind="text", observation=conversation.observation, message=action.message, tool_calls=action.tool_calls
        )
        return turn, action


class Gate:
    """Keeps episodes in step: nobody takes a turn before everybody else who still plays is ready for one.

    So 64 instances are all reset before the first of them steps, and whatever they share is shared for certain.
    """

    def __init__(self, players: int) -> None:
        self._players = players
        self._waiting = 0
        self._open = asyncio.Event()

    async def wait(self) -> None:
        self._waiting += 1
        opening = self._open
        self._let_pass()
        await opening.wait()

    def leave(self) -> None:
        """Say that an episode has ended."""
        self._players -= 1
        self._let_pass()

    def _let_pass(self) -> None:
        if self._waiting >= self._players:
            self._open.set()
            self._open, self._waiting = asyncio.Event(), 0


def says(text: str) -> Action:
    """A turn that is a final answer."""
    return Action(message={"role": "assistant", "content": text})


def calls(*made: tuple[str, dict[str, Any] | None]) -> Action:
    """A turn that calls tools, by name and arguments; None for arguments that are not JSON."""
    parsed = tuple(
        ToolCall(id=f"call_{i}", name=name, arguments=arguments)
        if arguments is not None
        else ToolCall(id=f"call_{i}", name=name, arguments=None, raw='{"a": ', error="not a JSON object")
        for i, (name, arguments) in enumerate(made)
    )
    written = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or call.raw}}
        for call in parsed
    ]
    return Action(message={"role": "assistant", "content": "", "tool_calls": written}, tool_calls=parsed)


def plays(*actions: Action) -> Move:
    """Take these actions one after another, then answer "" for as long as it goes on."""

    async def move(conversation: Conversation, tools: Sequence[ToolSpec]) -> Action:
        turn = len(conversation.turns)
        return actions[turn] if turn < len(actions) else says("")

    return move


async def probe(conversation: Conversation, tools: Sequence[ToolSpec]) -> Action:
    """Call every tool once with arguments that fit its schema, then answer "0"."""
    if conversation.turns or not tools:
        return says("0")
    return calls(*((name, sample_arguments(tools, name)) for name in tool_names(tools)[:PROBED_TOOLS]))


async def endless(conversation: Conversation, tools: Sequence[ToolSpec]) -> Action:
    """Call the same tool again and again; without tools, go on talking."""
    names = tool_names(tools)
    return calls((names[0], sample_arguments(tools, names[0]))) if names else says("And so on.")


def tool_names(tools: Sequence[ToolSpec]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def by_expert(expert: Callable[[list[Message]], Any]) -> Move:
    """Do what an environment's own `expert` says, a coroutine or a plain function, which runs in a thread.

    Raises:
        PolicyError: from the move, when the expert raises or says something that is no assistant message.
    """

    async def move(conversation: Conversation, tools: Sequence[ToolSpec]) -> Action:
        try:
            message = await invoke(expert, conversation.messages)
            return Action(message=_with_content(message), tool_calls=_parsed(message))
        except NOT_CAUGHT:
            raise
        except BaseException as error:
            raise PolicyError(describe("expert", error)) from error

    return move


def _with_content(message: Message) -> Message:
    if message["role"] != "assistant" or not isinstance(message["content"], str):
        raise ValueError("it returned no assistant message whose content is text")
    return message


def _parsed(message: Message) -> tuple[ToolCall, ...]:
    """The calls of an OpenAI-shaped message; `arguments` may be an object, or JSON text as the API has it."""
    parsed = []
    for i, call in enumerate(message.get("tool_calls", [])):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        parsed.append(ToolCall(id=call.get("id", f"call_{i}"), name=name, arguments=arguments))
    return tuple(parsed)
