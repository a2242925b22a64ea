"""Decodes recorded turns with a model's tokenizer and renderer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agents.renderer.conversation_format import Thinking
from agents.renderer.rendering import Renderer
from forge_env.core.episode import Turn
from forge_env.core.types import Message


def open_decoder(model: str | Path, thinking: Thinking = "off") -> Callable[[Turn], Message]:
    """A function that decodes the tokens of a turn into its message.

    Args:
        model: the folder of the model that wrote them.
        thinking: the setting with which they were sampled, see `Renderer`.
    """
    renderer = Renderer(model, thinking=thinking)

    def decode(turn: Turn) -> Message:
        return renderer.read(turn.token_ids, turn.finish_reason).message

    return decode
