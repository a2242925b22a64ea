"""Chat datasets in their published shapes, read into OpenAI-shaped messages.

- ``messages``: OpenAI's own, `role` and `content`, with `tool_calls`; the tools in a column `tools`. The older form is
  read as well: `function_call`, the role `function`, and a column `functions`. A `refusal` is what the assistant wrote.
  An assistant message of `weight` 0 is read and not learned.
- ``conversations``: ShareGPT's, `from` and `value`; calls are turns of `function_call`, results of `observation`.
- ``prompt`` and ``completion`` or ``response``, ``question`` and ``answer``, ``problem`` and ``solution``: one
  exchange, each a text or a list of messages.
- ``instruction`` and ``output`` or ``response``: Alpaca's; an ``input`` stands behind the instruction.

A column may hold JSON as text, as in a CSV file. `find_shape` tells the shape from the columns' names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agents.renderer.dialects import from_openai
from agents.renderer.model_json import kind
from forge_env.core.episode import Row
from forge_env.core.errors import UserError
from forge_env.core.types import THOUGHTS, Message, ToolCall, ToolSpec
from forge_env.data.rows import BadRow, text_problem

INSTRUCTION = "instruction"
PAIRS = (
    *(("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("problem", "solution")),
    *((INSTRUCTION, "output"), (INSTRUCTION, "response")),
)
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
}
_CONTEXT = "weight"
"""Marks a message that is read only, until the whole chat is known."""
_TOOL_KEYS = {"input_schema": "parameters", "inputSchema": "parameters"}
"""Anthropic's and MCP's names."""
KEPT = {key: key for key in ("tool_call_id", "name")} | dict.fromkeys(reversed(THOUGHTS), "reasoning_content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One conversation to learn from, and the tools of its assistant."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    context: frozenset[int] = frozenset()
    """Places of the assistant messages that are read, and not learned."""
    rows: tuple[Row, ...] = ()
    """The token rows of an Episode; empty if it is to be rendered."""
    env: str = ""
    """The environment of an Episode; it has the tools."""
    task: str = ""
    """The id of an Episode's task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the rows of a dataset are read."""

    columns: str
    """The columns that it reads, for people: "the column messages"."""
    read: Callable[[Mapping[str, Any]], Example]
    """Raises BadRow for a row that is not a conversation."""


def find_shape(columns: Collection[str], *, source: str, messages_field: str = "messages") -> Shape:
    there = ", ".join(map(str, columns)) or "(none)"
    if messages_field not in ("messages", *columns):
        raise UserError(f"--sft.messages_field is {messages_field!r}, and {source} has the columns {there}: name one")
    for name in (messages_field, "conversations"):
        if name in columns:
            return Shape(columns=f"the column {name}", read=partial(_from_list, name))
    for question_column, answer_column in PAIRS:
        if question_column in columns and answer_column in columns:
            return Shape(
                columns=f"the columns {question_column} and {answer_column}",
                read=partial(_from_pair, question_column, answer_column),
            )
    raise UserError(
        f"{source} has the columns {there}; a chat dataset has messages, conversations, or a pair such as prompt and "
        "completion: name the column of its messages with --sft.messages_field"
    )


def _from_list(column: str, row: Mapping[str, Any]) -> Example:
    items = _parse(row.get(column))
    if not isinstance(items, Sequence) or isinstance(items, str) or not items:
        raise BadRow(f"its {column} are {kind(items)}, not a list of messages")
    return _chat([_message(item) for item in items], row)


def _from_pair(question_column: str, answer_column: str, row: Mapping[str, Any]) -> Example:
    question, more = _side(row, question_column, "user"), row.get("input")
    if question_column == INSTRUCTION and isinstance(more, str) and more.strip():
        question[-1]["content"] += f"\n\n{more}"
    return _chat([*question, *_side(row, answer_column, "assistant")], row)


def _side(row: Mapping[str, Any], column: str, role: str) -> list[Message]:
    value = row.get(column)
    if isinstance(value, (list, tuple)) and value:
        return [_message(item) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)  # a CSV file has answers such as 4
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"its {column} is {kind(value) if value else 'empty'}")
    return [_message({"role": role, "content": value})]


