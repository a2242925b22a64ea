"""Values of user code: as plain JSON data and as text, the same in each process; their copies; and their shapes.

The rollout gives an environment its own copies of its options, of the task and of every action, and keeps copies of the
messages that it returns. So what an environment edits is neither in the record nor in a sibling.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar

from forge_env.core.errors import EnvError
from forge_env.core.types import Action, Task, ToolCall

ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}\b")
"""An address in memory, as the usual repr() of an object shows it."""


def result_text(value: Any, where: str) -> str:
    """Return a result as the text that a model reads: a text as it is, data as JSON, other values by their own str().

    Args:
        where: begins the message of an error, such as "the tool look".
    """
    try:
        value = plain(value)
    except (ValueError, RecursionError) as error:
        reason = "something nested too deeply, or in itself" if isinstance(error, RecursionError) else str(error)
        raise EnvError(f"{where} returned {reason}: return a text, a number, a list or a dict") from None
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """Return a value as text, numbers, booleans, None, lists and dicts with text keys. Sets are sorted."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if type(value) in (list, tuple):
        return [plain(item) for item in value]
    if type(value) is dict:
        return _of_mapping(value)
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value))
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, type):
        raise ValueError(f"the class {value.__name__}")
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if hasattr(value, "tolist"):  # arrays and scalars of numpy and the like
        return plain(value.tolist())
    if isinstance(value, Set):
        return sorted(map(plain, value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, (Sequence, ValuesView, deque)):
        return [plain(item) for item in value]
    return _own_text(value)


def _of_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return f"[{len(value)} bytes]" if "\0" in text else text


def _of_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    pairs = [(key if type(key) is str else _key(key), plain(item)) for key, item in value.items()]
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a dict with two keys that have the same text")
    return mapping


def _key(key: Any) -> str:
    key = plain(key)
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False, separators=(",", ":"))


def _own_text(value: Any) -> str:
    kind = type(value)
    name = f"a {kind.__name__}"
    if hasattr(value, "__next__") or hasattr(value, "__anext__") or hasattr(value, "__await__"):
        raise ValueError(f"{name}, which is not run yet")
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise ValueError(f"{name}, which has no text of its own")
    text = str(value)
    if ADDRESS.search(text):
        raise ValueError(f"{name} with an address in memory as its text")
    return text


T = TypeVar("T")


def _deep(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # of a lock, for example
        return value


def own_copy(value: T, other: Callable[[Any], Any] = _deep) -> T:
    """Return a deep copy of messages and other data; an object that cannot be copied is shared.

    Args:
        value: copied several times as fast as by `copy.deepcopy`, if it consists of what JSON has.
        other: copies what is neither a container nor text.
    """
    data: Any = value
    kind = type(data)
    if kind is dict or kind is list:
        copy_of_data: Any = data.copy()
        for key, item in data.items() if kind is dict else enumerate(data):
            if type(item) is not str:  # a call for each text would take most of the time
                copy_of_data[key] = own_copy(item, other)
        return copy_of_data
    if kind is tuple:
        return kind(own_copy([*data], other))
    return value if kind is str else other(value)


def own_containers(value: T) -> T:
    """Copy containers only: an object in them, as a client, is shared."""
    return own_copy(value, lambda other: other)


def own_task(task: Task) -> Task:
    return replace(
        task, prompt=own_copy(task.prompt), target=own_copy(task.target), metadata=own_copy(dict(task.metadata))
    )


def own_action(action: Action) -> Action:
    # By name: `replace` takes as long as a call of a tool.
    calls = [
        ToolCall(id=c.id, name=c.name, arguments=own_copy(c.arguments), raw=c.raw, error=c.error)
        for c in action.tool_calls
    ]
    return Action(
        message=own_copy(action.message),
        tool_calls=tuple(calls),
        finish_reason=action.finish_reason,
        usage=action.usage,
    )


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


_ENCODER = json.JSONEncoder(allow_nan=False)
"""One for all values: a list of tasks may have hundreds of thousands."""


def json_problem(value: Any) -> str:
    """Check that a value can be written as JSON."""
    return _encoded(value)[1]


def record_problem(value: Any) -> str:
    """Check that JSON holds a value as it is, so that a record of it is graded as the value itself."""
    kind = type(value)
    if value is None or (kind is str and value.isascii()) or (kind is dict and not value):  # as most are
        return ""
    text, problem = _encoded(value)
    if not problem and json.loads(text) != value:
        return "holds a tuple, or a dict with a key that is no text, which a record cannot keep: use lists and text"
    return problem


def _encoded(value: Any) -> tuple[str, str]:
    """The JSON of a value, and the problem if there is none."""
    try:
        return _ENCODER.encode(value), ""
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error).partition(": ")[0]  # from Python 3.12 on a number follows; the sentence is the same for all
    return "", f"cannot be written as JSON ({reason}); keep to dicts, lists, text, finite numbers, booleans and None"


def task_problem(task: Task) -> str:
    """Check the content of a task."""
    if problem := messages_problem(task.prompt):
        return f"in its prompt, {problem}"
    if not isinstance(task.metadata, Mapping):
        return f"its metadata is a {type(task.metadata).__name__}; it is a dict"
    if problem := kind_problem(task.kind):
        return f"its kind {problem}"
    for part, value in (("target", task.target), ("metadata", dict(task.metadata))):
        if problem := record_problem(value):
            return f"its {part} {problem}"
    return ""


def kind_problem(value: Any) -> str:
    """Check the name of a kind of task: it is a part of the names of metrics, and is printed in tables."""
    if not isinstance(value, str):
        return f"is a {type(value).__name__}; it is a text"
    if len(value) > MAX_KIND or not value.isprintable() or "[" in value or value != value.strip():
        return f"is {value!r:.80}; it is a text of at most {MAX_KIND} printable characters, without [ and outer spaces"
    return ""
