"""The groups that teach a run nothing, and how the episodes without a reward ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from forge_env.core.episode import Group
from forge_env.core.errors import NothingTrained, ServiceError, UserError
from forge_env.core.faults import MAX_FAULTS_IN_A_ROW, broken_tasks
from forge_env.core.reward_value import reaches
from forge_env.core.types import Outcome
from forge_env.evaluation.evaluate import is_success
from forge_env.evaluation.kinds import Kinds
from trainers.objective.advantages import has_signal

MOSTLY = 64  # episodes; if the user's reward function fails for more than half of them, it is broken
MAX_FLAT_IN_A_ROW = 512  # groups that dynamic sampling drops, in a run that has learned: a step would wait for ever
Fate = Literal["failed", "solved", "same"]
_GO_ON = "; --training.signal_error 0 goes on without an end"


@dataclass(slots=True, kw_only=True)
class DropCounts:
    """Counts of a whole run. Every field is JSON, so that a checkpoint keeps `asdict`."""

    outcomes: dict[str, int] = field(default_factory=dict)
    """Episodes without a reward by outcome, of all groups."""
    broken: dict[str, str] = field(default_factory=dict)
    """The tasks of groups that faults of their environment have ended, with an error of each."""
    faulty: dict[str, int] = field(default_factory=dict)
    """Groups that were dropped with too few valid episodes, by the label of their environment."""
    faulty_in_a_row: dict[str, int] = field(default_factory=dict)
    flat: int = 0
    """Groups that were dropped because all their valid episodes have one reward. A flat group is not a fault."""
    silent: dict[str, int] = field(default_factory=dict)
    """Fate -> groups without a signal in a row, which were dropped, or trained on in a step without a gradient."""
    silent_reward: float = 0.0
    """The reward of the last of them, or the mean of the last step."""
    idle_steps: int = 0
    """The first optimizer steps, which had no gradient."""
    not_finite: int = 0
    """Those of them whose loss or gradient was not finite."""
    has_learned: bool = False
    """Whether an optimizer step had a gradient."""
    left_out: int = 0
    """Episodes that were left out, because the user's reward function gave no number."""
    judged: int = 0
    """Episodes of the present `MOSTLY` that it was asked about."""
    unjudged: int = 0
    """Episodes among them without a number."""
    unjudged_error: str = ""

    @property
    def silent_in_a_row(self) -> int:
        return sum(self.silent.values())

    def add_outcomes(self, group: Group) -> None:
        for episode in group.faults:
            outcome = episode.outcome.value
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.broken |= broken_tasks(group.episodes)

    def judge(self, episodes: int, errors: Sequence[str]) -> None:
        """Count the episodes of a group that the user's reward function judges, and its errors."""
        self.judged, self.unjudged = self.judged + episodes, self.unjudged + len(errors)
        self.left_out += len(errors)
        self.unjudged_error = errors[-1] if errors else self.unjudged_error
        if self.judged < MOSTLY:
            return
        judged, unjudged, self.judged, self.unjudged = self.judged, self.unjudged, 0, 0
        if 2 * unjudged > judged:
            raise UserError(f"{unjudged} of the last {judged} episodes were left out: {self.unjudged_error}")

    def keep(self, env: str, *, has_signal: bool) -> None:
        """A group of an environment can be trained on; `has_signal` says that it is known to have one."""
        self.faulty_in_a_row[env] = 0
        if has_signal:
            self.silent = {}

    def drop_faulty(self, env: str, reason: str) -> None:
        """Count a group with too few valid episodes, or none. The faults of each environment count on their own."""
        for counts in (self.faulty, self.faulty_in_a_row):
            counts[env] = counts.get(env, 0) + 1
        if self.faulty_in_a_row[env] >= MAX_FAULTS_IN_A_ROW:
            groups = f"groups of {env}" if env else "groups"
            raise ServiceError(f"{MAX_FAULTS_IN_A_ROW} {groups} in a row had too few valid episodes; {reason}")

    def drop_flat(self, env: str, fate: Fate, reward: float, *, most: int) -> None:
        """Count a group that dynamic sampling drops, which ends a row of faulty groups.

        Args:
            most: of such groups in a row, in a run that has not learned yet; 0 is without end, in any run.
        """
        self.faulty_in_a_row[env] = 0
        self.flat += 1
        self._add({fate: 1}, reward)
        row = self.silent_in_a_row
        if most and row >= (MAX_FLAT_IN_A_ROW if self.has_learned else most):
            text = f"{row:,} groups in a row were dropped: {self._why()}, or dynamic sampling must be off"
            raise ServiceError(text) if self.has_learned else NothingTrained(f"nothing was trained: {text}{_GO_ON}")

    def train(self, metrics: Mapping[str, float], *, has_gradient: bool, most: int) -> None:
        """Count an optimizer step; `most` is the number of first steps without a gradient, 0 without end."""
        if self.has_learned:
            return
        if has_gradient:
            self.has_learned, self.silent = True, {}
            return
        self.idle_steps += 1
        self.not_finite += bool(metrics["skipped"] and metrics["tokens"])
        if not self.flat:  # dropped groups are counted already, and the metrics have them too
            fates = {fate: int(metrics[f"signal/{fate}"]) for fate in get_args(Fate)}
            self._add(fates, metrics.get("training_reward", 0.0))
        if most and self.idle_steps >= most:
            raise NothingTrained(f"{self._nothing('the first')}{_GO_ON}")

    def check_trained(self) -> None:
        if not self.has_learned:
            raise NothingTrained(self._nothing("all"))

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "episodes_timed_out": float(self.outcomes.get(Outcome.TIMEOUT.value, 0)),
            "episodes_unjudged": float(self.left_out),
            "groups_dropped": float(sum(self.faulty.values())),
            "groups_without_signal": float(self.flat),
            **{f"groups_dropped/{env}": float(count) for env, count in self.faulty.items() if env},
        }

    def _add(self, fates: Mapping[Fate, int], reward: float) -> None:
        for fate, count in fates.items():
            self.silent[fate] = self.silent.get(fate, 0) + count
        self.silent_reward = reward

    def _nothing(self, which: str) -> str:
        steps = "the only step" if self.idle_steps == 1 else f"{which} {self.idle_steps:,} steps"
        return f"nothing was trained: {steps} had no gradient: {self._why()}"

    def _why(self) -> str:
        failures, successes, same = (self.silent.get(fate, 0) for fate in get_args(Fate))
        total, reward = self.silent_in_a_row, f"{self.silent_reward:g}"
        if self.not_finite:
            return (
                f"in {self.not_finite:,} of them loss or gradient was not finite: look at --loss if there is one, or "
                "lower --training.learning_rate"
            )
        if not total:
            return "no episode had a token to learn from: raise --env.max_tokens, or shorten the prompts"
        faulty = sum(self.faulty.values())
        faults = f", and {faulty:,} more were dropped with faults" if faulty else ""
        if successes == total:
            return f"always rewarded, all {total:,} groups had successes only{faults}; take harder tasks"
        if failures == total and reaches(0.0, self.silent_reward):
            return (
                f"never rewarded, all {total:,} groups were without a success, with reward {reward}{faults}; take "
                "easier tasks, a longer warm-up or a stronger model; forge-env check ENV shows whether the expert "
                "is rewarded"
            )
        return (
            f"each of {total:,} groups had one reward for all its episodes, {reward} in the last, {failures:,} of them "
            f"without a success, {successes:,} with successes only and {same:,} with both{faults}; the reward does not "
            "tell episodes apart, or the tasks are too easy or too hard"
        )