def _chat(messages: list[Message], row: Mapping[str, Any]) -> Example:
    system = row.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    if messages[0]["role"] == "assistant":
        raise BadRow("it begins with an assistant message, which answers nothing")
    if problem := text_problem(messages):
        raise BadRow(f"it {problem}")
    with_marks: list[Any] = messages
    context = frozenset(place for place, message in enumerate(with_marks) if message.pop(_CONTEXT, False))
    answers = [m for i, m in enumerate(messages) if m["role"] == "assistant" and i not in context]
    if not answers:
        raise BadRow("it has no assistant message to learn from")
    if any(not message["content"].strip() and not message.get("tool_calls") for message in answers):
        last = " that ends it" if answers[-1] is messages[-1] and not answers[-1]["content"].strip() else ""
        raise BadRow(f"an assistant message{last} is empty, so that its end alone would be learned")
    return Example(messages=tuple(messages), tools=tools_of(row), context=context)


def _message(item: Any) -> Message:
    if not isinstance(item, Mapping):
        raise BadRow(f"a message is {kind(item)}, not an object with role and content")
    if "role" not in item and "from" in item:
        return _from_sharegpt(item)
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadRow(f"a message has the role {role!r}; the roles are {', '.join(dict.fromkeys(ROLES.values()))}")
    message: dict[str, Any] = {"role": ROLES[role], "content": _content(item)}
    message |= {name: item[key] for key, name in KEPT.items() if isinstance(item.get(key), str) and item[key]}
    if calls := _calls(item):
        message["tool_calls"] = _openai_calls(from_openai({"tool_calls": calls}))
    if message["role"] == "assistant" and _weight(item) == 0:
        message[_CONTEXT] = True
    return message  # type: ignore[return-value]


def _content(item: Mapping[str, Any]) -> str:
    """The text of a message; a refusal is what the assistant wrote instead of an answer."""
    content, refusal = _text(item.get("content")), _text(item.get("refusal"))
    if content and refusal:
        raise BadRow("a message has a content and a refusal")
    return content or refusal


def _calls(item: Mapping[str, Any]) -> Any:
    """The tool calls of a message; `function_call` is the older form of one."""
    calls, older = _parse(item.get("tool_calls")), _parse(item.get("function_call"))
    if calls and older:
        raise BadRow("a message has tool_calls and a function_call")
    return calls or (older and [{"function": older}])


def _weight(item: Mapping[str, Any]) -> int:
    weight = item.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1, "0", "1")):
        raise BadRow(f"a message has the weight {weight!r:.40}; it is 0, to be read only, or 1, to be learned")
    return 1 if weight is None else int(weight)


def _from_sharegpt(item: Mapping[str, Any]) -> Message:
    role, value = item["from"], item.get("value")
    if role != "function_call":
        return _message({**item, "role": role, "content": value})
    calls = _parse(value)
    call_list = calls if isinstance(calls, list) else [calls]
    tool_calls = [{"function": call} for call in call_list]
    return _message({**item, "role": "assistant", "content": "", "tool_calls": tool_calls})


def _openai_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Calls with objects as `arguments`: each renderer then writes them as its family's models do."""
    for call in calls:
        if call.arguments is None:
            raise BadRow(f"a tool call is unreadable: {call.error}")
    return [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)) and all(isinstance(part, Mapping) for part in content):
        texts = [part.get(part["type"]) if part.get("type") in ("text", "refusal") else None for part in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
        kinds = ", ".join(sorted({str(part.get("type")) for part in content}))
        raise BadRow(f"a message holds parts of the types {kinds}; only text can be learned from")
    raise BadRow(f"a message's content is {kind(content)}, not text")


def tools_of(row: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools in the column `tools`, or `functions` in the older form; none if there is no such column."""
    tool_list = _parse(row.get("tools")) or _parse(row.get("functions")) or []
    if not isinstance(tool_list, (list, tuple)):
        raise BadRow(f"its tools are {kind(tool_list)}, not a list")
    return tuple(_tool(item) for item in tool_list)


def _tool(item: Any) -> ToolSpec:
    item = _parse(item)
    function = item.get("function", item) if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRow("one of its tools has no name")
    # Present keys keep their order, which is the order of the prompt's text.
    complete = {_TOOL_KEYS.get(key, key): value for key, value in function.items()}
    complete.setdefault("description", "")
    parameters = complete.setdefault("parameters", {"type": "object", "properties": {}})
    complete["parameters"] = _parse(parameters) if isinstance(parameters, str) else parameters
    return {"type": "function", "function": complete}  # type: ignore[typeddict-item]


def _parse(value: Any) -> Any:
    """The value of a column that may contain JSON as text."""
    if not isinstance(value, str) or not value.strip():
        return value or None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"{value[:40]!r} is no JSON: {error}") from None
