"""The input of every check, and the exceptions for a check that failed, warns, or does not apply."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contrib.check.strategies import Strategy, StrategyAgent, TurnBarrier, follow_expert, try_every_tool
from forge_env.core.episode import Episode
from forge_env.core.types import EpisodeLimits, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode

LIMITS = EpisodeLimits(max_turns=64, step_seconds=30.0, episode_seconds=120.0, scoring_seconds=60.0)


class CheckFailed(Exception):
    """A check failed. One sentence: what the environment does, and what to change."""


class CheckWarning(Exception):
    """A check passed, and yet there is something to know. One sentence: what it is, and what to change."""


class CheckSkipped(Exception):
    """A check does not apply. One sentence: why."""


def shorten(text: str, length: int = 200) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


@dataclass(kw_only=True)
class CheckContext:
    """The environment under test, and what earlier checks have found out about it."""

    factory: EnvFactory
    seed: int
    count: int
    """Maximum number of tasks to check."""
    tasks: Sequence[Task] = ()
    """Tasks of the split "train"; set by the check "tasks", which runs first."""
    are_repeatable: bool = False
    """Whether the same seed gives the same tasks; set by the check "tasks"."""
    gold: dict[str, str] = field(default_factory=dict)
    """Task id -> the expert's final answer, for the tasks that the expert solves; set by the check "gold answers"."""
    episodes_of: dict[str, list[Episode]] = field(default_factory=lambda: defaultdict(list))
    """An answer that does not depend on the question -> episodes of tasks whose answer it is not."""
    reset_seconds: list[float] = field(default_factory=list)
    """Duration of each `reset`, measured with one instance at a time."""
    step_seconds: list[float] = field(default_factory=list)
    """Duration of each `step`, measured with one instance at a time."""
    episodes_played: int = 0
    """Number of episodes so far, over all checks."""
    slowest: float = 0.0
    """Seconds of the longest episode so far."""
    on_episode: Callable[[int], None] = lambda episodes_played: None
    """Called after each episode with `episodes_played`."""
    isolation: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of a shared sandbox or worker -> what it enforces; set by the check "isolation"."""
    deadline: float = math.inf
    """End of the running check's share of the budget, on the monotonic clock."""

    @property
    def expert(self) -> Callable[..., Any] | None:
        return getattr(self.factory.env_class, "expert", None)

    @property
    def limits(self) -> EpisodeLimits:
        """Limits of an episode: `LIMITS`, with more turns where the environment declares more."""
        max_turns = self.factory.declared_limits().get("max_turns", 0)
        return replace(LIMITS, max_turns=max(LIMITS.max_turns, max_turns))

    @property
    def strategies(self) -> list[Strategy]:
        """Strategies for any task: the expert's, if there is one, and one that tries the tools and answers "0"."""
        return [follow_expert(self.expert), try_every_tool] if self.expert else [try_every_tool]

    async def episode(
        self,
        task: Task,
        strategy: Strategy,
        *,
        seed: int | None = None,
        barrier: TurnBarrier | None = None,
        limits: EpisodeLimits | None = None,
    ) -> Episode:
        start = time.monotonic()
        try:
            episode = await run_episode(
                self.factory,
                StrategyAgent(strategy, barrier),
                task,
                seed=self.seed if seed is None else seed,
                episode_id=f"check/{task.id}",
                limits=limits or self.limits,
            )
            self.episodes_played += 1
            self.slowest = max(self.slowest, time.monotonic() - start)
            self.on_episode(self.episodes_played)
            return episode
        finally:
            if barrier is not None:
                barrier.leave()
