"""Evaluation: runs episodes with fixed weights, and computes figures from them.

The same code evaluates a policy during training (`trainers`) and any agent on the command line (`forge-env eval`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from forge_env.core.env import SUCCESS
from forge_env.core.episode import Episode, Group
from forge_env.core.errors import ForgeError, first_error
from forge_env.core.reward_value import is_within, reaches
from forge_env.core.types import Task
from forge_env.evaluation.metrics import (
    mean_of_part,
    model_call_metrics,
    reward_part_metrics,
    reward_parts,
    telling_parts,
)
from forge_env.utils.statistics import (
    Estimate,
    Pairs,
    clustered_mean,
    clustered_share,
    compare_all,
    pass_at_k,
    pass_hat_k,
)

TaskKey = tuple[str, str]
"""The environment of an episode and the id of its task."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Figures over episodes. A fault of the machinery is not an attempt: it is counted apart, never as a failure.

    A TIMEOUT is an attempt without success; `without_timeouts` is the success rate of the other attempts. All tasks
    have equal weight, whatever the number of their attempts, and intervals are clustered by task.
    """

    episodes: tuple[Episode, ...]

    @cached_property
    def attempts(self) -> tuple[Episode, ...]:
        """The episodes that count: those with a reward, and TIMEOUTs."""
        return tuple(e for e in self.episodes if e.outcome.is_attempt)

    @cached_property
    def valid(self) -> tuple[Episode, ...]:
        """The episodes with a reward."""
        return tuple(e for e in self.episodes if e.outcome.is_valid)

    @cached_property
    def by_task(self) -> dict[TaskKey, list[Episode]]:
        """The attempts of each task that has any; two environments may have the same task."""
        return _by_task(self.attempts)

    @property
    def successes(self) -> int:
        return sum(is_success(e) for e in self.attempts)

    @property
    def success(self) -> Estimate:
        """Success rate of one attempt: avg@n, which equals pass@1."""
        return self.pass_at(1)

    @property
    def success_rate(self) -> float:
        return self.success.value

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the success rate."""
        return self.success.interval

    @property
    def without_timeouts(self) -> Estimate:
        """Success rate of the attempts that ended with a reward."""
        return Evaluation(episodes=self.valid).success

    @property
    def timeouts(self) -> int:
        return len(self.attempts) - len(self.valid)

    @property
    def faults(self) -> int:
        """Number of episodes that are not attempts, because a fault of the machinery ended them."""
        return len(self.episodes) - len(self.attempts)

    @property
    def ended_by(self) -> dict[str, int]:
        """Name of a limit -> number of valid episodes that it ended."""
        return dict(sorted(Counter(e.ended_by for e in self.valid if e.ended_by not in ("", "environment")).items()))

    @property
    def refused_requests(self) -> dict[str, int]:
        """Reason -> number of refused requests of programs, over all episodes, as `Env.final_info` reports them."""
        return self._count_of("refused_requests")

    @property
    def ignored_fields(self) -> dict[str, int]:
        """Field -> number of requests of programs that had it and were answered without it, over all episodes."""
        return self._count_of("ignored_fields")

    @property
    def reward(self) -> Estimate:
        """Mean reward of the valid episodes; its interval stays within 0 and 1 if all rewards do."""
        tasks = _by_task(self.valid).values()
        values = [fmean(e.reward or 0.0 for e in episodes) for episodes in tasks]
        if all(is_within(e.reward or 0.0, 0.0, 1.0) for e in self.valid):
            return clustered_share([min(max(value, 0.0), 1.0) for value in values], attempts=len(self.valid))
        return clustered_mean(values)

    @property
    def mean_reward(self) -> float | None:
        """The mean reward; None without a valid episode."""
        return self.reward.value if self.valid else None

    def summary(self, when: str) -> dict[str, Any]:
        """Return the figures for summary.json, named by when it was measured; those that were not measured are None."""
        return {
            f"success_{when}": self.success_rate if self.attempts else None,
            f"success_{when}_ci95": self.interval if self.attempts else None,
            f"success_{when}_without_timeouts": self.without_timeouts.value if self.valid else None,
            f"reward_{when}": self.mean_reward,
            f"rewards_{when}": self.parts,
        }

    def pass_at(self, k: int) -> Estimate:
        """Probability that at least one of k attempts succeeds, over the tasks with at least k attempts."""
        return self._share(pass_at_k, k)

    def pass_hat(self, k: int) -> Estimate:
        """Probability that all of k attempts succeed, over the tasks with at least k attempts."""
        return self._share(pass_hat_k, k)

    @cached_property
    def parts(self) -> dict[str, dict[str, float]]:
        """The figures of each part of the reward, see `reward_parts`."""
        return reward_parts(self.valid, by_task=True)

    @property
    def shown_parts(self) -> dict[str, str]:
        """The mean of each part for people; {} if there is none beside the reward itself."""
        names = telling_parts(self.mean_reward, self.parts)
        return {name: mean_of_part(self.parts[name], len(self.valid)) for name in names}

    @property
    def parts_text(self) -> str:
        """The same in one line: "format 0.900, right 0.412 (40 of 48 episodes)"."""
        return ", ".join(f"{name} {mean}" for name, mean in self.shown_parts.items())

    def change_text(self, before: Evaluation) -> str:
        """How success and mean reward changed since an earlier evaluation, on the tasks of both; "" without any."""
        rewards = _pairs(_by_task(self.valid), _by_task(before.valid), lambda episode: episode.reward or 0.0)
        measures = {"success": self.pairs_since(before), "the mean reward": rewards}
        changes = [
            f"{name} by {change.difference.value:+.3f} [{change.difference.low:+.3f}, {change.difference.high:+.3f}]: "
            f"{change.wins:,} better, {change.losses:,} worse, {change.ties:,} alike "
            f"(p {'< 0.001' if change.p_value < 0.001 else f'= {change.p_value:.3f}'})"
            for name, pairs in measures.items()
            if pairs
            for change in compare_all([pairs])
        ]
        tasks = len(self.by_task.keys() & before.by_task.keys())
        return f"on the same {tasks:,} tasks, training changed {', and '.join(changes)}" if changes else ""

    def pairs_since(self, before: Evaluation) -> Pairs | None:
        """The success on the tasks that an earlier evaluation has too; None without any."""
        return _pairs(self.by_task, before.by_task, is_success)

    def metrics(self) -> dict[str, float]:
        """Return the figures as flat metrics, without those that were not measured."""
        attempts = max(map(len, self.by_task.values()), default=0)
        low, high = self.interval
        figures = {"success": self.success_rate, "success_low": low, "success_high": high}
        if self.valid:
            figures |= {"reward": self.reward.value, "success_without_timeouts": self.without_timeouts.value}
            figures |= reward_part_metrics(self.parts)
        if attempts > 1:
            figures |= {f"pass_at_{attempts}": self.pass_at(attempts).value}
            figures |= {f"pass_hat_{attempts}": self.pass_hat(attempts).value}
        counts = {"episodes": len(self.attempts), "timeouts": self.timeouts, "faults": self.faults}
        if refusals := self.refused_requests:
            counts["refused_requests"] = sum(refusals.values())
        figures = figures if self.attempts else {}
        return figures | {name: float(count) for name, count in counts.items()} | model_call_metrics(self.episodes)

    def _count_of(self, key: str) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for episode in self.episodes:
            counts = episode.info.get(key)
            if isinstance(counts, Mapping):  # an environment may write anything there
                sums.update({str(name): n for name, n in counts.items() if isinstance(n, int)})
        return dict(sorted(sums.items()))

    def _share(self, estimate: Callable[[int, int, int], float], k: int) -> Estimate:
        tasks = [attempts for attempts in self.by_task.values() if len(attempts) >= k]
        values = [estimate(len(attempts), sum(map(is_success, attempts)), k) for attempts in tasks]
        return clustered_share(values, attempts=sum(map(len, tasks)))

    def __str__(self) -> str:
        if not self.attempts:
            error = next((f", {episode.error}" for episode in reversed(self.episodes) if episode.error), "")
            return f"not measured: all {len(self.episodes)} episodes ended by faults{error}"
        low, high = self.interval
        text = f"{self.success_rate:.3f} [{low:.3f}, {high:.3f}]"
        text += f", mean reward {self.reward.value:.3f}" if self.valid else ""
        text += f" over {len(self.attempts)} episodes"
        text += "".join(f", {count} ended by {limit}" for limit, count in self.ended_by.items())
        if self.timeouts:
            text += f", {self.timeouts} time-outs (without them {self.without_timeouts.value:.3f})"
        text += f", {self.faults} faults" if self.faults else ""
        if counts := self.refused_requests:
            reasons = ", ".join(f"{reason} {count}" for reason, count in counts.items())
            text += f", {sum(counts.values())} requests refused ({reasons})"
        return text


