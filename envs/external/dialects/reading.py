"""What several dialects read alike.

A run samples as its own settings say. So a parameter that would change which tokens are sampled is refused or ignored,
and the response says which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.external.requests import RequestRefused, whole_number
from forge_env.core.types import ToolSpec

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "chat_template_kwargs",
)  # fmt: skip
"""Fields that would change the sampling, and that are ignored."""
ACCOUNTING = (
    "metadata", "moderation", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "user",
)  # fmt: skip
"""Fields about the service rather than the answer, and that are ignored."""
_MAX_STOPS = 16


def tools_are_off(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    return (choice.get("type") if isinstance(choice, dict) else choice) == "none"


def limit(body: Mapping[str, Any], *names: str) -> int | None:
    """The limit of tokens: of the first of some parameters that is set."""
    name = next((name for name in names if body.get(name) is not None), names[-1])
    value = whole_number(body.get(name))
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise RequestRefused(400, f"{name} is {json.dumps(value)[:80]}; it is a whole number from 1 on", param=name)
    return value


def stops(value: Any, name: str = "stop") -> tuple[str, ...]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    is_valid = isinstance(texts, list) and all(isinstance(text, str) and text for text in texts)
    if not is_valid or len(texts) > _MAX_STOPS:
        raise RequestRefused(400, f"{name} is a text or up to {_MAX_STOPS} texts, none of them empty", param=name)
    return tuple(texts)


def text_of(content: Any, where: str) -> str:
    """The text of a content that is a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part if isinstance(part, str) else _part(part) for part in parts]
    if any(text is None for text in texts):
        raise RequestRefused(400, f"{where} holds content that is no text; the model reads text only", param=where)
    return "".join(text for text in texts if text)


def _part(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else None


def call_of(id_: Any, name: str, arguments: Any) -> dict[str, Any]:
    """A call of an earlier turn, in the form of a `Message`."""
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return {
        "id": id_ if isinstance(id_, str) else "",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def tool_of(name: str, description: Any, parameters: Any) -> ToolSpec:
    schema = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": name, "description": str(description or ""), "parameters": schema},
    }
