"""EnvFactory: an environment class with its options; makes instances and tasks, and opens what instances share."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from forge_env.core.env import Env, check_instance
from forge_env.core.errors import TooFewTasks, UserError, nearest
from forge_env.core.plain_value import own_containers
from forge_env.core.types import EpisodeLimits, Task
from forge_env.core.user_code import guard
from forge_env.registry.registry import env_class, is_of_process, load
from forge_env.rollout.env_calls import EnvTimeout, call_env, close_env, end_background
from forge_env.rollout.options import convert_option, is_data, option_types, required_options, select_options
from forge_env.rollout.task_list import TASKS_SECONDS, read_tasks
from forge_env.tool_env.rubric import GROUP_ARGUMENTS, group_methods, load_reward, with_numbers
from forge_env.utils import by_value
from forge_env.utils.deadlines import Deadline
from forge_env.utils.gates import Gate, watch_executor
from forge_env.utils.secret_values import check_present
from forge_env.utils.settings import bounds_of, kinds_of, out_of_bounds
from forge_env.utils.targets import source_of
from forge_env.utils.threads import call_on, is_instant


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
        UserError: for what is not an environment, an unknown option, a value of the wrong type, or a missing option
            that `tasks` or a `shared` factory requires.
    """

    def __init__(self, env_class: type[Env], *, name: str = "", **options: Any) -> None:
        if not (isinstance(env_class, type) and issubclass(env_class, Env)):
            raise UserError(f"{env_class!r} is no class of an environment: forge_env.make takes the name of one")
        self.env_class = env_class
        self.name = name or env_class.__name__
        self.target = ""
        """The name that `make` found the class by; "" for a class that was given."""
        self.group_rewards = tuple(group_methods(env_class))
        """What compares the siblings of a task, see `forge_env.rollout.group_reward`."""
        self.group_reward = ""
        """The target of the last one, if it is the user's own function."""
        shared_factories = [load(target) for target in env_class.shared.values()]
        types: dict[str, Any] = {}
        for function in (*shared_factories, env_class.tasks, env_class.__init__):
            types |= option_types(function)
        for function in (*shared_factories, env_class.tasks):
            for option in required_options(function):
                if option not in options:
                    raise UserError(f"the environment {self.name} needs the option {option}, which has no default")
        for option in sorted(options.keys() - types.keys()):
            raise UserError(f"the environment {self.name} has no option {option!r}. {nearest(option, types)}")
        check_present(options, "as options of the environment, for example --option {}=VALUE")
        self.options = {n: convert_option(self.name, n, value, types[n]) for n, value in options.items()}
        self.constructor_options = select_options(env_class.__init__, self.options)
        """The converted options that the constructor of an instance takes."""
        self._is_instant = is_instant(env_class.__init__)
        self._own = [name for name, kind in option_types(env_class.__init__).items() if is_data(kind)]
        self._shared: dict[str, Any] = {}
        self._stack = AsyncExitStack()
        self._background: set[asyncio.Task[None]] = set()
        self.playing: dict[Any, str] = {}
        """The `EpisodeRun` of each episode that is played, and its id."""

    async def __aenter__(self) -> EnvFactory:
        async with AsyncExitStack() as stack:
            for name, target in self.env_class.shared.items():
                open_shared = load(target)
                with guard(f"opening {name}, which the episodes share"):
                    manager = open_shared(**select_options(open_shared, self.options))
                    self._shared[name] = await stack.enter_async_context(manager)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await end_background(self._background)
        finally:
            with guard("closing what the episodes share"):
                await self._stack.aclose()

    def add_group_reward(self, target: str) -> None:
        """Let a function of the user's own compare the siblings, too; "" is none.

        Raises:
            UserError: when it cannot be imported, or has parameters that are not arguments of such a function.
        """
        if not target:
            return
        own = load_reward(target, arguments=GROUP_ARGUMENTS, option="--group-reward")
        parts = (*getattr(self.env_class, "_rewards", ()), *getattr(self.env_class, "_rubric", ()), *self.group_rewards)
        self.group_rewards = (*self.group_rewards, *with_numbers([own], other_names=[part.name for part in parts]))
        self.group_reward = target

    def check_group_size(self, size: int, option: str) -> None:
        """Refuse a group of one, in which there is nothing to compare; `option` sets the size."""
        if size == 1 and self.group_rewards:
            names = " and ".join(part.name for part in self.group_rewards)
            raise UserError(
                f"{option} is 1, and {names} of {self.name} compares the episodes of a task with each other: set it to "
                "2 or more"
            )

    def tasks(
        self, split: str = "train", *, count: int, seed: int = 0, seconds: float = TASKS_SECONDS, at_most: bool = False
    ) -> Sequence[Task]:
        """Return `count` tasks of a split, or as many as there are.

        Args:
            split: "train" or "test", or another one that the environment has.
            at_most: nobody has named the number: fewer will do, where the environment raises `TooFewTasks`.

        Raises:
            UserError: for an unknown split, more tasks than there are, and whatever else
                `forge_env.rollout.task_list.read_tasks` refuses.
        """
        options = select_options(self.env_class.tasks, self.options)
        while True:
            call = functools.partial(self.env_class.tasks, split, count=count, seed=seed, **options)
            try:
                return read_tasks(self.name, call, split, count=count, seconds=seconds)
            except TooFewTasks as error:
                if not at_most or error.there_are >= count:
                    raise
                if not error.there_are:
                    raise UserError(f"the environment {self.name} has no tasks in the split {split!r}") from None
                count = error.there_are

    @property
    def shared(self) -> Mapping[str, Any]:
        """What all instances share, by name; empty unless this factory is open."""
        return MappingProxyType(self._shared)

    @property
    def shared_options(self) -> frozenset[str]:
        """Names of the options that the `shared` factories take, set or not."""
        return frozenset(n for target in self.env_class.shared.values() for n in option_types(load(target)))

    def effects(self) -> str:
        """Return what an episode does outside of this machine, see `Env.effects`; "" for nothing."""
        return self.env_class.effects(**select_options(self.env_class.effects, self.options))

    def declared_limits(self) -> dict[str, Any]:
        return declared_limits(self.env_class, self.options, name=self.name)

    def episode_limits(self) -> EpisodeLimits:
        """Return the limits of an episode if the caller gives none: the declared ones, and the defaults."""
        return replace(EpisodeLimits(), **self.declared_limits())

    def check_compacts(self, compact_at: float, name: str = "compact_at") -> None:
        """Raise UserError for a `compact_at`, a setting with this name, where the environment plays its own turns."""
        if compact_at > 0 and self.env_class._episode_player is not None:
            raise UserError(
                f"{name} is {compact_at:g}, and {self.name} keeps its own conversations with the model, which "
                f"no summary shortens: set {name} to 0"
            )

    def make(self, **more: Any) -> Env:
        """Return a new instance; `more` overrides the factory's constructor options.

        Raises:
            EnvError: when the environment's constructor raises.
        """
        env = self._new_instance()
        with guard(f"{self.env_class.__name__}()"):
            env.__init__(**self._own_options(more))  # type: ignore[misc]
            check_instance(env, Env)
        return env

    async def construct(self, more: Mapping[str, Any] = {}, *, seconds: float) -> Env:
        """Return a new instance as `make` does, without blocking the event loop: a constructor of a user's class runs
        in a thread, like any plain function of his.

        Raises:
            EnvError: when the constructor raises, or takes longer.
        """
        watch_executor()
        if self._is_instant:
            return self.make(**more)
        env = self._new_instance()
        constructor, name = env.__init__, f"{self.env_class.__name__}()"  # type: ignore[misc]
        try:
            await call_env(name, call_on(env, constructor, **self._own_options(more)), Deadline(seconds))
        except (asyncio.CancelledError, EnvTimeout):
            await close_env(env, seconds)  # what it has opened; half an instance may fail at that
            raise
        with guard(name):
            check_instance(env, Env)
        return env

    def _new_instance(self) -> Env:
        env = self.env_class.__new__(self.env_class)
        env.__dict__["_gate"] = Gate(allows_overlap=self.env_class.allows_overlap, background=self._background)
        for name, value in self._shared.items():
            setattr(env, name, value)  # before the constructor, which may use them
        return env

    def _own_options(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return options for one instance: its own data, and what is not data, as a client, shared by all."""
        options = {**self.constructor_options, **more}
        return options | {name: own_containers(options[name]) for name in self._own if name in options}


def make(name: str, **options: Any) -> EnvFactory:
    """Return the factory of a registered environment, or of a "module:Class".

    Example: ``async with forge_env.make("math", level=2) as factory: ...``

    Raises:
        UserError: for an unknown name or option, with the nearest one.
    """
    factory = EnvFactory(env_class(name), name=name, **options)
    factory.target = name
    return factory


def name_env(factory: EnvFactory, file: Path) -> str:
    """Return the name by which every process finds the environment of a factory.

    Args:
        file: of a class that no other process can import, such as one of a notebook; `by_value.write` writes it.
    """
    value = factory.env_class
    if factory.target and not is_of_process(factory.target):
        return factory.target
    return source_of(value) if by_value.is_importable(value) else by_value.put(value, file)


def declared_limits(env_class: type[Env], options: Mapping[str, Any], *, name: str = "") -> dict[str, Any]:
    """Return the limits of an episode that an environment declares, by the fields of `EpisodeLimits`.

    Args:
        options: its options; `limits` is called with those that it names.
    """
    name, function = name or env_class.__name__, env_class.limits
    kinds = kinds_of(EpisodeLimits)
    limits: Any = function
    if callable(function):
        option_kinds = {n: kind for n, kind in option_types(function).items() if n in options}
        limits = function(**{n: convert_option(name, n, options[n], kind) for n, kind in option_kinds.items()})
    if not isinstance(limits, Mapping):
        raise UserError(f"the limits of the environment {name} are {limits!r:.80}; return them as {{'max_turns': 30}}")
    for limit, value in limits.items():
        if limit not in kinds:
            raise UserError(f"the environment {name} declares the limit {limit!r}. {nearest(limit, kinds)}")
        kind, marks = kinds[limit]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or out_of_bounds(kind(value), marks):
            raise UserError(f"the environment {name} declares {limit} = {value!r}; it is a number {bounds_of(marks)}")
    return {limit: kinds[limit][0](value) for limit, value in limits.items()}
