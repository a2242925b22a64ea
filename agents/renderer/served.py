"""How Transformers and servers render a conversation with a chat template. It must be as in the training.

`difference` compares two prompts, and `texts_of_export` gives an export the template that the run has executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agents.renderer.call_form import TRIAL_TOOLS
from agents.renderer.chat_template import TEMPLATE
from agents.renderer.conversation_format import Thinking, ToolsForm
from agents.renderer.rendering import Renderer
from agents.renderer.trial import prompts, trial
from forge_env.core.types import Message, ToolSpec
from forge_env.records.run_files import read_object

GENERATION = "generation_config.json"
"""The file of a model's folder with the sampling for other programs."""
Render = Callable[[Sequence[Message]], list[int]]
"""Makes the tokens of a prompt from its messages."""
_SHOWN = 12  # tokens of a difference
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "max_new_tokens")


def difference(renderer: Renderer, expected: Sequence[int], actual: Sequence[int]) -> str:
    """The first difference of a prompt from the run's, as text or, if the text is the same, as tokens; "" if there is
    none.
    """
    if list(expected) == list(actual):
        return ""
    first = next((i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), None)
    if first is None:
        first = min(len(expected), len(actual))
    ours, theirs = (list(ids[first : first + _SHOWN]) for ids in (expected, actual))
    values = [repr(renderer.decode(ids)) if ids else "its end" for ids in (ours, theirs)]
    if renderer.decode(expected) == renderer.decode(actual):
        values = [f"the tokens {ids}" for ids in (ours, theirs)]
    return f"after {first} equal tokens the run has {values[0]}, and it has {values[1]}"


def texts_of_export(
    model: Path, thinking: Thinking, tools: ToolsForm, *, temperature: float
) -> tuple[dict[str, str], str]:
    """Files for the folder of a trained model, so that other programs render and sample as the training did.

    Args:
        tools: `renderer.tools` of the training.

    Returns:
        The texts by file name, and the first difference of what Transformers renders, for a warning; "" if there is
        none.
    """
    from transformers import AutoTokenizer

    renderer = Renderer(model, thinking=thinking, tools=tools)
    source = renderer.format.template.source
    difference_text = first_difference(
        renderer, with_template(renderer, AutoTokenizer.from_pretrained(str(model)), source)
    )
    return {
        TEMPLATE: source,
        GENERATION: _generation_config(model, renderer.stop_token_ids, temperature),
    }, difference_text


def first_difference(renderer: Renderer, render: Render) -> str:
    """The first difference of another program's prompts in a trial; "" if there is none."""
    for messages, ids in prompts(trial(renderer)):
        try:
            first = difference(renderer, ids, render(messages))
        except Exception as error:  # a template can raise anything
            first = f"the chat template raised {type(error).__name__}: {error}"
        if first:
            return first
    return ""


def with_template(renderer: Renderer, tokenizer: Any, template: str, tools: Sequence[ToolSpec] = TRIAL_TOOLS) -> Render:
    """What Transformers and its users render with a chat template.

    Args:
        renderer: prepares messages as a server does: the arguments of a call are an object.
    """
    tools = () if renderer.format.tools_problem else tools

    def render(messages: Sequence[Message]) -> list[int]:
        options = {"tools": list(tools) or None, "add_generation_prompt": True, "tokenize": False}
        template_messages = [renderer.format.prepare(message) for message in messages]
        # How the tokenizer of Transformers cuts a text is another question: `agents.served_tokenizer`.
        return renderer.encode(tokenizer.apply_chat_template(template_messages, chat_template=template, **options))

    return render


def _generation_config(model: Path, stop_token_ids: Sequence[int], temperature: float) -> str:
    """The model's own settings of generation, with the sampling and the ends of a turn of the training."""
    file = model / GENERATION
    own_settings = read_object(file) if file.is_file() else {}
    other_settings = {name: value for name, value in own_settings.items() if name not in _SAMPLING}
    sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}  # 0 is all tokens
    return json.dumps({**other_settings, **sampling, "eos_token_id": list(stop_token_ids)}, indent=2) + "\n"
