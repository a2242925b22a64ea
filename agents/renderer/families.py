"""The supported model families, and the renderer of every family.

The architecture's name in config.json does not identify a family: the chat template decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renderers import Llama3RendererConfig, Qwen3RendererConfig, create_renderer

from agents.renderer.qwen25 import Qwen25Renderer
from agents.renderer.tokenizer import FastTokenizer, chat_template
from forge_env.core.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Settings of one model family. Thinking is off if it can be switched."""

    create: Callable[[FastTokenizer, str], Any]
    """Creates the renderer from the tokenizer and the chat template."""
    models: str = ""
    """The family's common name, if other families share the architecture's name."""
    template: tuple[str, ...] = ()
    """Strings that are only in chat templates of this family."""
    foreign: str = ""
    """A string that is in no chat template of this family."""
    dialect: str = "none"
    """Dialect of calls that the library leaves in the content, such as several or malformed calls of Llama."""
    one_call: bool = False
    """Whether the template refuses a message with several calls."""
    marks: tuple[str, ...] = ()
    """Markers of the template that are plain text to the tokenizer; messages of users and tools may not contain
    them."""


_QWEN3 = Family(create=lambda tokenizer, _: create_renderer(tokenizer, Qwen3RendererConfig(enable_thinking=False)))
_QWEN25 = Family(
    create=Qwen25Renderer,
    models="Qwen2.5",
    template=("<|im_start|>", "<tool_call>", "<tool_response>"),
    foreign="think>",
    dialect="hermes",
    marks=("<tool_response>", "</tool_response>"),
)
_LLAMA3 = Family(
    create=lambda tokenizer, _: create_renderer(tokenizer, Llama3RendererConfig()),
    models="Llama 3.1 and later",
    template=("<|start_header_id|>", "ipython"),
    dialect="llama",
    one_call=True,
)
# architecture of config.json -> family
FAMILIES = {
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3,
    "Qwen2ForCausalLM": _QWEN25,
    "LlamaForCausalLM": _LLAMA3,
}


def find_family(folder: Path) -> Family:
    """Return the family of the model in a Hugging Face folder.

    Raises:
        UserError: when there is no renderer for its architecture, or for its chat template.
    """
    config = json.loads((folder / "config.json").read_text())
    name = (config.get("architectures") or ["unknown"])[0]
    if name not in FAMILIES:
        raise UserError(f"the model in {folder} is a {name}; the supported architectures are: {', '.join(FAMILIES)}")
    family, template = FAMILIES[name], chat_template(folder)
    wrong = [f"does not hold {mark!r}" for mark in family.template if mark not in template]
    if family.foreign and family.foreign in template:
        wrong.append(f"holds {family.foreign!r}")
    if wrong:
        raise UserError(
            f"the model in {folder} is a {name} whose chat template {wrong[0]}: "
            f"of this architecture, only {family.models} is supported"
        )
    return family
