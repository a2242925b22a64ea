"""How Transformers and servers render a conversation with a chat template. It must be as in the training.

`trial` plays a conversation with a renderer, `prompts` gives the prompts of an episode, and `difference` compares two.
`texts_of_export` chooses the chat template that renders the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agents.renderer.dialects import from_openai
from agents.renderer.families import NO_THINKING, THINK, Thinking, find_family
from agents.renderer.rendering import Renderer
from agents.renderer.tokenizer import chat_template
from forge_env.core.episode import Turn
from forge_env.core.protocols import Conversation
from forge_env.core.tokens import IDS, array_of
from forge_env.core.types import Message, ToolSpec

TEMPLATE, GENERATION = "chat_template.jinja", "generation_config.json"
"""The files of a model's folder with the rendering and the sampling for other programs."""
Render = Callable[[Sequence[Message]], list[int]]
"""Makes the tokens of a prompt from its messages."""
_SHOWN = 12  # tokens of a difference
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "max_new_tokens")
_TOOLS: tuple[ToolSpec, ...] = (
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    },
)
_PROMPT: tuple[Message, ...] = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is é?"})


def trial(renderer: Renderer, prompt: Sequence[Message] = (), tools: Sequence[ToolSpec] = _TOOLS) -> list[Turn]:
    """Play a conversation of calls, answers and questions, as a rollout would; returns its turns.

    Args:
        renderer: of the model.
        prompt: the first messages; if empty, the trial's own.
        tools: the first one is called; without tools there are answers only.
    """
    conversation = Conversation(request_id="trial", observation=tuple(prompt) or _PROMPT)
    for answer, following in _exchange(tools, thinks=renderer.thinks):
        row, new = renderer.next_prompt(conversation, tools)
        turn = Turn(
            kind="tokens",
            observation=conversation.observation,
            message=answer,
            prompt_ids=array_of(new, IDS),
            token_ids=array_of(renderer.write(answer), IDS),
            starts_row=not len(row),
        )
        conversation.turns.append(turn)
        conversation.observation = (following,)
    return conversation.turns


def prompts(turns: Sequence[Turn]) -> Iterator[tuple[list[Message], list[int]]]:
    """Yield the messages before each turn of an episode, and the tokens of the full prompt."""
    messages: list[Message] = []
    row: list[int] = []
    for turn in turns:
        messages += turn.observation
        row = [*([] if turn.starts_row else row), *turn.prompt_ids.tolist()]
        yield messages.copy(), row
        row = [*row, *turn.token_ids.tolist()]
        messages.append(turn.message)


def difference(renderer: Renderer, expected: Sequence[int], rendered: Sequence[int]) -> str:
    """The first difference of a prompt from the run's, as text or, if the text is the same, as tokens; "" if there is
    none.

    Args:
        renderer: of the run's model.
        expected: the tokens of the run.
        rendered: the tokens of the other program.
    """
    if list(expected) == list(rendered):
        return ""
    first = next((i for i, (a, b) in enumerate(zip(expected, rendered, strict=False)) if a != b), None)
    if first is None:
        first = min(len(expected), len(rendered))
    ours, theirs = (list(ids[first : first + _SHOWN]) for ids in (expected, rendered))
    shown = [repr(renderer.decode(ids)) if ids else "its end" for ids in (ours, theirs)]
    if renderer.decode(expected) == renderer.decode(rendered):
        shown = [f"the tokens {ids}" for ids in (ours, theirs)]
    return f"after {first} equal tokens the run has {shown[0]}, and it has {shown[1]}"


def texts_of_export(model: Path, thinking: Thinking, *, temperature: float) -> tuple[dict[str, str], str]:
    """Files for the folder of a trained model, so that other programs render and sample as the training did.

    The chat template is the model's own if it renders a trial conversation as the training did; otherwise the same with
    the training's defaults before it; otherwise the family's.
    the training's defaults before it; else that of the family.

    Args:
        model: the folder of the model that was trained.
        thinking: of the training.
        temperature: of the training's sampling.

    Returns:
        The texts by file name, and the first difference that is left, for a warning; "" if there is none.
    """
    from transformers import AutoTokenizer

    renderer, family, own = Renderer(model, thinking=thinking), find_family(model), chat_template(model)
    defaults = (NO_THINKING if THINK in own and not renderer.thinks else "") + family.defaults
    templates = [own, defaults + own]
    if family.own_template is not None:
        templates.append(("" if renderer.thinks else NO_THINKING) + family.own_template.read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    rendered = {template: _first_difference(renderer, with_template(tokenizer, template)) for template in templates}
    template = next((template for template in templates if not rendered[template]), templates[-1])
    texts = {TEMPLATE: template, GENERATION: _generation_config(model, renderer.stop_token_ids, temperature)}
    return texts, rendered[template]


def _first_difference(renderer: Renderer, render: Render) -> str:
    for messages, ids in prompts(trial(renderer)):
        try:
            first = difference(renderer, ids, render(messages))
        except Exception as error:  # a template can raise anything
            first = f"the chat template raised {type(error).__name__}: {error}"
        if first:
            return first
    return ""


def with_template(tokenizer: Any, template: str, tools: Sequence[ToolSpec] = _TOOLS) -> Render:
    """What Transformers and its users render with a chat template.

    Args:
        tokenizer: of Transformers.
        template: the Jinja source.
        tools: of every prompt.
    """

    def render(messages: Sequence[Message]) -> list[int]:
        options = {"tools": list(tools) or None, "add_generation_prompt": True, "return_dict": False}
        rendered = [as_rendered(message) for message in messages]
        return list(tokenizer.apply_chat_template(rendered, chat_template=template, **options))

    return render


def as_rendered(message: Message) -> dict[str, Any]:
    """A message as servers hand it to a chat template: the arguments of a call are an object."""
    copy: dict[str, Any] = dict(message)
    if message.get("tool_calls"):
        calls = from_openai(message)
        copy["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or {}}}
            for call in calls
        ]
    return copy


def _exchange(tools: Sequence[ToolSpec], *, thinks: bool) -> Iterator[tuple[Message, Message]]:
    """Yield the answers of a trial, and the message after each."""
    thought: Any = {"reasoning_content": "So."} if thinks else {}
    for result in ("A letter.", "{}") if tools else ():
        function = {"name": tools[0]["function"]["name"], "arguments": '{"word": "é"}'}
        call: Any = {"id": "call_0", "type": "function", "function": function}
        answer: Message = {"role": "assistant", "content": "", **thought, "tool_calls": [call]}
        yield answer, {"role": "tool", "content": result, "tool_call_id": "call_0"}
    yield {"role": "assistant", "content": "A letter.", **thought}, {"role": "user", "content": "Sure?\n"}
    yield {"role": "assistant", "content": "Yes.", **thought}, {"role": "user", "content": "Good."}


def _generation_config(model: Path, stop_token_ids: Sequence[int], temperature: float) -> str:
    """The model's own settings of generation, with the sampling and the ends of a turn of the training."""
    file = model / GENERATION
    saved = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    other_settings = {name: value for name, value in saved.items() if name not in _SAMPLING}
    sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}  # 0 is all tokens
    return json.dumps({**other_settings, **sampling, "eos_token_id": list(stop_token_ids)}, indent=2) + "\n"
