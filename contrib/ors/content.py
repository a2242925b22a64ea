"""Blocks of the standard as messages and texts for a model that reads text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contrib.common.json_text import write
from contrib.common.media import Medium
from forge_env.core.errors import ServiceError
from forge_env.core.types import Message


def text_of(blocks: Any, where: str) -> str:
    """Return the text of blocks; an image becomes a note that it is not shown."""
    return "\n".join(_block_text(block, where) for block in _list(blocks, where))


def messages_of(messages: Any, where: str) -> list[Message]:
    result: list[Message] = []
    for message in _list(messages, where):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ("system", "user", "assistant"):
            raise ServiceError(f"{where} has a message of the role {role!r}")
        result += _messages_of(role, _list(message.get("blocks"), where), where)
    return result


def _messages_of(role: Any, blocks: Sequence[Any], where: str) -> list[Message]:
    """Return the messages of one: the results of tools that it holds come first, each as one of its own."""
    kinds = [block.get("type") if isinstance(block, Mapping) else None for block in blocks]
    by_kind = {kind: [b for b, k in zip(blocks, kinds, strict=True) if k == kind] for kind in kinds}
    results = by_kind.pop("tool_result", [])
    calls, thoughts = by_kind.pop("tool_call", []), by_kind.pop("reasoning", [])
    answers = [
        Message(role="tool", content=text_of(block.get("blocks"), where), tool_call_id=str(block.get("tool_call_id")))
        for block in results
    ]
    plain = [block for block in blocks if block in by_kind.get("text", []) or block in by_kind.get("image", [])]
    if len(plain) + len(results) + len(calls) + len(thoughts) != len(blocks):
        raise ServiceError(f"{where} has a block of the type {next(k for k in kinds if k not in _KINDS)!r}")
    if results and not plain:
        return answers
    own = Message(role=role, content=text_of(plain, where))
    if thoughts:
        own["reasoning_content"] = "\n".join(str(block.get("text", "")) for block in thoughts)
    if calls:
        own["tool_calls"] = [_openai_call(block) for block in calls]
    return [*answers, own]


_KINDS = ("text", "image", "reasoning", "tool_call", "tool_result")


def _openai_call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": str(block.get("name")), "arguments": write(block.get("input"))}
    return {"id": str(block.get("id")), "type": "function", "function": function}


def _block_text(block: Any, where: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    if kind == "image":
        return Medium(kind="image", media_type=str(block.get("mimeType") or ""), data=str(block.get("data", ""))).note
    raise ServiceError(f"{where} has a block that is neither text nor an image: {str(block)[:100]!r}")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ServiceError(f"{where} is no list: {str(value)[:100]!r}")
    return value
