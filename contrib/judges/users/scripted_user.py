"""ScriptedUser: a user that is a list of lines, or a function of the conversation."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

from contrib.judges.users.user import UserTurn
from forge_env.core.errors import EnvError, UserError, nearest
from forge_env.core.types import Message, Task
from forge_env.utils.threads import invoke

_ARGUMENTS = ("messages", "task")


class ScriptedUser:
    """A user without a model. One object serves all episodes of an environment.

    Example::

        def reply(messages, task):
            return task.metadata["order"] if "order" in messages[-1]["content"] else "I want my money back."

        user = ScriptedUser(reply, until=lambda messages: "refunded" in messages[-1]["content"])

    Args:
        script: the user's lines, each an answer to one message of the agent; the user is done when none is left. Or a
            function, plain or async, with parameters named after its arguments: `messages`, the conversation, and
            `task`. It returns a text, a UserTurn, or None when the user is done.
        until: a function with the same arguments; when it returns true, the user is done and says nothing more.

    Raises:
        UserError: for a line that is not text or is empty, or a function with other parameters.
    """

    def __init__(self, script: Sequence[str] | Callable[..., Any], *, until: Callable[..., Any] | None = None) -> None:
        if callable(script):
            self._names = _argument_names(script, "the script")
        elif isinstance(script, str) or not all(isinstance(line, str) and line.strip() for line in script):
            raise UserError(
                f"the lines of a scripted user are {script!r:.80}; they are a list of texts, none of them empty"
            )
        self._script = script
        self._until = until
        self._ends_by = () if until is None else _argument_names(until, "until")
        self._task: Task | None = None
        self._count = 0

    def start(self, task: Task, *, seed: int | None = None) -> Self:
        user = copy.copy(self)
        user._task, user._count = task, 0
        return user

    async def reply(self, messages: Sequence[Message]) -> UserTurn:
        arguments = {"messages": list(messages), "task": self._task}
        if self._until is not None and await invoke(self._until, **{name: arguments[name] for name in self._ends_by}):
            return UserTurn(done=True)
        if callable(self._script):
            return _turn(await invoke(self._script, **{name: arguments[name] for name in self._names}))
        if self._count == len(self._script):
            return UserTurn(done=True)
        self._count += 1
        return UserTurn(text=self._script[self._count - 1])


def _turn(value: Any) -> UserTurn:
    if value is None:
        return UserTurn(done=True)
    if isinstance(value, str):
        return UserTurn(text=value)
    if isinstance(value, UserTurn):
        return value
    raise EnvError(f"the script of the user returned {value!r:.80}; it returns a text, a UserTurn, or None for the end")


def _argument_names(function: Callable[..., Any], what: str) -> tuple[str, ...]:
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _ARGUMENTS:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise UserError(
                f"{what} of a scripted user has the parameter {parameter.name!r}, which it cannot get. "
                f"{nearest(parameter.name, _ARGUMENTS)}"
            )
    return tuple(names)
