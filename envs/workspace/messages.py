"""Assistant messages of scripts: calls of the tools of a workspace."""

from __future__ import annotations

from forge_env.core.types import Message


def call(name: str, **arguments: str | float) -> Message:
    """Return a message that calls one tool."""
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [function]}


def say(text: str) -> Message:
    """Return a message without a call: the final answer."""
    return {"role": "assistant", "content": text}
