"""The model families that can be talked to: which renderer each has, and how it is set up.

An architecture's name in config.json is not enough to know a family by: the chat template decides.
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
    """How the models of one architecture are set up. Thinking is off where it can be switched."""

    create: Callable[[FastTokenizer, str], Any]
    """Makes the library's renderer, or one like it, from the tokenizer and the chat template."""
    models: str = ""
    """What the user knows the family as, where other families share the architecture's name."""
    template: tuple[str, ...] = ()
    """What a chat template of this family holds, and those of the others do not."""
    foreign: str = ""
    """What no chat template of this family holds."""
    dialect: str = "none"
    """Calls that the library leaves in the content, as it does with several or broken ones of Llama."""
    one_call: bool = False
    """Whether the template refuses a message with several calls."""
    marks: tuple[str, ...] = ()
    """Marks of the template that are plain text to the tokenizer, and that no user or tool may write either."""


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
        raise UserError(f"the model in {folder} is a {name}; renderers are set up for: {', '.join(FAMILIES)}")
    family, template = FAMILIES[name], chat_template(folder)
    wrong = [f"does not hold {mark!r}" for mark in family.template if mark not in template]
    if family.foreign and family.foreign in template:
        wrong.append(f"holds {family.foreign!r}")
    if wrong:
        raise UserError(
            f"the model in {folder} is a {name} whose chat template {wrong[0]}: "
            f"of this architecture, renderers are set up for {family.models}"
        )
    return family
