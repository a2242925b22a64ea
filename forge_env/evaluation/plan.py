"""The plan of an offline evaluation: its settings, its attempts, and the seed of each attempt."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError, nearest
from forge_env.core.protocols import Agent
from forge_env.core.types import HOTTEST, EpisodeLimits, Task
from forge_env.evaluation.digests import depends_on, task_digests
from forge_env.records.run_files import limits_from, trained_config
from forge_env.records.run_weights import run_of, run_weights
from forge_env.registry.agent_spec import split_agent
from forge_env.registry.registry import registration
from forge_env.rollout.factory import EnvFactory
from forge_env.utils import by_value
from forge_env.utils.settings import leaves, out_of_bounds

PLAN_VERSION = 2
LOCAL = ("vllm", "checkpoint")
"""Kinds of agents whose prompts are rendered here."""
THINKING = ("off", "on", "template")
SEARCHED = (200, 2_000, 20_000)
"""Numbers of tasks in which an id is looked for, one after the other; the first one is the default number of tasks."""


class Attempt(NamedTuple):
    """One attempt at one task, which identifies an episode of an evaluation."""

    task_id: str
    number: int

    @classmethod
    def of(cls, episode: Episode) -> Attempt:
        return cls(episode.task.id, int(episode.id.rpartition("/")[2]))

    @property
    def episode_id(self) -> str:
        return f"{self.task_id}/{self.number}"


@dataclass(frozen=True, kw_only=True)
class EvalPlan:
    """All settings that the figures of an evaluation depend on.

    Example: ``EvalPlan(env="math", agent="scripted:expert", tasks=200, n=8)``
    """

    env: str
    agent: str
    options: Mapping[str, Any] = field(default_factory=dict)
    group_reward: str = ""
    split: str = "test"
    tasks: int = SEARCHED[0]
    task_ids: tuple[str, ...] = ()
    """The tasks by their ids, sorted; () is the first `tasks` of the split."""
    n: int = 1
    seed: int = 0
    temperature: float | None = None
    top_p: float | None = None
    deterministic: bool = False
    thinking: str | None = None
    """See `EvalSettings`; of a local model never None."""
    adapter: str = ""
    answer_seconds: float | None = None
    """See `EvalSettings`. An answer that exceeds a time limit is left out of the figures, which so depend on it."""
    idle_seconds: float | None = None
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)

    def __post_init__(self) -> None:
        kind, model = split_agent(self.agent)
        if kind == "checkpoint" or (kind == "vllm" and run_of(model) is not None):
            # The weights of one step, also when the run goes on or the evaluation is resumed.
            object.__setattr__(self, "agent", f"{kind}:{run_weights(model).name}")
        if self.thinking is None and kind in LOCAL:
            object.__setattr__(self, "thinking", "off")
        if self.thinking not in (None, *THINKING):
            raise UserError(f"thinking is {self.thinking!r}. {nearest(self.thinking, THINKING)}")
        if self.tasks < 1 or self.n < 1:
            raise UserError(f"tasks is {self.tasks} and n is {self.n}; both must be 1 or more")
        if self.temperature is not None and not 0 <= self.temperature <= HOTTEST:
            allowed = f"from 0, which is greedy, to {HOTTEST:g}"
            raise UserError(f"--temperature is {self.temperature:g}; it must be {allowed}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it is above 0 and at most 1")
        for name, seconds in (("answer_seconds", self.answer_seconds), ("idle_seconds", self.idle_seconds)):
            if seconds is not None and not 0 < seconds < float("inf"):
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{name} is {seconds:g}; give {option} a number of seconds above 0, or leave it out")
        for limit in leaves(self.limits):
            if bounds := out_of_bounds(limit.value, limit.marks):
                raise UserError(f"the limit {limit.name} is {limit.value:g}; it must be {bounds}")
        thought, turn = self.limits.max_thinking_tokens, self.limits.max_turn_tokens
        if thought >= turn:
            raise UserError(
                f"max_thinking_tokens is {thought}, and a turn has max_turn_tokens, {turn}, at most: raise "
                "--max-turn-tokens, which the thought and the answer share, or leave --max-thinking-tokens out"
            )

    @property
    def sampling(self) -> dict[str, Any]:
        """The settings in which the greedy attempts of an evaluation differ from the others."""
        return {"n": self.n, "temperature": self.temperature, "top_p": self.top_p}

    def greedily(self) -> EvalPlan | None:
        """The plan of one attempt at each task at temperature 0; None for an agent elsewhere, or one that is greedy."""
        if split_agent(self.agent)[0] not in LOCAL or self.deterministic or self.temperature == 0:
            return None
        return replace(self, n=1, temperature=0.0, top_p=None)

    def to_dict(
        self,
        factory: EnvFactory,
        tasks: Sequence[Task],
        extended_from: Sequence[int] = (),
        agent: Callable[..., Any] | Agent | None = None,
    ) -> dict[str, Any]:
        """Return the plan as JSON data, with digests of its tasks and of everything that it names.

        `extended_from`: see `draw_tasks`. `agent` is what Python's code has given for the plan's name.
        """
        digests = depends_on(self.agent, factory, tasks, adapter=self.adapter, agent_object=agent)
        settings = {**vars(self), "limits": asdict(self.limits)}  # an option may be an object that cannot be copied
        for name in ("task_ids", "group_reward"):
            if not settings[name]:
                del settings[name]
        return {
            "version": PLAN_VERSION,
            **settings,
            "registered": registration(self.env),
            "task_digest": task_list_digest(tasks),
            "depends_on": digests,
            **({"extended_from": list(extended_from)} if extended_from else {}),
        }


def draw_tasks(
    factory: EnvFactory, plan: EvalPlan, extended_from: Sequence[int], *, at_most: bool = False
) -> Sequence[Task]:
    """Return the tasks of a plan: those of earlier commands with fewer tasks come first, in their order.

    More tasks may be other tasks, as an environment may draw them all anew. The first ones then keep their results, and
    the new ones are those that are not among them. With `at_most` nobody has named the number, and fewer will do.
    """
    if not extended_from:
        return factory.tasks(plan.split, count=plan.tasks, seed=plan.seed, at_most=at_most)
    tasks: dict[str, Task] = {}
    for count in (*extended_from, plan.tasks):
        candidates = factory.tasks(plan.split, count=count, seed=plan.seed, at_most=at_most)
        new = [task for task in candidates if task.id not in tasks]
        tasks |= {task.id: task for task in new[: count - len(tasks)]}
    return list(tasks.values())


def tasks_by_id(factory: EnvFactory, plan: EvalPlan, among: int | None) -> list[Task]:
    """Return the tasks that a plan names by their ids.

    They are looked for in the first `among` tasks of the split. With None they are looked for in the numbers of
    `SEARCHED`: a split may be endless, and slow to make.
    """
    tasks: dict[str, Task] = {}
    for count in (among,) if among else SEARCHED:
        candidates = factory.tasks(plan.split, count=count, seed=plan.seed, at_most=among is None)
        tasks = {task.id: task for task in candidates}
        missing = [task_id for task_id in plan.task_ids if task_id not in tasks]
        if not missing:
            return [tasks[task_id] for task_id in plan.task_ids]
        if len(candidates) < count:
            break
    close = [task_id for task_id in tasks if task_id.startswith(missing[0])]
    close = close or difflib.get_close_matches(missing[0], tasks, n=1) or list(tasks)
    others = f" nor of {len(missing) - 1} others" if missing[1:] else ""
    raise UserError(
        f"there is no task of the id {missing[0]!r:.80}{others} among the first {len(tasks):,} of the split "
        f"{plan.split!r} of {factory.name}; the nearest one is {close[0]!r:.80}"
    )


def before_extension(plan: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the plan of the command before: of the first `tasks`, without the last of its `extended_from`."""
    *earlier, count = plan["extended_from"]
    before = {
        **plan,
        "tasks": count,
        "task_digest": task_list_digest(tasks),
        "depends_on": {**plan["depends_on"], **task_digests(tasks)},
    }
    del before["extended_from"]
    return before | ({"extended_from": earlier} if earlier else {})


