"""What an offline evaluation measures: its settings, the places that they ask for, and the seed of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits, Task
from forge_env.evaluation.digests import depends_on
from forge_env.records.run_files import limits_from, trained_config
from forge_env.registry.agent_spec import split_agent
from forge_env.rollout.factory import EnvFactory

PLAN_VERSION = 2
"""From 2 on it says what the numbers hang on beside the settings: `forge_env.evaluation.digests`."""


class Place(NamedTuple):
    """One attempt at one task; what identifies an episode in its folder."""

    task_id: str
    attempt: int

    @classmethod
    def of(cls, episode: Episode) -> Place:
        """The place that an episode of an evaluation fills."""
        return cls(episode.task.id, int(episode.id.rpartition("/")[2]))

    @property
    def episode_id(self) -> str:
        return f"{self.task_id}/{self.attempt}"


@dataclass(frozen=True, kw_only=True)
class EvalPlan:
    """The settings of an evaluation, all that its numbers depend on.

    Example: ``EvalPlan(env="math", agent="scripted:expert", tasks=200, n=8)``

    Raises:
        UserError: for an unknown kind of agent, or a number out of range.
    """

    env: str
    agent: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the environment."""
    split: str = "test"
    tasks: int = 200
    n: int = 1
    """Attempts at each task."""
    seed: int = 0
    temperature: float | None = None
    top_p: float | None = None
    deterministic: bool = False
    answer_seconds: float | None = None
    """See `AgentSettings`. Both time-outs leave out what takes longer, so that the numbers depend on them."""
    idle_seconds: float | None = None
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)

    def __post_init__(self) -> None:
        split_agent(self.agent)
        if self.tasks < 1 or self.n < 1:
            raise UserError(f"{self.tasks} tasks and {self.n} attempts at each were asked for; both are 1 or more")
        if self.temperature is not None and not 0 <= self.temperature < float("inf"):
            raise UserError(f"the temperature is {self.temperature}; it is 0, which is greedy, or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it is above 0 and at most 1")
        for name, seconds in (("answer_seconds", self.answer_seconds), ("idle_seconds", self.idle_seconds)):
            if seconds is not None and not 0 < seconds < float("inf"):
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{name} is {seconds:g}; give {option} a number of seconds above 0, or leave it out")
        wrong = [f"{name} is {value:g}" for name, value in asdict(self.limits).items() if not value > 0]
        if wrong:
            raise UserError(f"a limit of the episodes makes no sense: {', '.join(wrong)}; all are above 0")

    def to_dict(self, factory: EnvFactory, tasks: Sequence[Task]) -> dict[str, Any]:
        """The plan as JSON, with digests of the tasks that it gave and of all that is behind the names in it.

        Raises:
            UserError: for a model that is not there, or a file that cannot be read.
        """
        there = depends_on(self.agent, factory, tasks)
        return {"version": PLAN_VERSION, **asdict(self), "task_digest": digest_of(tasks), "depends_on": there}


def limits_of(agent: str, factory: EnvFactory) -> EpisodeLimits:
    """The limits of an episode where a caller gives none.

    They are those under which a checkpoint was trained in the same environment; else those that the environment
    declares, and for the rest those of a checkpoint's training or the usual ones.

    Raises:
        UserError: for an unknown kind of agent, or a checkpoint that cannot be read.
    """
    kind, rest = split_agent(agent)
    found = trained_config(Path(rest).expanduser()) if kind == "checkpoint" else None
    env = found[1] if found else {}
    declared = {} if env.get("name") == factory.name else factory.declared_limits()
    return replace(limits_from(env), **declared)


def places(tasks: Sequence[Task], n: int) -> dict[Place, Task]:
    """The places of an evaluation, task by task. A task that comes up twice is attempted twice as often."""
    found: dict[Place, Task] = {}
    seen: dict[str, int] = {}
    for task in tasks:
        first = seen.get(task.id, 0)
        found |= {Place(task.id, attempt): task for attempt in range(first, first + n)}
        seen[task.id] = first + n
    return found


def episode_seed(seed: int, place: Place) -> int:
    """Seed of an episode, 31 bits: a hash of the evaluation's seed and the place, whatever runs beside it."""
    text = f"{seed}/{place.attempt}/{place.task_id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % 2**31


def digest_of(tasks: Sequence[Task]) -> str:
    """Hash of the tasks' ids, in their order."""
    return hashlib.blake2b("\n".join(task.id for task in tasks).encode(), digest_size=8).hexdigest()
