"""What a SyncEnv does on the event loop: one environment instance per episode, of a factory that instances share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium.logger

from forge_env.core.env import Env
from forge_env.core.errors import EnvError, ForgeError, InfraError
from forge_env.core.reward_value import reward_value
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task, ToolSpec
from forge_env.core.user_code import fault, guard, told
from forge_env.gymnasium.loop_thread import LoopThread
from forge_env.rollout.factory import EnvFactory
from forge_env.utils.deadlines import Deadline
from forge_env.utils.threads import invoke

OPEN_SECONDS = 600.0
"""Starting what the instances of an environment share: sandboxes, servers."""
CLOSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step gave. `outcome` is "" while the episode goes on; `error` says what broke."""

    messages: Sequence[Message] = ()
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    outcome: str = ""
    error: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


class _TooSlow(EnvError):
    """A step or reset took longer than `EpisodeLimits.step_seconds`."""


class Session:
    """One SyncEnv's side on the loop. Its methods run there, one at a time."""

    def __init__(self, loop: LoopThread, factory: EnvFactory, limits: EpisodeLimits) -> None:
        self.loop = loop
        self._factory = factory
        self._limits = limits
        self._shared: _Shared | None = None
        self._env: Env | None = None

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return () if self._env is None else self._env.tools

    async def reset(self, task: Task, seed: int, options: Mapping[str, Any]) -> Step:
        """Close the episode before and start one; a fault of the environment is the outcome of what is returned.

        Raises:
            ForgeError: when what the environment's instances share cannot be opened.
        """
        if self._shared is None:
            self.loop.closers[self] = self.close
            self._shared = await _Shared.acquire(self.loop, self._factory)
        await self._close_env()
        try:
            self._env = self._shared.factory.make()
            given = {**options, "task": task, "limits": self._limits}
            messages, info = _checked(await self._call("reset", self._env.reset, seed=seed, options=given), 2, "reset")
        except (EnvError, InfraError) as broken:
            return _faulted(broken)
        return Step(messages=messages, info=info)

    async def step(self, action: Action) -> Step:
        """Take one action; a fault of the environment is the outcome of what is returned."""
        assert self._env is not None
        try:
            result = _checked(await self._call("step", self._env.step, action), 5, "step")
        except _TooSlow as broken:
            slow_model = self._env.time_spent_by == "model"
            return self.out_of_turns(Step()) if slow_model else _faulted(broken)
        except (EnvError, InfraError) as broken:
            return _faulted(broken)
        messages, reward, terminated, truncated, info = result
        step = Step(messages=messages, reward=float(reward), info=info)
        if "outcome" in info:
            return _with_outcome(step, Outcome(info["outcome"]))
        if truncated:
            return self.out_of_turns(step)
        return _with_outcome(step, Outcome.SCORED) if terminated else step

    def out_of_turns(self, step: Step) -> Step:
        """Return a step as the last one of an episode that is truncated, by a limit of turns or time."""
        assert self._env is not None
        return _with_outcome(replace(step, reward=step.reward + self._env.truncation_reward), Outcome.TRUNCATED)

    async def close(self) -> None:
        self.loop.closers.pop(self, None)
        await self._close_env()
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release()

    def abandon(self) -> None:
        """Close without waiting: the SyncEnv was collected as garbage, in whatever thread."""
        if self.loop.is_mine:
            self.loop.start(self._close_and_release)

    async def _close_and_release(self) -> None:
        try:
            await self.close()
        finally:
            self.loop.release()

    async def _close_env(self) -> None:
        env, self._env = self._env, None
        if env is None:
            return
        try:
            with guard("close"):
                await Deadline(self._limits.step_seconds).run(invoke(env.close))
        except ForgeError as error:
            gymnasium.logger.warn(f"closing {self._factory.name} failed: {told(error)}")

    async def _call(self, part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the environment: a deadline, and its own exceptions named as its own; `part` is "reset" or "step"."""
        seconds = self._limits.step_seconds
        deadline = Deadline(seconds)
        try:
            return await deadline.run(invoke(function, *args, **kwargs))
        except BaseException as error:
            if deadline.expired and isinstance(error, Exception) and not isinstance(error, ForgeError):
                raise _TooSlow(f"{part} took longer than {seconds:g} s") from None
            if (broken := fault(part, error)) is not None:
                raise broken from error
            raise


def _checked(result: Any, count: int, name: str) -> tuple[Any, ...]:
    """Check what an environment returned: messages first, a finite reward, its info last."""
    if not isinstance(result, tuple) or len(result) != count:
        raise EnvError(f"{name} returned {type(result).__name__} and not a tuple of {count}")
    messages, *middle, info = result
    if not isinstance(info, Mapping) or info.get("outcome", Outcome.SCORED) not in tuple(Outcome):
        raise EnvError(f"{name} returned the info {info!r}; an info is a mapping, and its outcome one of Outcome")
    if not isinstance(messages, Sequence) or not all(_is_message(message) for message in messages):
        raise EnvError(f"{name} returned the messages {messages!r:.200}; a message has a role and a content")
    if middle:
        middle[0] = reward_value(middle[0], f"{name} returned the reward")
    return (tuple(messages), *middle, dict(info))


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _faulted(broken: ForgeError) -> Step:
    outcome = Outcome.ENV_FAULT if isinstance(broken, EnvError) else Outcome.INFRA_FAULT
    return Step(truncated=True, outcome=str(outcome), error=told(broken))


def _with_outcome(step: Step, outcome: Outcome) -> Step:
    is_truncated = outcome is Outcome.TRUNCATED or not outcome.is_valid
    return replace(
        step,
        reward=step.reward if outcome.is_valid else 0.0,
        terminated=not is_truncated,
        truncated=is_truncated,
        outcome=str(outcome),
        error="" if outcome.is_valid else str(step.info.get("error", "the environment says so")),
    )


class _Shared:
    """An open factory, with the number of sessions that use it.

    One task opens and closes it, because some of what environments share (MCP clients) must be left by the task that
    entered it.
    """

    _open: dict[Hashable, _Shared] = {}  # noqa: RUF012 - of all loops; only their own threads touch them

    def __init__(self, key: Hashable, factory: EnvFactory) -> None:
        self.factory = factory
        self._key = key
        self._users = 0
        self._opened = asyncio.get_running_loop().create_future()
        self._released = asyncio.Event()
        self._task = asyncio.create_task(self._hold())

    @classmethod
    async def acquire(cls, loop: LoopThread, factory: EnvFactory) -> _Shared:
        key = (loop, _key(factory))
        shared = cls._open.get(key) or cls._open.setdefault(key, cls(key, factory))
        shared._users += 1
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await asyncio.shield(shared._opened)
        except TimeoutError:
            await shared.release()
            raise InfraError(f"opening {factory.name} took longer than {OPEN_SECONDS:g} s") from None
        except BaseException:
            await shared.release()
            raise
        return shared

    async def release(self) -> None:
        self._users -= 1
        if self._users:
            return
        if self._open.get(self._key) is self:
            del self._open[self._key]
        self._released.set()
        if not self._opened.done():
            self._task.cancel()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        if not done:
            self._task.cancel()
            raise InfraError(f"closing what {self.factory.name} shares took longer than {CLOSE_SECONDS:g} s")
        if not self._task.cancelled():
            self._task.result()

    async def _hold(self) -> None:
        try:
            async with self.factory:
                self._opened.set_result(None)
                await self._released.wait()
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)


def _key(factory: EnvFactory) -> Hashable:
    """Equal for factories that open the same things; options that cannot be compared are never the same."""
    key = (factory.env_class, tuple(sorted(factory.options.items())))
    try:
        hash(key)
    except TypeError:
        return id(factory)
    return key
