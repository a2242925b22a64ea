"""The environment contract: Gymnasium's five-tuple, awaitable, over messages.

An observation is only the *new* messages, an action is an assistant message with its parsed tool calls. `reset` and
`step` may be plain functions: they are then run in a thread, so that a blocking environment never stalls another.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import numpy as np
from gymnasium.utils import seeding

from forge_env.errors import EnvError, ForgeError
from forge_env.registry import load
from forge_env.types import Action, Message, Task, ToolSpec

# As many as episodes that one process may run: a blocking environment must never wait for another one's thread.
_threads = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="env")

StepResult = tuple[Sequence[Message], float, bool, bool, dict[str, Any]]


class Env:
    """Base class of environments; one instance is one episode at a time.

    Subclasses write `reset` and `step`, sync or async. Randomness comes from `self.np_random`, which `reset` seeds, so
    the same seed gives the same episode however many run at once.
    """

    shared: ClassVar[Mapping[str, str]] = {}
    """What all episodes of a process share, as attribute name -> "module:factory" of an async context manager."""
    tools: Sequence[ToolSpec] = ()
    """What the model may call, in OpenAI's shape."""
    truncation_reward: float = 0.0
    """Added to the reward of an episode that runs out of turns, tokens or time, a cut-off last answer among them."""

    np_random: np.random.Generator

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        """Return `count` tasks of a split ("train" or "test"); the same seed gives the same tasks in the same order."""
        raise NotImplementedError(f"{cls.__name__} has no tasks of its own: define the classmethod tasks()")

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start an episode of `options["task"]`. Returns (messages, info), or an awaitable of it."""
        raise NotImplementedError

    def step(self, action: Action) -> Any:
        """Take one action. Returns (messages, reward, terminated, truncated, info), or an awaitable of it."""
        raise NotImplementedError

    async def close(self) -> Any:
        """Free what this instance holds; a plain function will do. Must be idempotent."""

    def seed(self, seed: int | None) -> None:
        """Seed `self.np_random` as Gymnasium does."""
        self.np_random, _ = seeding.np_random(seed)


async def invoke(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function; run a plain one in a thread, off the event loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    result = await asyncio.get_running_loop().run_in_executor(_threads, call)
    return await result if inspect.isawaitable(result) else result


class EnvFactory:
    """Makes instances of one environment class, and opens once what they share.

    Example::

        async with EnvFactory(CodeExec) as factory:
            env = factory.make()
    """

    def __init__(self, env_class: type[Env], **kwargs: Any) -> None:
        self.env_class = env_class
        self._kwargs = kwargs
        self._shared: dict[str, Any] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> EnvFactory:
        async with AsyncExitStack() as stack:
            for name, target in self.env_class.shared.items():
                self._shared[name] = await stack.enter_async_context(load(target)())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def make(self, **options: Any) -> Env:
        """Return a fresh instance; `options` go to its constructor, beside the factory's own.

        Raises:
            EnvError: when the environment's constructor raises.
        """
        try:
            env = self.env_class(**{**self._kwargs, **options})
        except ForgeError:
            raise
        except Exception as error:
            raise EnvError(f"{self.env_class.__name__}() raised {type(error).__name__}: {error}") from error
        for name, value in self._shared.items():
            setattr(env, name, value)
        return env
