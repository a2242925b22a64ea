"""The shape of messages. Every function returns a sentence that says what is wrong, or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


def wrong_with_messages(messages: Any) -> str:
    """Check a sequence of OpenAI-shaped messages."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        return f"the messages are a {type(messages).__name__}; return a list of messages"
    for i, message in enumerate(messages):
        if problem := _wrong_with_message(message):
            return f"message {i} {problem}"
    return ""


def _wrong_with_message(message: Any) -> str:
    if not isinstance(message, Mapping):
        return f"is a {type(message).__name__}; a message is a dict with role and content"
    if message.get("role") not in ROLES:
        return f"has the role {message.get('role')!r}; it is one of {', '.join(ROLES)}"
    if not isinstance(message.get("content"), str):
        return f"has the content {message.get('content')!r}; content is text"
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        return "is a tool's and has no tool_call_id; give it the id of the call that it answers"
    return wrong_with_json(message)


def wrong_with_json(value: Any) -> str:
    """Check that a value can be written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be written as JSON ({error}); keep to dicts, lists, text, finite numbers, booleans and None"
    return ""
