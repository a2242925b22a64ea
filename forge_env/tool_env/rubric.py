"""Rubric: a weighted sum of reward functions, sync or async, with the value of each.

The parameters of a reward function name the arguments that it gets:

    prompt      str: the last user message of the task
    response    str: the model's final answer (`answer` is the same)
    target      the task's target
    task        the Task
    messages    list of Message: the whole conversation

For example `MathReward()(prompt, response, target)` and `def brief(response)`. A reward is a finite number, see
`forge_env.core.reward_value`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forge_env.core.errors import UserError, nearest
from forge_env.core.reward_value import reward_value
from forge_env.core.tools import without_self
from forge_env.core.types import Message, Task
from forge_env.core.user_code import guard
from forge_env.utils.targets import load
from forge_env.utils.threads import call_on, invoke

RewardFunction = Callable[..., Any]
ARGUMENTS = ("prompt", "response", "answer", "target", "task", "messages")
GROUP_ARGUMENTS = ("episodes", "answers", "prompt", "target", "task")
"""Of a reward of a group, see `forge_env.rollout.group_reward`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """A reward function, its weight, and the names of its arguments."""

    name: str
    function: RewardFunction
    weight: float
    names: tuple[str, ...]
    is_method: bool

    @property
    def reads_target(self) -> bool:
        """Whether it takes the task's target, or reads it of the task."""
        return "target" in (*self.names, *getattr(getattr(self.function, "__code__", None), "co_names", ()))

    @classmethod
    def of(
        cls,
        function: RewardFunction,
        *,
        name: str = "",
        weight: float = 1.0,
        is_method: bool = False,
        arguments: Sequence[str] = ARGUMENTS,
    ) -> RewardPart:
        name = name or _name_of(function)
        if not callable(function):
            raise UserError(f"a rubric has {function!r:.60}; it is a list of functions or of pairs (function, weight)")
        parameters: Sequence[inspect.Parameter] = [*inspect.signature(function).parameters.values()]
        if is_method:
            parameters = without_self(f"the reward {name}", parameters)
        by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for parameter in by_name:
            if parameter.name not in arguments and parameter.default is parameter.empty:
                raise UserError(
                    f"the reward {name} has the parameter {parameter.name!r}, which is no argument of a reward. "
                    f"{nearest(parameter.name, arguments)}"
                )
        names = tuple(p.name for p in by_name if p.name in arguments)
        return cls(name=name, function=function, weight=weight, names=names, is_method=is_method)


def methods_with(mark: str, owner: type[Any]) -> dict[str, Any]:
    """The methods of a class that `@reward` or `@group_reward` has marked, by name."""
    methods = {name: getattr(owner, name, None) for name in dir(owner) if not name.startswith("__")}
    return {name: method for name, method in methods.items() if hasattr(method, mark)}


def group_methods(owner: type[Any]) -> list[RewardPart]:
    """The rewards of a group that a class of environments has."""
    return [
        RewardPart.of(f, name=n, weight=f.__forge_group_reward__, is_method=True, arguments=GROUP_ARGUMENTS)
        for n, f in methods_with("__forge_group_reward__", owner).items()
    ]


def prompt_of(task: Task) -> str:
    """The last message of the user in a task's prompt."""
    return next((m["content"] for m in reversed(task.prompt) if m["role"] == "user"), "")


def with_numbers(parts: Sequence[RewardPart], other_names: Collection[str] = ()) -> list[RewardPart]:
    """Return parts with names of their own, as `f`, `f_2`, `f_3`: the breakdown has one value for each part."""
    names = {*other_names, *(part.name for part in parts)}
    names_so_far, results = set(other_names), []
    for part in parts:
        name, number = part.name, 1
        while name in names_so_far or (number > 1 and name in names):
            number += 1
            name = f"{part.name}_{number}"
        names_so_far.add(name)
        results.append(part if name == part.name else replace(part, name=name))
    return results


def _name_of(function: RewardFunction) -> str:
    """The name of a function, also of one in a functools.partial; of another object the name of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


async def score(
    parts: Sequence[RewardPart], task: Task, messages: Sequence[Message], response: str, *, owner: Any = None
) -> tuple[float, dict[str, float]]:
    """Return the weighted sum of all parts, and the value of each part.

    Args:
        owner: the instance, if the parts are methods; None for plain functions.
    """
    arguments: dict[str, Any] = {"prompt": prompt_of(task), "response": response, "answer": response}
    arguments |= {"target": task.target, "task": task, "messages": messages}
    values: dict[str, float] = {}
    total = 0.0
    for part in parts:
        kwargs = {name: arguments[name] for name in part.names}
        with guard(f"reward {part.name}"):
            if owner is None:
                value = await invoke(part.function, **kwargs)
            else:
                value = await call_on(owner, part.function, owner, **kwargs)
        values[part.name] = reward = reward_value(value, f"the reward {part.name} returned")
        total += part.weight * reward
    return reward_value(total, "the weighted sum of the rewards is"), values


def load_reward(target: str, *, arguments: Sequence[str] = ARGUMENTS, option: str = "") -> RewardPart:
    """Import a reward function, or a class of reward functions."""
    function = load(target, option=option)
    if isinstance(function, type):
        try:
            function = function()
        except Exception as error:
            raise UserError(f"{target!r}: {function.__qualname__}() raised {type(error).__name__}: {error}") from error
    if not callable(function):
        raise UserError(f"{target!r} is {function!r}; a reward is a function of what `forge_env.tool_env.rubric` names")
    return RewardPart.of(function, arguments=arguments)
