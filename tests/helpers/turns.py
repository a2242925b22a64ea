"""Turns of a conversation, as a token agent records them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.renderer.rendering import Renderer
from forge_env.core.episode import Turn
from forge_env.core.protocols import Conversation


def next_prompt(renderer: Renderer, conversation: Conversation, tools: Sequence[Any]) -> tuple[list[int], int, bool]:
    """The next prompt, the number of its tokens from earlier turns, and whether a row starts."""
    row, new = renderer.next_prompt(conversation, tools)
    return row.tolist() + new, len(row), not len(row)


def add_turn(
    renderer: Renderer, conversation: Conversation, token_ids: list[int], tools: Sequence[Any]
) -> tuple[list[int], int]:
    """Ask for the next prompt, record the turn as an agent would; returns the prompt and how much of it is old."""
    prompt, old, starts_row = next_prompt(renderer, conversation, tools)
    action = renderer.read(token_ids, "stop")
    conversation.turns.append(
        Turn(
            kind="tokens",
            observation=conversation.observation,
            message=action.message,
            tool_calls=action.tool_calls,
            prompt_ids=tuple(prompt[old:]),
            token_ids=tuple(token_ids),
            starts_row=starts_row,
        )
    )
    return prompt, old
