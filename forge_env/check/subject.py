"""The environment under examination, and how a check says what it found."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from forge_env.check.moves import Gate, Move, Player, by_expert, probe
from forge_env.core.env import Env
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import EnvError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Action, EpisodeLimits, Task
from forge_env.core.user_code import guard
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.utils.threads import invoke

T = TypeVar("T")

LIMITS = EpisodeLimits(max_turns=64, step_seconds=30.0, episode_seconds=120.0, scoring_seconds=60.0)
GRACE_SECONDS = 1.0  # for what was cancelled to come to its end


class Failed(Exception):
    """A check's finding, one sentence: what the environment does, and what to change."""


class Skipped(Exception):
    """Why a check has nothing to look at."""


class Overdue(EnvError):
    """A call that has not ended in its time."""


@dataclass(kw_only=True)
class Subject:
    """What every check is given."""

    factory: EnvFactory
    seed: int
    count: int
    """How many tasks to look at, at most."""
    tasks: Sequence[Task] = ()
    """Of the split "train"; the first check draws them."""
    gold: dict[str, str] = field(default_factory=dict)
    """The expert's last words by task, of those tasks that it solves; the check of the gold answers fills it."""
    resets: list[float] = field(default_factory=list)
    """Seconds that each `reset` took, one instance at a time."""
    steps: list[float] = field(default_factory=list)
    played: int = 0
    """Episodes so far, of all checks."""
    on_episode: Callable[[int], None] = lambda played: None
    """Called after each episode with their number."""
    isolation: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the sandboxes and workers that the episodes share enforce, by their names; the check of it fills it."""
    until: float = math.inf
    """On the monotonic clock: the end of what the check at hand has of the budget."""

    @property
    def expert(self) -> Callable[..., Any] | None:
        return getattr(self.factory.env_class, "expert", None)

    @property
    def limits(self) -> EpisodeLimits:
        """Of an episode: as many turns as the environment declares, where that is more than usual here."""
        declared = self.factory.declared_limits().get("max_turns", 0)
        return replace(LIMITS, max_turns=max(LIMITS.max_turns, declared))

    @property
    def moves(self) -> list[Move]:
        """Ways to play any task: the expert's, where there is one, and one that tries the tools and answers "0"."""
        return [by_expert(self.expert), probe] if self.expert else [probe]

    async def episode(
        self,
        task: Task,
        move: Move,
        *,
        seed: int | None = None,
        gate: Gate | None = None,
        limits: EpisodeLimits | None = None,
    ) -> Episode:
        """Run one episode through the rollout loop, as training does."""
        try:
            return await run_episode(
                self.factory,
                Player(move, gate),
                task,
                seed=self.seed if seed is None else seed,
                episode_id=f"check/{task.id}",
                limits=limits or self.limits,
            )
        finally:
            self.played += 1
            self.on_episode(self.played)
            if gate is not None:
                gate.leave()


@asynccontextmanager
async def instance(subject: Subject) -> AsyncIterator[Env]:
    """A fresh instance, closed at the end. A `close` that fails is the finding of the check "close" alone."""
    env = subject.factory.make()
    try:
        yield env
    finally:
        try:
            await bounded("close()", called("close", env.close), LIMITS.step_seconds)
        except Exception:
            pass


async def reset(env: Env, task: Task, seed: int) -> Any:
    """Start an episode by hand; whatever `reset` returns, unexamined.

    Raises:
        Overdue: when it takes longer than any step may.
        EnvError: naming the file and the line, for whatever it raises.
    """
    return await _in_time("reset", called("reset", env.reset, seed=seed, options={"task": task, "limits": LIMITS}))


async def step(env: Env, action: Action) -> Any:
    """Take one action by hand; whatever `step` returns, unexamined.

    Raises:
        Overdue: when it takes longer than any step may.
    """
    return await _in_time("step", called("step", env.step, action))


async def called(part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a part of an environment.

    Raises:
        EnvError: naming the part, the file and the line, for whatever it raises.
    """
    with guard(part):
        return await invoke(function, *args, **kwargs)


async def _in_time(what: str, call: Coroutine[Any, Any, T]) -> T:
    """Await a call in this very task, as the rollout loop does: some libraries close only where they were opened."""
    deadline = asyncio.timeout(LIMITS.step_seconds)
    try:
        async with deadline:
            return await call
    except TimeoutError:
        raise Overdue(f"{what}() took longer than {LIMITS.step_seconds:g} s") from None


async def by_hand(env: Env, task: Task, seed: int, move: Move) -> AsyncGenerator[tuple[float, Any]]:
    """Play one episode without the rollout loop: the seconds and the result of `reset`, then those of every `step`."""
    started = time.perf_counter()
    result = await reset(env, task, seed)
    yield time.perf_counter() - started, result
    conversation = Conversation(request_id="check", seed=seed, observation=tuple(result[0]))
    for _ in range(LIMITS.max_turns):
        action = await move(conversation, env.tools)
        conversation.turns.append(Turn(kind="text", observation=conversation.observation, message=action.message))
        started = time.perf_counter()
        result = await step(env, action)
        yield time.perf_counter() - started, result
        conversation.observation = tuple(result[0])
        if result[2] or result[3]:
            return


async def bounded(what: str, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Await work for so long and no longer, even where it does not let itself be cancelled.

    Raises:
        Overdue: when it has not ended by then.
    """
    task = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await cancelled(task)
        raise
    if not done:
        await cancelled(task)
        raise Overdue(f"{what} took longer than {seconds:g} s")
    return task.result()


async def cancelled(task: asyncio.Task[Any], seconds: float = GRACE_SECONDS) -> bool:
    """Cancel a task, and return whether that ended it."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if done and not task.cancelled():
        task.exception()  # seen: nobody is told of it when the task is thrown away
    return bool(done)