def fate_of(group: Group) -> Fate:
    """How a group without a signal ended: without a success, with successes only, or with both."""
    successes = sum(map(is_success, group.valid))
    return "same" if 0 < successes < len(group.valid) else "solved" if successes else "failed"


class SignalCounts:
    """Counts the groups that came back since the step before: those that are trained on, and those that are dropped."""

    def __init__(self, kinds: Kinds = Kinds()) -> None:  # noqa: B008 (frozen)
        self._kinds = kinds
        self._counts: Counter[str] = Counter()

    def add(self, group: Group, rewards: Sequence[float]) -> None:
        """Count a group, with the rewards of its valid episodes that training uses."""
        names = ["groups"]
        if not has_signal(rewards):
            names.append(fate_of(group))
        suffixes = ["", *(f"/{name}" for name in self._kinds.names_of(group.env, group.task))]
        self._counts.update(f"signal/{name}{suffix}" for name in names for suffix in suffixes)

    @property
    def metrics(self) -> dict[str, float]:
        """signal/groups; of those without a signal signal/failed, without a success, signal/solved, with successes
        only, and signal/same, with both; signal/share, the part with one; and each count by kind, signal/failed/KIND.
        Counts of 0 are left out by kind, and the share of no group."""
        totals = {f"signal/{name}": 0.0 for name in ("groups", "failed", "solved", "same")}
        totals |= {name: float(count) for name, count in self._counts.items()}
        groups, *silent = (totals[f"signal/{name}"] for name in ("groups", "failed", "solved", "same"))
        return totals | ({"signal/share": 1 - sum(silent) / groups} if groups else {})

    def clear(self) -> None:
        self._counts.clear()
