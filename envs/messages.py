"""Assistant messages of experts and scripts: a call of a tool, or an answer."""

from __future__ import annotations

from typing import Any

from forge_env.core.types import Message


def call(name: str, /, **arguments: Any) -> Message:
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [function]}


def say(text: str) -> Message:
    """Return a message without a call: the final answer."""
    return {"role": "assistant", "content": text}
