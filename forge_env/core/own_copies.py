"""Copies of values that episodes would otherwise share.

The rollout gives an environment its own copies of its options, of the task and of every action, and keeps copies of the
messages that it returns. So what an environment edits is neither in the record nor in a sibling.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from forge_env.core.types import Action, Task, ToolCall

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
    if kind is dict:
        copy_of_data: Any = data.copy()
        for key, item in data.items():
            if type(item) is not str:  # a call for each text would take most of the time
                copy_of_data[key] = own_copy(item, other)
        return copy_of_data
    if kind is not list and kind is not tuple:
        return value if kind is str else other(value)
    copy_of_data = [item if type(item) is str else own_copy(item, other) for item in data]
    return copy_of_data if kind is list else kind(copy_of_data)


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
        logprobs=action.logprobs,
    )
