"""Names that the contract of environments has taken, and what a class or an instance may put in their place.

An environment overrides `step` with a method of its own. A tool, a reward, a property or a number of that name breaks
it, often far from where it stands, so it is refused: by the class when it is made, by an instance when it is set.
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

Test = Callable[[Any], bool]


class NameTaken(EnvError):
    """An instance has set an attribute that the contract needs for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One name of the contract.

    Args:
        wanted: what it is, for a sentence.
        in_class: whether a value fits in a class, as it stands in its namespace, with descriptors unresolved.
        in_instance: whether a value fits in an instance.
        remedy: what to do about one that does not fit.
    """

    wanted: str
    in_class: Test
    in_instance: Test
    remedy: str = "give it another name"


def check_class(cls: type, members: Mapping[str, Member], root: type) -> None:
    """Check what a class, and those that it mixes in, put in the place of members; parents were checked before.

    Args:
        members: by name.
        root: the class that defines them.

    Raises:
        UserError: naming the first that does not fit.
    """
    for name in (*members, *OPTIONAL):
        owner = next((c for c in cls.__mro__ if name in vars(c)), root)
        if owner is not cls and (issubclass(owner, root) or issubclass(root, owner)):
            continue
        marked, member = getattr(cls, name), members.get(name)
        place = f"takes the place of {root.__name__}.{name}" if member else f"is what forge-env calls as {name}()"
        where = f"{owner.__name__}.{name}"
        if is_tool(marked):
            raise UserError(f"the tool {name} {place}: call it {name}_ or otherwise ({where})")
        if hasattr(marked, "__forge_reward__"):
            raise UserError(f"the reward {name} {place}: give it another name ({where})")
        if member is not None and not member.in_class(vars(owner)[name]):
            raise UserError(_sentence(f"{where} is {_shown(vars(owner)[name])}", name, member, root))


def check_shared(cls: type, names: Iterable[str], members: Mapping[str, Member], root: type) -> None:
    """Check the attributes that `shared` sets.

    Raises:
        UserError: naming the first that is a member.
    """
    for name in names:
        if name in members:
            taken = f"{root.__name__}.{name}, which every episode needs"
            raise UserError(f"{cls.__name__}.shared sets {name!r} in the place of {taken}: give it another name")


def check_attribute(instance: object, name: str, member: Member, value: Any, root: type) -> None:
    """Check what an instance sets in the place of a member.

    Raises:
        NameTaken: when it does not fit.
    """
    if not member.in_instance(value):
        raise NameTaken(_sentence(f"{type(instance).__name__} sets self.{name} to {_shown(value)}", name, member, root))


def _sentence(what: str, name: str, member: Member, root: type) -> str:
    return f"{what} in the place of {root.__name__}.{name}, {member.wanted}: {member.remedy}"


def _shown(value: Any) -> str:
    if isinstance(value, property):
        return "a property"
    if inspect.isfunction(value):
        return "a method"
    try:
        return f"{value!r:.60}"
    except Exception:
        return f"a {type(value).__name__}"


# ---- what fits ----


def _never(value: Any) -> bool:
    return False


def _is_method(value: Any) -> bool:
    """Whether a class may have it as a method: what is called or binds itself, but no property."""
    return not isinstance(value, property) and (callable(value) or hasattr(value, "__get__"))


def _is_class_method(value: Any) -> bool:
    """Whether it can be called on the class: a plain function with `self` is called without an instance otherwise."""
    if not inspect.isfunction(value):
        return _is_method(value)
    return next(iter(inspect.signature(value).parameters), "") not in ("self", "cls")


def _needs_nothing(value: Any) -> bool:
    """Whether it is a method that can be called without arguments."""
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


def _or_property(test: Test) -> Test:
    return lambda value: isinstance(value, property) or test(value)


def _is(*kinds: type) -> Test:
    return lambda value: isinstance(value, kinds)


_OR_RENAME = "write it so, or give it another name"
_METHOD = Member(wanted="a method that every episode needs", in_class=_is_method, in_instance=callable)
_OF_CLASS = Member(
    wanted="a class method",
    in_class=_is_class_method,
    in_instance=_never,
    remedy="write @classmethod above it, or give it another name",
)
_PART = Member(wanted="a part of ToolEnv itself", in_class=_never, in_instance=_never)

ENV: Mapping[str, Member] = {
    **dict.fromkeys(("reset", "step", "close", "seed", "success", "on_limit", "final_info"), _METHOD),
    **dict.fromkeys(("tasks", "effects"), _OF_CLASS),
    "limits": replace(_OF_CLASS, in_class=lambda value: isinstance(value, Mapping) or _is_class_method(value)),
    "np_random": Member(wanted="the generator that seed() seeds", in_class=_is(property), in_instance=_never),
    "tools": Member(
        wanted="a list of tools in OpenAI's shape",
        in_class=_or_property(_is_tools),
        in_instance=_is_tools,
        remedy=_OR_RENAME,
    ),
    "shared": Member(
        wanted='a mapping from attribute names to "module:factory", read from the class',
        in_class=_is(Mapping),
        in_instance=_never,
        remedy=_OR_RENAME,
    ),
    "made_of": Member(
        wanted="a list of modules, read from the class", in_class=_is_names, in_instance=_never, remedy=_OR_RENAME
    ),
    "truncation_reward": Member(
        wanted="a number", in_class=_or_property(_is(Real)), in_instance=_is(Real), remedy=_OR_RENAME
    ),
    "time_spent_by": Member(
        wanted='"model" or "service"',
        in_class=lambda value: True,  # Env has a sentence of its own about it
        in_instance=lambda value: value in ("model", "service"),
        remedy=_OR_RENAME,
    ),
    "_np_random": Member(
        wanted="the generator that seed() seeds",
        in_class=_is(type(None)),
        in_instance=lambda value: value is None or hasattr(value, "integers"),
    ),
    "_seed": Member(wanted="what seed() was given", in_class=_is(type(None)), in_instance=_is(Integral, type(None))),
}
"""What `Env` needs."""

TOOL_ENV: Mapping[str, Member] = {
    "tools": Member(
        wanted="the list that is made of the @tool methods and extra_tools",
        in_class=_never,
        in_instance=_is_tools,
        remedy="mark the methods with @tool, or give it another name",
    ),
    "task": Member(wanted="the Task of the episode", in_class=_is(type(None)), in_instance=_is(Task)),
    "messages": Member(
        wanted="the list of the conversation's messages",
        in_class=lambda value: value is None or value == [],
        in_instance=_is(list),
    ),
    "rubric": Member(
        wanted="a list of reward functions or of pairs (function, weight), read from the class",
        in_class=_is_rubric,
        in_instance=_never,
        remedy=_OR_RENAME,
    ),
    "system_prompt": Member(wanted="a text", in_class=_or_property(_is(str)), in_instance=_is(str), remedy=_OR_RENAME),
    "setup": Member(
        wanted="the method setup(self) that runs in reset",
        in_class=_needs_nothing,
        in_instance=_never,
        remedy=_OR_RENAME,
    ),
    **dict.fromkeys(("set_tools", "_answer", "_score", "_all_scores"), _METHOD),
    **dict.fromkeys(("_tools", "_specs", "_rewards", "_rubric"), _PART),
    "_limits": replace(_PART, in_instance=_is(EpisodeLimits)),
    "_toolbox": replace(_PART, in_instance=lambda value: hasattr(value, "answer")),
    "_use_tools": replace(_PART, in_instance=lambda value: True),
}
"""What `ToolEnv` needs besides."""

OPTIONAL = ("expert", "cheats")
"""Static or class methods that `forge-env check` and agents call where they are there: no tools, and no rewards."""
