"""Runs the episodes of one SyncEnv on the event loop: one instance per episode, of a factory that SyncEnvs share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium.logger

from contrib.common.loop_thread import LoopThread
from forge_env.core.env import Env
from forge_env.core.errors import EnvError, ForgeError, InfraError
from forge_env.core.plain_value import own_containers, own_task
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task, ToolSpec
from forge_env.core.user_code import error_text, guard
from forge_env.rollout.env_calls import EnvTimeout, call_env, close_env, read_reset, read_step
from forge_env.rollout.factory import EnvFactory
from forge_env.utils.deadlines import Deadline
from forge_env.utils.threads import call_on

OPEN_SECONDS = 600.0
"""Time limit for opening what the instances of an environment share: sandboxes, servers."""
CLOSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    messages: Sequence[Message] = ()
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    outcome: str = ""
    """Of the episode; "" while it continues."""
    error: str = ""
    """The reason of a fault."""
    info: Mapping[str, Any] = field(default_factory=dict)


class EnvRunner:
    """Runs the episodes of one SyncEnv. Its methods run on the event loop, one at a time."""

    def __init__(self, loop: LoopThread, factory: EnvFactory, limits: EpisodeLimits) -> None:
        self.loop = loop
        self._factory = factory
        self._limits = limits
        self._shared: _SharedFactory | None = None
        self._env: Env | None = None
        self._turn = asyncio.Lock()  # after an interrupt, a step that was cancelled may still clean up

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return () if self._env is None else self._env.tools

    async def reset(self, task: Task, seed: int, options: Mapping[str, Any]) -> StepOutcome:
        """Close the last episode and start one; a fault of the environment is an outcome."""
        async with self._turn:
            if self._shared is None:
                self.loop.closers[self] = self.close
                self._shared = await _SharedFactory.acquire(self.loop, self._factory)
            await self._close_env()
            try:
                self._env = await self._shared.factory.construct(seconds=self._limits.step_seconds)
                reset_options = {**own_containers(dict(options)), "task": own_task(task), "limits": self._limits}
                call = call_on(self._env, self._env.reset, seed=seed, options=reset_options)
                messages, info = await self._call("reset", call, read_reset)
            except (EnvError, InfraError) as error:
                return _fault_outcome(error)
            return StepOutcome(messages=messages, info=info)

    async def step(self, action: Action) -> StepOutcome:
        async with self._turn:
            assert self._env is not None
            try:
                call = call_on(self._env, self._env.step, action)
                messages, reward, terminated, truncated, info = await self._call("step", call, read_step)
            except EnvTimeout as error:
                is_slow_model = self._env.time_spent_by == "model"
                return self.truncated(StepOutcome()) if is_slow_model else _fault_outcome(error)
            except (EnvError, InfraError) as error:
                return _fault_outcome(error)
            step = StepOutcome(messages=messages, reward=float(reward), info=info)
            if "outcome" in info:
                return _with_outcome(step, Outcome(info["outcome"]))
            if truncated:
                return self.truncated(step)
            return _with_outcome(step, Outcome.SCORED) if terminated else step

    async def _call(self, part: str, call: Coroutine[Any, Any, Any], read: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Return what a method returns: its messages as copies, and its info as it is, which may hold any objects."""
        result = await call_env(part, call, Deadline(self._limits.step_seconds))
        with guard(f"{part} returned what cannot be read"):
            return (read(result).observation, *result[1:-1], dict(result[-1]))

    def truncated(self, step: StepOutcome) -> StepOutcome:
        """Return a step as the last one of an episode that reached a limit of turns or time."""
        assert self._env is not None
        return _with_outcome(replace(step, reward=step.reward + self._env.truncation_reward), Outcome.TRUNCATED)

    async def close(self) -> None:
        async with self._turn:
            self.loop.closers.pop(self, None)
            await self._close_env()
            shared, self._shared = self._shared, None
            if shared is not None:
                await shared.release()

    def abandon(self) -> None:
        """Close without waiting, from any thread: the SyncEnv was garbage-collected."""
        if self.loop.is_mine:
            self.loop.start(self._close_and_release)

    async def _close_and_release(self) -> None:
        try:
            await self.close()
        finally:
            self.loop.release()

    async def _close_env(self) -> None:
        env, self._env = self._env, None
        if env is not None and (error := await close_env(env, self._limits.step_seconds)):
            gymnasium.logger.warn(f"closing {self._factory.name} failed: {error}")


def _fault_outcome(error: ForgeError) -> StepOutcome:
    outcome = Outcome.ENV_FAULT if isinstance(error, EnvError) else Outcome.INFRA_FAULT
    return StepOutcome(truncated=True, outcome=str(outcome), error=error_text(error))


def _with_outcome(step: StepOutcome, outcome: Outcome) -> StepOutcome:
    is_truncated = outcome is Outcome.TRUNCATED or not outcome.is_valid
    return replace(
        step,
        reward=step.reward if outcome.is_valid else 0.0,
        terminated=not is_truncated,
        truncated=is_truncated,
        outcome=str(outcome),
        error="" if outcome.is_valid else str(step.info.get("error", "the environment says so")),
    )


class _SharedFactory:
    """An open factory, with the number of runners that use it.

    One task opens and closes it, because some shared resources (MCP clients) must be closed by the task that opened
    them.
    """

    _open: dict[Hashable, _SharedFactory] = {}  # noqa: RUF012 - of all loops; each loop's thread touches only its own

    def __init__(self, key: Hashable, factory: EnvFactory) -> None:
        self.factory = factory
        self._key = key
        self._users = 0
        self._opening = asyncio.get_running_loop().create_future()
        self._release = asyncio.Event()
        self._task = asyncio.create_task(self._hold_open())

    @classmethod
    async def acquire(cls, loop: LoopThread, factory: EnvFactory) -> _SharedFactory:
        key = (loop, _key(factory))
        shared = cls._open.get(key) or cls._open.setdefault(key, cls(key, factory))
        shared._users += 1
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await asyncio.shield(shared._opening)
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
        self._release.set()
        if not self._opening.done():
            self._task.cancel()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        if not done:
            self._task.cancel()
            raise InfraError(f"closing what {self.factory.name} shares took longer than {CLOSE_SECONDS:g} s")
        if not self._task.cancelled():
            self._task.result()

    async def _hold_open(self) -> None:
        try:
            async with self.factory:
                self._opening.set_result(None)
                await self._release.wait()
        except Exception as error:
            if self._opening.done():
                raise
            self._opening.set_exception(error)


def _key(factory: EnvFactory) -> Hashable:
    """Return a key that is equal for factories that open the same resources; unhashable options are never equal."""
    key = (factory.env_class, tuple(sorted(factory.options.items())))
    try:
        hash(key)
    except TypeError:
        return id(factory)
    return key
