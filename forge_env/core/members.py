"""Names that the contract of environments reserves, and the values that a class or an instance may give them.

An environment overrides `step` with a method. A tool, a reward, a property or a number named `step` would break it,
often far from its definition. It is refused: in a class when the class is created, in an instance when it is set.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from forge_env.core.errors import EnvError, UserError
from forge_env.core.tools import is_tool
from forge_env.core.types import EpisodeLimits, Task

Predicate = Callable[[Any], bool]


class NameTaken(EnvError):
    """An instance has set an attribute that the contract reserves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A reserved name.

    Args:
        expected: what the contract expects of it, as part of an error message.
        in_class: whether a class may have a value; the value is read from the namespace, without descriptors.
        in_instance: whether an instance may set a value.
        remedy: what to do about another value, as part of an error message.
    """

    expected: str
    in_class: Predicate
    in_instance: Predicate
    remedy: str = "give it another name"


def check_class(cls: type, members: Mapping[str, Member], root: type) -> None:
    """Check the reserved names of a class and its mixins; its parents were checked when they were created.

    Args:
        members: the reserved names.
        root: the class that reserves them.

    Raises:
        UserError: naming the first value that is not allowed.
    """
    for name in (*members, *OPTIONAL):
        owner = next((c for c in cls.__mro__ if name in vars(c)), root)
        if owner is not cls and (issubclass(owner, root) or issubclass(root, owner)):
            continue
        attribute, member = getattr(cls, name), members.get(name)
        conflict = f"takes the place of {root.__name__}.{name}" if member else f"is what forge-env calls as {name}()"
        where = f"{owner.__name__}.{name}"
        if is_tool(attribute):
            raise UserError(f"the tool {name} {conflict}: call it {name}_ or otherwise ({where})")
        if hasattr(attribute, "__forge_reward__"):
            raise UserError(f"the reward {name} {conflict}: give it another name ({where})")
        if member is not None and not member.in_class(vars(owner)[name]):
            raise UserError(_sentence(f"{where} is {_described(vars(owner)[name])}", name, member, root))


def check_shared(cls: type, names: Iterable[str], members: Mapping[str, Member], root: type) -> None:
    """Check the names of the attributes that `shared` sets.

    Raises:
        UserError: naming the first one that is reserved.
    """
    for name in names:
        if name in members:
            reserved = f"{root.__name__}.{name}, which every episode needs"
            raise UserError(f"{cls.__name__}.shared sets {name!r} in the place of {reserved}: give it another name")


def name_taken(instance: object, name: str, member: Member, value: Any, root: type) -> NameTaken:
    """The exception for a value that an instance may not give to a reserved name."""
    return NameTaken(
        _sentence(f"{type(instance).__name__} sets self.{name} to {_described(value)}", name, member, root)
    )


def _sentence(problem: str, name: str, member: Member, root: type) -> str:
    return f"{problem} in the place of {root.__name__}.{name}, {member.expected}: {member.remedy}"


def _described(value: Any) -> str:
    if isinstance(value, property):
        return "a property"
    if inspect.isfunction(value):
        return "a method"
    try:
        return f"{value!r:.60}"
    except Exception:
        return f"a {type(value).__name__}"


# ---- predicates ----


def _never(value: Any) -> bool:
    return False


def _is_method(value: Any) -> bool:
    """Whether it works as a method of a class: a callable or a descriptor, but not a property."""
    return not isinstance(value, property) and (callable(value) or hasattr(value, "__get__"))


def _is_class_method(value: Any) -> bool:
    """Whether it can be called on the class: a plain function must not have a parameter `self` or `cls`."""
    if not inspect.isfunction(value):
        return _is_method(value)
    return next(iter(inspect.signature(value).parameters), "") not in ("self", "cls")


def _has_no_parameters(value: Any) -> bool:
    """Whether it is a method without required parameters."""
    if not inspect.isfunction(value):
        return _is_method(value)
    parameters = list(inspect.signature(value).parameters.values())[1:]
    return not any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _is_tools(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, Mapping) for item in value)


def _is_rubric(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return all(callable(part[0] if isinstance(part, tuple) and len(part) == 2 else part) for part in value)


def _is_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, str) for item in value)


def _or_property(is_valid: Predicate) -> Predicate:
    return lambda value: isinstance(value, property) or is_valid(value)


def _is(*kinds: type) -> Predicate:
    return lambda value: isinstance(value, kinds)


_OR_RENAME = "write it so, or give it another name"
_METHOD = Member(expected="a method that every episode needs", in_class=_is_method, in_instance=callable)
_OF_CLASS = Member(
    expected="a class method",
    in_class=_is_class_method,
    in_instance=_never,
    remedy="write @classmethod above it, or give it another name",
)
_PART = Member(expected="a part of ToolEnv itself", in_class=_never, in_instance=_never)

ENV: Mapping[str, Member] = {
    **dict.fromkeys(("reset", "step", "close", "seed", "success", "on_limit", "final_info"), _METHOD),
    **dict.fromkeys(("tasks", "effects"), _OF_CLASS),
    "limits": replace(_OF_CLASS, in_class=lambda value: isinstance(value, Mapping) or _is_class_method(value)),
    "np_random": Member(expected="the generator that seed() seeds", in_class=_is(property), in_instance=_never),
    "tools": Member(
        expected="a list of tools in OpenAI's shape",
        in_class=_or_property(_is_tools),
        in_instance=_is_tools,
        remedy=_OR_RENAME,
    ),
    "shared": Member(
        expected='a mapping from attribute names to "module:factory", read from the class',
        in_class=_is(Mapping),
        in_instance=_never,
        remedy=_OR_RENAME,
    ),
    "made_of": Member(
        expected="a list of modules, read from the class", in_class=_is_names, in_instance=_never, remedy=_OR_RENAME
    ),
    "truncation_reward": Member(
        expected="a number", in_class=_or_property(_is(Real)), in_instance=_is(Real), remedy=_OR_RENAME
    ),
    "time_spent_by": Member(
        expected='"model" or "service"',
        in_class=lambda value: True,  # Env checks it with an error message of its own
        in_instance=lambda value: value in ("model", "service"),
        remedy=_OR_RENAME,
    ),
    "_np_random": Member(
        expected="the generator that seed() seeds",
        in_class=_is(type(None)),
        in_instance=lambda value: value is None or hasattr(value, "integers"),
    ),
    "_seed": Member(expected="what seed() was given", in_class=_is(type(None)), in_instance=_is(Integral, type(None))),
}
"""The names that `Env` reserves."""

TOOL_ENV: Mapping[str, Member] = {
    "tools": Member(
        expected="the list that is made of the @tool methods and extra_tools",
        in_class=_never,
        in_instance=_is_tools,
        remedy="mark the methods with @tool, or give it another name",
    ),
    "task": Member(expected="the Task of the episode", in_class=_is(type(None)), in_instance=_is(Task)),
    "messages": Member(
        expected="the list of the conversation's messages",
        in_class=lambda value: value is None or value == [],
        in_instance=_is(list),
    ),
    "rubric": Member(
        expected="a list of reward functions or of pairs (function, weight), read from the class",
        in_class=_is_rubric,
        in_instance=_never,
        remedy=_OR_RENAME,
    ),
    "system_prompt": Member(
        expected="a text", in_class=_or_property(_is(str)), in_instance=_is(str), remedy=_OR_RENAME
    ),
    "setup": Member(
        expected="the method setup(self) that runs in reset",
        in_class=_has_no_parameters,
        in_instance=_never,
        remedy=_OR_RENAME,
    ),
    **dict.fromkeys(("set_tools", "_score", "_all_scores"), _METHOD),
    **dict.fromkeys(("_tools", "_specs", "_rewards", "_rubric"), _PART),
    "_limits": replace(_PART, in_instance=_is(EpisodeLimits)),
    "_toolbox": replace(_PART, in_instance=lambda value: hasattr(value, "answer")),
    "_use_tools": replace(_PART, in_instance=lambda value: True),
}
"""The names that `ToolEnv` reserves in addition."""

OPTIONAL = ("expert", "cheats")
"""Optional static or class methods that `forge-env check` and agents call: they must not be tools or rewards."""
