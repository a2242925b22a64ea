"""Solutions of the tasks that this process has drawn, by the beginning of a conversation, all that an expert sees."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forge_env.core.errors import EnvError
from forge_env.core.types import Message, Task

Script = Callable[[Sequence[Message]], Message]
"""Returns the next message of a conversation."""

_MAX_SCRIPTS = 100_000
_scripts: OrderedDict[tuple[str, str], Script] = OrderedDict()


def remember(env: str, task: Task, script: Script) -> None:
    """Keep the solution of a task. Of tasks with the same prompt, the one that was drawn last is kept."""
    _scripts[env, prompt_key(task.prompt)] = script
    if len(_scripts) > _MAX_SCRIPTS:
        _scripts.popitem(last=False)


def expert_of(env: str, messages: Sequence[Message]) -> Message:
    """Return the next message of the solution of a conversation's task."""
    conversation = [message for message in messages if message["role"] != "system"]
    for length in range(len(conversation), 0, -1):
        if (script := _scripts.get((env, prompt_key(conversation[:length])))) is not None:
            return script(messages)
    raise EnvError(f"no solution of this task of {env} is known: it has none, or was not drawn in this process")


def prompt_key(messages: Sequence[Mapping[str, Any]]) -> str:
    """A text that is the same for the same messages; system messages are left out."""
    return json.dumps([[m["role"], m["content"]] for m in messages if m["role"] != "system"])
