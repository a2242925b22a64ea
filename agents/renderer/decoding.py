"""Reads recorded turns again: what their tokens say under a model's tokenizer and family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agents.renderer.rendering import Renderer
from forge_env.core.episode import Turn
from forge_env.core.types import Message


def open_decoder(model: str | Path) -> Callable[[Turn], Message]:
    """Return the function that decodes a turn with tokens into its message, as it was when it was sampled.

    Raises:
        UserError: when the folder's model family has no renderer, or it holds no tokenizer of that family.
    """
    renderer = Renderer(model)

    def decode(turn: Turn) -> Message:
        return renderer.read(turn.token_ids, turn.finish_reason).message

    return decode
