"""EnvFactory: an environment class with its options; makes instances and tasks, and opens once what they share."""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from forge_env.core.env import Env
from forge_env.core.errors import UserError, nearest
from forge_env.core.types import EpisodeLimits, Task
from forge_env.core.user_code import guard
from forge_env.registry.registry import env_class, load
from forge_env.rollout.task_list import TASKS_SECONDS, read_tasks

NOT_OPTIONS = frozenset({"self", "cls", "split", "count", "seed"})


class EnvFactory:
    """Makes instances of one environment class.

    The options of an environment are the keyword parameters of its constructor, of its `tasks` and of its `shared`
    factories; each of them is called with those that it names. Text, as from a command line, is converted to the
    parameter's type; a list is written with commas.

    Example::

        async with EnvFactory(CodeExec, level=2) as factory:
            tasks = factory.tasks("train", count=100)
            env = factory.make()

    Raises:
        UserError: for an option that none of them names, a value of the wrong type, or no value where `tasks` or a
            `shared` factory has no default.
    """

    def __init__(self, env_class: type[Env], *, name: str = "", **options: Any) -> None:
        self.env_class = env_class
        self.name = name or env_class.__name__
        openers = [load(target) for target in env_class.shared.values()]
        known: dict[str, Any] = {}
        for function in (*openers, env_class.tasks, env_class.__init__):
            known |= _parameters(function)
        for option in dict.fromkeys(n for function in (*openers, env_class.tasks) for n in _needed(function)):
            if option not in options:
                raise UserError(f"the environment {self.name} needs the option {option}, which has no default")
        for option in options.keys() - known.keys():
            raise UserError(f"the environment {self.name} has no option {option!r}. {nearest(option, known)}")
        self.options = {n: _converted(self.name, n, value, known[n]) for n, value in options.items()}
        self._for_constructor = self._named(env_class.__init__)
        self._shared: dict[str, Any] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> EnvFactory:
        async with AsyncExitStack() as stack:
            for name, target in self.env_class.shared.items():
                opener = load(target)
                with guard(f"opening {name}, which the episodes share"):
                    opened = opener(**self._named(opener))
                    self._shared[name] = await stack.enter_async_context(opened)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        with guard("closing what the episodes share"):
            await self._stack.aclose()

    def tasks(
        self, split: str = "train", *, count: int, seed: int = 0, seconds: float = TASKS_SECONDS
    ) -> Sequence[Task]:
        """Return `count` tasks of a split, or as many as there are, under this factory's options.

        Raises:
            UserError: for a split that is not there, more tasks than there are, and whatever else
                `forge_env.rollout.task_list.read_tasks` finds wrong; `seconds` is its limit.
        """
        options = self._named(self.env_class.tasks)
        call = functools.partial(self.env_class.tasks, split, count=count, seed=seed, **options)
        return read_tasks(self.name, call, split, count=count, seconds=seconds)

    @property
    def shared(self) -> Mapping[str, Any]:
        """What all instances share, by name; empty unless this factory is open."""
        return MappingProxyType(self._shared)

    @property
    def constructor_options(self) -> dict[str, Any]:
        """The options that the constructor of an instance takes, converted."""
        return dict(self._for_constructor)

    @property
    def shared_options(self) -> frozenset[str]:
        """The names that what is opened once takes, whether they are given or not."""
        return frozenset(n for target in self.env_class.shared.values() for n in _parameters(load(target)))

    def effects(self) -> str:
        """What an episode does outside of this machine, under this factory's options; "" is nothing."""
        return self.env_class.effects(**self._named(self.env_class.effects))

    def declared_limits(self) -> dict[str, Any]:
        """See `declared_limits`, under this factory's options."""
        return declared_limits(self.env_class, self.options, name=self.name)

    def episode_limits(self) -> EpisodeLimits:
        """The limits of an episode where a caller gives none: those that are declared, and the defaults."""
        return replace(EpisodeLimits(), **self.declared_limits())

    def make(self, **more: Any) -> Env:
        """Return a fresh instance; `more` goes to its constructor, beside the factory's own options.

        Raises:
            EnvError: when the environment's constructor raises.
        """
        env = self.env_class.__new__(self.env_class)
        for name, value in self._shared.items():
            setattr(env, name, value)  # first, so that the constructor may use them
        with guard(f"{self.env_class.__name__}()"):
            env.__init__(**{**self._for_constructor, **more})  # type: ignore[misc]
        return env

    def _named(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Those of the options that a function's parameters name."""
        names = _parameters(function)
        return {name: value for name, value in self.options.items() if name in names}


def make(name: str, **options: Any) -> EnvFactory:
    """Return the factory of a registered environment, or of a "module:Class".

    Example: ``async with forge_env.make("math", level=2) as factory: ...``

    Raises:
        UserError: for an unknown name or option, with the nearest one.
    """
    return EnvFactory(env_class(name), name=name, **options)


def declared_limits(env_class: type[Env], options: Mapping[str, Any], *, name: str = "") -> dict[str, Any]:
    """Return the limits of an episode that an environment declares, by the fields of `EpisodeLimits`.

    Args:
        env_class: its class.
        options: of the environment; those that its `limits` names are handed to it.
        name: for the sentence of an error.

    Raises:
        UserError: for what is no limit, or no number above 0.
    """
    name, function = name or env_class.__name__, env_class.limits
    kinds: dict[str, Any] = typing.get_type_hints(EpisodeLimits)
    declared: Any = function
    if callable(function):
        wanted = {n: kind for n, kind in _parameters(function).items() if n in options}
        declared = function(**{n: _converted(name, n, options[n], kind) for n, kind in wanted.items()})
    if not isinstance(declared, Mapping):
        raise UserError(
            f"the limits of the environment {name} are {declared!r:.80}; return them as {{'max_turns': 30}}"
        )
    for limit, value in declared.items():
        if limit not in kinds:
            raise UserError(f"the environment {name} declares the limit {limit!r}. {nearest(limit, kinds)}")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or kinds[limit](value) <= 0:
            raise UserError(f"the environment {name} declares {limit} = {value!r}; it is a number above 0")
    return {limit: kinds[limit](value) for limit, value in declared.items()}


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Named parameters that can be options, with their types."""
    if function is object.__init__:
        return {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):
        hints = {}
    parameters = inspect.signature(function).parameters.values()
    return {p.name: hints.get(p.name, Any) for p in parameters if p.kind in kinds and p.name not in NOT_OPTIONS}


def _needed(function: Callable[..., Any]) -> list[str]:
    """The options that a function has no default for."""
    parameters = inspect.signature(function).parameters
    return [name for name in _parameters(function) if parameters[name].default is inspect.Parameter.empty]


def _converted(env: str, name: str, value: Any, kind: Any) -> Any:
    """Convert text to the type of an option; what is no text is the caller's own."""
    if not isinstance(value, str) or kind in (Any, str):
        return value
    is_list = typing.get_origin(kind) in (list, tuple, set, frozenset, Sequence)
    try:
        adapter = TypeAdapter(kind)
        return adapter.validate_python([part for part in value.split(",") if part] if is_list else value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UserError(f"the option {name} of the environment {env} is {value!r}: {reason}") from None
    except PydanticUserError:
        return value
