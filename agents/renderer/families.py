"""The supported model families, and the renderer of every family.

The architecture's name in config.json does not identify a family; the chat template does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from renderers import Llama3RendererConfig, Qwen3RendererConfig, create_renderer

from agents.renderer.qwen25 import Qwen25Renderer
from agents.renderer.tokenizer import FastTokenizer, chat_template
from forge_env.core.errors import UserError, nearest

Calls = Literal["hermes", "llama"]
Thinking = Literal["off", "on", "template"]
"""Whether a model thinks before it answers; "template" is the default of its family's chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Settings of one model family."""

    create: Callable[[FastTokenizer, str], Any]
    """Creates the renderer from the tokenizer and the chat template. The model does not think."""
    create_thinking: Callable[[FastTokenizer, str], Any] | None = None
    """Creates the renderer with thinking, as the chat template has it by default; None if the family has no
    thinking."""
    models: str = ""
    """The family's common name, if other families share the architecture's name."""
    template: tuple[str, ...] = ()
    """Strings that are only in chat templates of this family."""
    foreign: str = ""
    """A string that is in no chat template of this family."""
    dialect: str = "none"
    """Dialect of calls that the library leaves in the content, such as several or malformed calls of Llama."""
    calls: Calls = "hermes"
    """The template's form of calls, for the grammar of an answer that must be a call."""
    own_template: Path | None = None
    """A chat template that renders the same as the renderer, for a model with a template that does not."""
    defaults: str = ""
    """Jinja that an export writes before the model's template: values that the renderer fixes."""
    tool_parser: str = "hermes"
    """vLLM's parser of calls."""
    one_call: bool = False
    """Whether the template refuses a message with several calls."""
    marks: tuple[str, ...] = ()
    """Markers of the template that are plain text to the tokenizer; messages of users and tools may not contain
    them."""


QWEN3_TEMPLATE = Path(__file__).with_name("qwen3_chat_template.jinja")
NO_THINKING = "{%- if enable_thinking is not defined %}{% set enable_thinking = false %}{% endif -%}\n"
"""Begins the chat template of an export of a model that was trained without thinking."""
_QWEN3 = Family(
    own_template=QWEN3_TEMPLATE,
    create=lambda tokenizer, _: create_renderer(tokenizer, Qwen3RendererConfig(enable_thinking=False)),
    create_thinking=lambda tokenizer, _: create_renderer(tokenizer, Qwen3RendererConfig(enable_thinking=True)),
)
_QWEN25 = Family(
    create=Qwen25Renderer,
    models="Qwen2.5",
    template=("<|im_start|>", "<tool_call>", "<tool_response>"),
    foreign="think>",
    dialect="hermes",
    marks=("<tool_response>", "</tool_response>"),
)
_QWEN3_INSTRUCT = Family(
    create=partial(Qwen25Renderer, has_default=False),
    models="Qwen3",
    template=("<|im_start|>", "<tool_call>", "<tool_response>"),
    dialect="hermes",
)
"""Qwen3 with a chat template without thoughts, such as Qwen3-4B-Instruct-2507."""
_LLAMA3 = Family(
    create=lambda tokenizer, _: create_renderer(tokenizer, Llama3RendererConfig()),
    models="Llama 3.1 and later",
    defaults='{%- if date_string is not defined %}{% set date_string = "26 Jul 2024" %}{% endif -%}\n',
    tool_parser="llama3_json",
    template=("<|start_header_id|>", "ipython"),
    dialect="llama",
    calls="llama",
    one_call=True,
)
THINK, END_THINK = "<think>", "</think>"
AFTER_THOUGHT = "\n\n"
CLOSE_THOUGHT = f"\n{END_THINK}{AFTER_THOUGHT}"
"""The text of a chat template between a thought and the answer."""
_BEGUN = rf"assistant\n{THINK}"  # in a generation prompt; in a string literal of the template a line end is \n
# architecture of config.json -> family
FAMILIES = {
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3,
    "Qwen2ForCausalLM": _QWEN25,
    "LlamaForCausalLM": _LLAMA3,
}


def find_family(folder: Path) -> Family:
    """The family of the model in a Hugging Face folder.

    Raises:
        UserError: there is no renderer for its architecture, or for its chat template.
    """
    config = json.loads((folder / "config.json").read_text())
    name = (config.get("architectures") or ["unknown"])[0]
    if name not in FAMILIES:
        raise UserError(f"the model in {folder} is a {name}; the supported architectures are: {', '.join(FAMILIES)}")
    family, template = FAMILIES[name], chat_template(folder)
    if family is _QWEN3 and template and THINK not in template:
        family = _QWEN3_INSTRUCT
    wrong = [f"does not hold {mark!r}" for mark in family.template if mark not in template]
    if family.foreign and family.foreign in template:
        wrong.append(f"holds {family.foreign!r}")
    if wrong:
        raise UserError(
            f"the model in {folder} is a {name}, and its chat template {wrong[0]}: "
            f"of this architecture, only {family.models} is supported"
        )
    return family


def check_thinking(folder: Path, thinking: str) -> bool:
    """Whether the model in a folder thinks with this setting, one of `Thinking`.

    Raises:
        UserError: the setting is unknown, or "on" with a model that has no thinking; or the chat template begins the
            thought itself.
    """
    if thinking not in get_args(Thinking):
        raise UserError(f"thinking is {thinking!r}. {nearest(thinking, get_args(Thinking))}")
    if thinking == "off":
        return False
    family, template = find_family(folder), chat_template(folder)
    has_thinking = family.create_thinking is not None and (THINK in template or not template)
    if thinking == "on" and not has_thinking:
        raise UserError(
            f"thinking is on, and the model in {folder} has no thinking, by its architecture or its chat template: set "
            "it to off, or choose another model"
        )
    if thinking == "template" and template.startswith(NO_THINKING):
        return False
    if has_thinking and _BEGUN in template:
        raise UserError(
            f"thinking is {thinking}, and the chat template in {folder} writes {THINK} itself before each answer; only "
            "models that write it themselves, such as Qwen3-8B, are supported: set it to off, or choose another model"
        )
    return has_thinking
