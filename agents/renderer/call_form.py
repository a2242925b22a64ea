"""How a chat template writes calls: the dialect is the one with a reader that returns the calls of a trial."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agents.renderer.chat_template import ChatTemplate
from agents.renderer.dialects import from_openai, matching, new_id, parse
from agents.renderer.reading import END_THINK
from forge_env.core.errors import TemplateError
from forge_env.core.types import Message, ToolSpec

_PARAMETERS = {
    "word": {"type": "string", "description": "The word."},
    "count": {"type": "integer", "description": "How often."},
    "exact": {"type": "boolean", "description": "Whether case matters."},
}
TRIAL_TOOLS: tuple[ToolSpec, ...] = (
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up.",
            "parameters": {"type": "object", "properties": _PARAMETERS, "required": ["word"]},
        },
    },
)
_CALLS = ({"word": 'é "x" & y'}, {"word": "two words", "count": 2, "exact": True})
"""The arguments of the calls of a trial."""
_IDS = ("openai", "mistral", "kimi_k2")
"""Dialects with ids that some templates ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    dialect: str = "none"
    problem: str = ""
    """Why the template cannot be used with tools; "" if it can."""
    one_call: bool = False
    """Whether an answer has room for one call only."""
    arguments_are_text: bool = False
    """Whether the template takes the arguments of a call as JSON text."""
    drops: Literal["", "text", "calls"] = ""
    """What the template leaves out of an answer with a text and calls."""
    end: str = ""
    """What ends an answer of calls, if the template ends other answers otherwise."""
    mark_of_results: str = ""
    """What ends an answer of calls, if it is the mark of the results that follow (GLM-4.5)."""


def learn_calls(template: ChatTemplate, question: Sequence[Message], *, opening: str, ends: Sequence[str]) -> CallForm:
    problem = ""
    for as_text, ids in ((as_text, ids) for ids in _IDS for as_text in (False, True)):
        calls = trial_calls(1, ids, as_text=as_text)
        try:
            text = _template_text(template, question, opening, calls)
        except TemplateError as error:
            problem = problem or f"refuses a call ({error})"
            continue
        problem = "writes calls in a form that is not known here" if "look_up" in text else "leaves out calls"
        body, end = _until_end(text, ends)
        if not (dialect := matching(body, from_openai({"tool_calls": trial_calls(1)}), TRIAL_TOOLS)):
            continue
        if rest := parse(body, dialect, TRIAL_TOOLS)[0].strip():  # an end of its own, or words that nobody has said
            if end or not text.rstrip().endswith(rest):
                continue
            end = rest
        if count := _read_of_two(template, question, opening, dialect, end, as_text=as_text):
            other = "" if end in ends else end
            mark = "" if end else _mark_of_results(template, question, calls, ends)
            form = CallForm(dialect=dialect, one_call=count == 1, arguments_are_text=as_text, end=other)
            drops = _dropped(template, question, opening, calls, ends)
            return replace(form, drops=drops, mark_of_results="" if mark == ends[0] else mark)
    return CallForm(problem=problem)


def trial_calls(count: int, dialect: str = "openai", *, as_text: bool = False) -> list[dict[str, Any]]:
    """The calls of a trial, in the shape of messages, with ids of a dialect."""
    calls = []
    for index, arguments in enumerate(_CALLS[:count]):
        value: Any = json.dumps(arguments, ensure_ascii=False) if as_text else dict(arguments)
        id_ = new_id(dialect, "look_up", index)
        calls.append({"id": id_, "type": "function", "function": {"name": "look_up", "arguments": value}})
    return calls


def _template_text(
    template: ChatTemplate, question: Sequence[Message], opening: str, calls: Sequence[Any], content: str = ""
) -> str:
    """What the template writes of an answer of calls, and what it ends the answer with."""
    answer = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    start = template.render(question, TRIAL_TOOLS, add_generation_prompt=True)
    text = template.render([*question, answer], TRIAL_TOOLS).removeprefix(start.removesuffix(opening))
    return text.rpartition(END_THINK)[2]


def _until_end(text: str, ends: Sequence[str]) -> tuple[str, str]:
    """A text before the first of some ends, and this end, "" if there is none."""
    end = min((end for end in ends if end in text), key=text.index, default="")
    return (text.partition(end)[0] if end else text), end


def _dropped(
    template: ChatTemplate, question: Sequence[Message], opening: str, calls: Sequence[Any], ends: Sequence[str]
) -> Literal["", "text", "calls"]:
    try:
        answer, _ = _until_end(_template_text(template, question, opening, calls, "So it is:"), ends)
    except TemplateError:
        return ""
    return "text" if "So it is:" not in answer else "" if "look_up" in answer else "calls"


def _mark_of_results(
    template: ChatTemplate, question: Sequence[Message], calls: Sequence[Any], ends: Sequence[str]
) -> str:
    """The end that a template writes behind calls only if results follow; "" if there is none."""
    messages = [*question, {"role": "assistant", "content": "", "tool_calls": list(calls)}]
    result = {"role": "tool", "content": "", "tool_call_id": calls[0]["id"]}
    before = template.render(messages, TRIAL_TOOLS)
    try:
        behind = template.render([*messages, result], TRIAL_TOOLS).removeprefix(before).lstrip()
    except TemplateError:
        return ""
    return next((end for end in ends if behind.startswith(end)), "")


def _read_of_two(
    template: ChatTemplate, question: Sequence[Message], opening: str, dialect: str, end: str, *, as_text: bool
) -> int:
    """How many of two calls in an answer are read back; 0 if what is read is something else."""
    try:
        text = _template_text(template, question, opening, trial_calls(2, dialect, as_text=as_text))
    except TemplateError:
        return 1
    read = parse(text.partition(end)[0] if end else text, dialect, TRIAL_TOOLS)[1]
    is_right = all((call.name, call.arguments) == ("look_up", _CALLS[i]) for i, call in enumerate(read[: len(_CALLS)]))
    return len(read) if is_right and 0 < len(read) <= len(_CALLS) else 0
