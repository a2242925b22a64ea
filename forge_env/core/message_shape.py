"""Checks the shape of messages, data and kinds. Each function returns one phrase about the first problem, or ""."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
MAX_KIND = 64
"""Characters of the name of a kind of task."""


def messages_problem(messages: Any) -> str:
    """Check a sequence of OpenAI-shaped messages."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        return f"the messages are a {type(messages).__name__}; return a list of messages"
    for i, message in enumerate(messages):
        if problem := _message_problem(message):
            return f"message {i} {problem}"
    return ""


def _message_problem(message: Any) -> str:
    if not isinstance(message, Mapping):
        return f"is a {type(message).__name__}; a message is a dict with role and content"
    if message.get("role") not in ROLES:
        return f"has the role {message.get('role')!r}; it is one of {', '.join(ROLES)}"
    if not isinstance(message.get("content"), str):
        return f"has the content {message.get('content')!r}; content is text"
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        return "has the role 'tool' and no tool_call_id; give it the id of the call that it answers"
    return json_problem(message)


def json_problem(value: Any) -> str:
    """Check that a value can be written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error).partition(": ")[0]  # from Python 3.12 on a number follows; the sentence is the same for all
        return f"cannot be written as JSON ({reason}); keep to dicts, lists, text, finite numbers, booleans and None"
    return ""


def record_problem(value: Any) -> str:
    """Check that JSON holds a value as it is, so that a record of it is graded as the value itself."""
    if problem := json_problem(value):
        return problem
    if json.loads(json.dumps(value)) != value:
        return "holds a tuple, or a dict with a key that is no text, which a record cannot keep: use lists and text"
    return ""


def kind_problem(value: Any) -> str:
    """Check the name of a kind of task: it is a part of the names of metrics, and is printed in tables."""
    if not isinstance(value, str):
        return f"is a {type(value).__name__}; it is a text"
    if len(value) > MAX_KIND or not value.isprintable() or "[" in value or value != value.strip():
        return f"is {value!r:.80}; it is a text of at most {MAX_KIND} printable characters, without [ and outer spaces"
    return ""
