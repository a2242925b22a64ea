"""Names that the contract of environments reserves: a class that gives one of them to something else is refused.

A tool, a reward or a number that is named `step` would break an environment, often far from its definition.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from forge_env.core.errors import EnvError, UserError
from forge_env.core.tools import is_tool

Member = tuple[str, Callable[[Any], bool]]
"""What the contract expects of a name; whether a class may have a value, which is read without descriptors."""


def check_class(cls: Any, members: Mapping[str, Member], root: type) -> None:
    """Check the names that `root` reserves in a subclass and its mixins; its parents were checked already.

    Raises:
        UserError: for the first value that is not allowed.
    """
    for name, (expected, allows) in members.items():
        owner = next((c for c in cls.__mro__ if name in vars(c)), root)
        if owner is not cls and (issubclass(owner, root) or issubclass(root, owner)):
            continue
        where, value, place = f"{owner.__name__}.{name}", vars(owner)[name], f"the place of {root.__name__}.{name}"
        if is_tool(found := getattr(cls, name)) or hasattr(found, "__forge_reward__"):
            kind = "tool" if is_tool(found) else "reward"
            raise UserError(f"the {kind} {name} takes {place}: call it {name}_ or otherwise ({where})")
        if not allows(value):
            decorator = expected.partition("@")[2].partition(" ")[0]
            if decorator and inspect.isfunction(value):
                what = f"{where} is a method of an instance, and is called without one"
                raise UserError(f"{what}: write @{decorator} above it")
            raise UserError(f"{where} is {_described(value)} in {place}, {expected}: give it another name")
    for name in members.keys() & cls.shared.keys():
        raise UserError(f"{cls.__name__}.shared sets {name!r}, a name of {root.__name__}: give it another name")


def check_instance(env: object) -> None:
    """Check that the constructor of an environment has called its parent's, and set no method to something else.

    Raises:
        EnvError: with the first mistake.
    """
    if hasattr(env, "_use_tools") and "_toolbox" not in vars(env):  # of ToolEnv
        raise EnvError(f"{type(env).__name__}.__init__ does not call super().__init__(): write it as its first line")
    for name in vars(env).keys() & METHODS:
        if not callable(value := vars(env)[name]):
            what = f"{type(env).__name__} sets self.{name} to {_described(value)} in the place of Env.{name}"
            raise EnvError(f"{what}, {_METHOD[0]}: give it another name")


def _described(value: Any) -> str:
    return (
        "a property" if isinstance(value, property) else "a method" if inspect.isfunction(value) else f"{value!r:.60}"
    )


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _is_method(value: Any) -> bool:
    return not isinstance(value, property) and (callable(value) or hasattr(value, "__get__"))


def _is_of_class(value: Any) -> bool:
    """Whether it can be called on the class: a plain function must not have a parameter `self` or `cls`."""
    is_plain = inspect.isfunction(value)
    return _is_method(value) and not (is_plain and [*inspect.signature(value).parameters][:1] in (["self"], ["cls"]))


def _is_rubric(value: Any) -> bool:
    parts = value if isinstance(value, (list, tuple)) else [None]
    return all(callable(part[0] if isinstance(part, tuple) and len(part) == 2 else part) for part in parts)


METHODS = frozenset(("reset", "step", "close", "seed", "success", "on_limit", "final_info"))
_METHOD: Member = ("a method that every episode needs", _is_method)

ENV: Mapping[str, Member] = {
    **dict.fromkeys(sorted(METHODS), _METHOD),
    **dict.fromkeys(
        ("tasks", "effects", "can_demonstrate"), ("a class method, with @classmethod above it", _is_of_class)
    ),
    "limits": (
        "a mapping or a class method, with @classmethod above it",
        lambda value: isinstance(value, Mapping) or _is_of_class(value),
    ),
    "np_random": ("the generator that seed() seeds", _is(property)),
    "tools": ("a list of tools in OpenAI's shape", _is(list, tuple, property)),
    "shared": ('a mapping from attribute names to "module:factory"', _is(Mapping)),
    "made_of": ("a list of modules", _is(list, tuple)),
    "allows_overlap": ("True or False", _is(bool)),
    "truncation_reward": ("a number", _is(Real, property)),
    "expert": ("a function of the messages, with @staticmethod above it", _is_of_class),
    "cheats": ("a class method, with @classmethod above it", _is_of_class),
    **dict.fromkeys(("_np_random", "_seed"), ("a part of Env itself", _is())),
    **dict.fromkeys(("_makes_copies", "_gate"), ("a part of Env itself", _is(property))),
    "_episode_player": ("a part of Env itself", _is(staticmethod)),
}
"""The names that `Env` reserves."""

TOOL_ENV: Mapping[str, Member] = {
    "tools": ("the list of the methods that are marked with @tool", _is()),
    "task": ("the Task of the episode", _is(type(None))),
    "messages": ("the list of the conversation's messages", _is()),
    "rubric": ("a list of reward functions or of pairs (function, weight)", _is_rubric),
    "system_prompt": ("a text", _is(str, property)),
    **dict.fromkeys(("setup", "set_tools", "_score", "_all_scores"), _METHOD),
    **dict.fromkeys(("_tools", "_specs", "_rewards", "_rubric"), ("a part of ToolEnv itself", _is())),
    **dict.fromkeys(
        ("_limits", "_toolbox", "_use_tools", "_messages_read", "_messages_unread"), ("a part of ToolEnv itself", _is())
    ),
}
"""The names that `ToolEnv` reserves in addition."""
