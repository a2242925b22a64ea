"""The contract of a user, and what a user gets to see of a conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from contrib.common.usage import Usage
from forge_env.core.types import Message

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """What the user says next."""

    text: str = ""
    """May be empty only if the user is done."""
    done: bool = False
    """Whether the user ends the conversation with this turn."""
    usage: Usage | None = None
    """What a model that plays the user has used for this turn; it is recorded in the Episode."""


class User(Protocol):
    """The user of one episode.

    A class attribute `user` of an environment serves all its episodes. If it has a method `start(task, *, seed)`, that
    returns the user of one episode. If the user has a coroutine method `aclose`, it is called when the episode is
    closed.
    """

    def reply(self, messages: Sequence[Message]) -> UserTurn | Awaitable[UserTurn]:
        """Return the user's answer to a conversation; a coroutine method, or a plain one, which runs in a thread.

        Whatever it raises is a fault of the episode, which then has no reward.
        """
        ...


def visible(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield what the user sees: his own messages, and the agent's messages to him.

    He sees no system message, no tool call with its result and the text beside it, and no reasoning.
    """
    for message in messages:
        if message["role"] == "user":
            yield {"role": "user", "content": message["content"]}
        elif message["role"] == "assistant" and not message.get("tool_calls"):
            yield {"role": "assistant", "content": without_thoughts(message["content"])}


def without_thoughts(text: str) -> str:
    """Remove the parts of a text between <think> and </think>; either mark may be missing.

    >>> without_thoughts("<think>He is angry.</think>I am sorry.")
    'I am sorry.'
    """
    text = _THOUGHT.sub("", text)
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def transcript(messages: Sequence[Message]) -> str:
    """Return what the user has seen as JSON lines, for a judge; no message can pass for a message of the other side."""
    return "\n".join(json.dumps(message, ensure_ascii=False) for message in visible(messages))
