"""Calls without a mark: whether a text is one of calls, and the dialect of Llama, which has a mark for some."""

from __future__ import annotations

import re

from agents.renderer.dialects.bodies import Json
from agents.renderer.dialects.calls import Calls, Tools, Written, names_a_call
from agents.renderer.model_json import SPACE, decode
from forge_env.core.types import ToolCall

_PYTHON_TAG = "<|python_tag|>"
_BETWEEN = re.compile(rf"[{SPACE};]*")
_END_OF_TURN = re.compile(r"(<\|eom_id\|>|<\|eot_id\|>)\s*$")
_KEYS = ("parameters", "arguments")
_BREAKS_OFF = re.compile(r'\[?\s*\{\s*"name"\s*:')
_PYTHON_CALLS = re.compile(rf"\[[{SPACE}]*[^\W\d][\w.-]*\(")


def looks_like_json(text: str, tools: Tools) -> bool:
    """Whether JSON is calls: all have a name, and arguments or the name of an offered tool; or it breaks off."""
    if not text.startswith(("{", "[")):
        return False
    value, _, problem = decode(text)
    if problem:
        return bool(_BREAKS_OFF.match(text)) and any(f'"{key}"' in text for key in _KEYS)
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(names_a_call(item, _KEYS, tools) for item in items)


def looks_like_json_list(text: str, tools: Tools) -> bool:
    return text.startswith("[") and looks_like_json(text, tools)


def looks_like_python(text: str, tools: Tools) -> bool:
    return _PYTHON_CALLS.match(text) is not None


class Llama:
    """JSON objects that are the answer, separated by ";" or white space; after a tag if other words come first."""

    marks = (_PYTHON_TAG,)
    _body = Json(keys=_KEYS)
    form = _body.form

    def read(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]]:
        before, tag, body = "", "", text
        inner_text = text.strip(SPACE)
        if not (
            inner_text.startswith("{") and looks_like_json(inner_text, tools)
        ):  # if so, a tag is part of an argument
            before, tag, body = text.partition(_PYTHON_TAG)
            if not tag:
                return text, []
        calls: list[ToolCall] = []
        rest, at = _END_OF_TURN.sub("", body).strip(SPACE), 0
        while rest.startswith("{", at):
            value, end, problem = decode(rest, at)
            block = [Written(problem=problem, raw=rest[at:end])] if problem else self._body.calls(value, rest[at:end])
            calls += [one.call(self.form) for one in block]
            at = _BETWEEN.match(rest, end).end()  # type: ignore[union-attr]  # it matches everywhere
        rest = rest[at:]
        if not rest and not calls:
            return text, []
        if not calls:
            calls, rest = [Written(problem="it is not a JSON object", raw=rest).call(self.form)], ""
        return "\n".join(part for part in (before.strip(), rest.strip()) if part), calls

    def write(self, content: str, calls: Calls) -> str:
        text = "; ".join([self._body.write((call,)) for call in calls])
        if not content or not calls:
            return content or text
        return f"{content}{_PYTHON_TAG}{text}"