def _by_task(episodes: Sequence[Episode]) -> dict[TaskKey, list[Episode]]:
    tasks: dict[TaskKey, list[Episode]] = defaultdict(list)
    for episode in episodes:
        tasks[episode.env, episode.task.id].append(episode)
    return dict(tasks)


def _pairs(
    after: Mapping[TaskKey, Sequence[Episode]],
    before: Mapping[TaskKey, Sequence[Episode]],
    value: Callable[[Episode], float],
) -> Pairs | None:
    """The mean of a value on the tasks that both have; None without any."""
    tasks = [task for task in before if task in after]
    if not tasks:
        return None
    first, second = ([fmean(map(value, run[task])) for task in tasks] for run in (after, before))
    return Pairs.of(first, second, (sum(len(after[task]) for task in tasks), sum(len(before[task]) for task in tasks)))


def is_success(episode: Episode) -> bool:
    """Whether an episode is a success: the environment's verdict if there is one, else a reward of 1 or more."""
    if episode.success is not None:
        return episode.success
    return episode.reward is not None and reaches(episode.reward, SUCCESS)


async def evaluate(
    run_group: Callable[[Task, int], Awaitable[Group]],
    tasks: Sequence[Task],
    *,
    concurrency: int,
    on_done: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Run every task as one group, at most `concurrency` at the same time; the result is in the order of the tasks."""
    semaphore = asyncio.Semaphore(concurrency)
    done = 0

    async def run_one(task: Task, index: int) -> Group:
        nonlocal done
        async with semaphore:
            group = await run_group(task, index)
        done += 1
        on_done(done)
        return group

    try:
        async with asyncio.TaskGroup() as task_group:
            groups = [task_group.create_task(run_one(task, index)) for index, task in enumerate(tasks)]
    except* ForgeError as errors:
        raise first_error(errors) from None
    return Evaluation(episodes=tuple(e for group in groups for e in group.result().episodes))
