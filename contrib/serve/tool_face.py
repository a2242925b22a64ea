"""An environment as tools alone, for protocols that know nothing else: its own, and one that writes a message."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from contrib.common.json_text import write
from forge_env.core.types import Action, Message, ToolCall, ToolSpec

ANSWER = "answer"
_ANSWER_TEXT = (
    "Write a message without a tool call: the final answer of the task, or what you say to whoever talks to you. "
    "Returns the reply, or that the episode is over."
)


def names_of(tools: Sequence[ToolSpec]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def free_name(name: str, names: Collection[str]) -> str:
    """The name of a tool of the server beside the environment's: "answer", else "task_answer".

    >>> free_name("answer", ["price"]), free_name("answer", ["answer"])
    ('answer', 'task_answer')
    """
    while name in names:
        name = f"task_{name}"
    return name


def tool_list(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the environment's tools and the one that writes a message: name, description and input_schema."""
    functions = [tool["function"] for tool in tools]
    entries = [
        {
            "name": function["name"],
            "description": function.get("description", ""),
            "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
        }
        for function in functions
    ]
    text = {"type": "string", "description": "The text of the message."}
    schema = {"type": "object", "properties": {"text": text}, "required": ["text"], "additionalProperties": False}
    return [*entries, {"name": free_name(ANSWER, names_of(tools)), "description": _ANSWER_TEXT, "input_schema": schema}]


def action_of(name: str, arguments: Mapping[str, Any], tools: Sequence[ToolSpec]) -> Action:
    """Return the message that a call is: one tool call, or the text of the answer."""
    if name == free_name(ANSWER, names_of(tools)):
        text = arguments.get("text")
        if not isinstance(text, str) or len(arguments) != 1:
            raise ValueError(f"the tool {name} takes one argument, text, which is a string")
        return Action(message={"role": "assistant", "content": text})
    call = ToolCall(id=f"call_{uuid.uuid4().hex[:12]}", name=name, arguments=dict(arguments))
    function = {"name": name, "arguments": write(call.arguments)}
    openai_call = {"id": call.id, "type": "function", "function": function}
    return Action(message={"role": "assistant", "content": "", "tool_calls": [openai_call]}, tool_calls=(call,))


def text_of(messages: Sequence[Message]) -> str:
    return "\n\n".join(message["content"] for message in messages if message["content"])