def limits_of(agent: str, factory: EnvFactory) -> EpisodeLimits:
    """Return the limits of an episode if the caller gives none.

    A checkpoint has the limits of its training, if that was in the same environment. Otherwise the limits that the
    environment declares come first, then those of a checkpoint's training, then the defaults.
    """
    env = _training_of(agent) or {}
    file, _, name = str(env.get("name")).rpartition(":")
    is_by_value = file.endswith(by_value.SUFFIX) and name == factory.env_class.__name__
    env_limits = {} if is_by_value or env.get("name") == factory.name else factory.declared_limits()
    return replace(limits_from(env), **env_limits)


def thinking_of(agent: str) -> str | None:
    """Return whether an agent thinks if the caller does not say so: a checkpoint does what it did in its training."""
    return (_training_of(agent) or {}).get("thinking")


def _training_of(agent: str) -> dict[str, Any] | None:
    """The section `env` of the training of a checkpoint; None for any other agent."""
    kind, argument = split_agent(agent)
    run = run_of(argument) if kind == "checkpoint" else None
    return trained_config(run) if run else None


def all_attempts(tasks: Sequence[Task], n: int) -> dict[Attempt, Task]:
    """Return the attempts of an evaluation, task by task. A task that is listed twice gets twice as many attempts."""
    attempts: dict[Attempt, Task] = {}
    counts: dict[str, int] = {}
    for task in tasks:
        first = counts.get(task.id, 0)
        attempts |= {Attempt(task.id, number): task for number in range(first, first + n)}
        counts[task.id] = first + n
    return attempts


def episode_seed(seed: int, attempt: Attempt) -> int:
    """Return the seed of an episode, 31 bits: a hash of the evaluation's seed and the attempt."""
    text = f"{seed}/{attempt.number}/{attempt.task_id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % 2**31


def task_list_digest(tasks: Sequence[Task]) -> str:
    return hashlib.blake2b("\n".join(task.id for task in tasks).encode(), digest_size=8).hexdigest()
