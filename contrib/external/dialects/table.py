"""All dialects by their paths, and what is common to the endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contrib.external.dialects.anthropic_messages import AnthropicCount, AnthropicMessages
from contrib.external.dialects.dialect import Dialect
from contrib.external.dialects.openai_chat import OpenAIChat
from contrib.external.dialects.openai_completions import OpenAICompletions
from contrib.external.dialects.openai_responses import OpenAIResponses

DIALECTS: Mapping[str, Dialect] = {
    dialect.path: dialect
    for dialect in (OpenAIChat(), OpenAICompletions(), OpenAIResponses(), AnthropicMessages(), AnthropicCount())
}
"""By the path of their requests."""


def default_dialect(headers: Mapping[bytes, bytes]) -> Dialect:
    """The dialect of a request if its path says nothing, like the path for the models."""
    return DIALECTS[AnthropicMessages.path if b"anthropic-version" in headers else OpenAIChat.path]


def list_of_models(name: str, default: str, headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The model of a name, or with "" the list of the one that is `known`."""
    model: dict[str, Any]
    if b"anthropic-version" in headers:
        id_ = name or default
        model = {"type": "model", "id": id_, "display_name": id_, "created_at": "1970-01-01T00:00:00Z"}
        return model if name else {"data": [model], "has_more": False, "first_id": id_, "last_id": id_}
    model = {"id": name or default, "object": "model", "created": 0, "owned_by": "forge_env"}
    return model if name else {"object": "list", "data": [model]}
