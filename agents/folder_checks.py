"""What every use of a model's folder needs, checked before an engine or a trainer starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agents.model_weights import check_head
from agents.renderer.conversation_format import Thinking, ToolsForm
from agents.renderer.rendering import Renderer
from agents.served_tokenizer import ServedTokenizer


@dataclass(frozen=True, slots=True)
class CheckedFolder:
    renderer: Renderer
    tokenizer: str
    """How programs that serve the folder tokenise otherwise, see `ServedTokenizer.check`; "" if they do not."""


def check_folder(folder: Path, thinking: Thinking, tools: ToolsForm = "auto") -> CheckedFolder:
    """Check the template, the tokenizer, the thinking and the output layer of a Hugging Face folder."""
    check_head(folder)
    with ServedTokenizer(folder) as tokenizer:  # its process works meanwhile
        renderer = Renderer(folder, thinking=thinking, tools=tools)
        return CheckedFolder(renderer, tokenizer.check())
