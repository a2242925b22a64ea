"""Figures by environment and by kind of task, see `Task.kind`.

A mean over all tasks hides a kind that was solved before training began, and one that never moves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

from forge_env.core.episode import Episode
from forge_env.core.reward_value import reaches
from forge_env.evaluation.evaluate import Evaluation, is_success
from forge_env.evaluation.metrics import reward_parts
from forge_env.utils.statistics import LEVEL, Paired, compare_all

MAX_KINDS = 32
"""Kinds with figures of their own: each of them is several metrics."""
NO_KIND, OTHER_KINDS = "no_kind", "other_kinds"
"""Names in the place of a kind: of tasks without one, where others have one; and of all kinds above `MAX_KINDS`."""
SOLVED = 0.95
"""A kind with at least this success rate counts as solved."""
NOT_SHOWN = "no change shown"
"""The verdict on a kind with a change that may be chance: more tasks may show one."""


class HasKind(Protocol):
    """A task, or what is recorded of one."""

    @property
    def kind(self) -> str: ...


_FIGURES = ("success", "success_low", "success_high", "reward", "episodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The kinds that have figures of their own. Example: ``Kinds(names=("buy", "cancel"))``

    In a run with several environments each of them has figures too, and its kinds are named ENVIRONMENT/KIND.
    """

    names: tuple[str, ...] = ()
    """Sorted; empty if no task has a kind."""
    left_out: int = 0
    """Number of further kinds: `OTHER_KINDS` has their figures, all together."""
    environments: tuple[str, ...] = ()
    """The labels of several environments; empty for one."""

    @classmethod
    def of(cls, tasks: Mapping[str, Iterable[HasKind]]) -> Kinds:
        """Return the kinds of the tasks of each environment, by its label; "" is the label of a single one.

        Of more than `MAX_KINDS`, those with the most tasks keep their names.
        """
        counts = Counter(_label(label, task.kind) for label, of_env in tasks.items() for task in of_env if task.kind)
        frequent = sorted(counts, key=lambda kind: (-counts[kind], kind))[:MAX_KINDS]
        environments = tuple(filter(None, tasks))
        return cls(names=tuple(sorted(frequent)), left_out=len(counts) - len(frequent), environments=environments)

    @property
    def order(self) -> tuple[str, ...]:
        """All names that figures may have, in their order; empty if there are no figures but those of all tasks."""
        if not self.names and not self.environments:
            return ()
        return (*self.environments, *self.names, OTHER_KINDS, *(() if self.environments else (NO_KIND,)))

    @property
    def note(self) -> str:
        """What is not shown, in one sentence; "" if every kind has its figures."""
        if not self.left_out:
            return ""
        return (
            f"the tasks have {len(self.names) + self.left_out} kinds: the {len(self.names)} with the most tasks have "
            f"figures of their own, the other {self.left_out} are counted together as {OTHER_KINDS}"
        )

    def names_of(self, env: str, task: HasKind) -> tuple[str, ...]:
        """Return the names under which a task of an environment is counted: its environment and its kind."""
        kind = _label(env if self.environments else "", task.kind)
        if not self.environments:
            return ((kind if kind in self.names else OTHER_KINDS if kind else NO_KIND),) if self.names else ()
        return (env, *((kind if kind in self.names else OTHER_KINDS,) if task.kind else ()))

    def split(self, episodes: Iterable[Episode]) -> dict[str, Evaluation]:
        """Return the episodes of each environment and each kind that has any, in their `order`."""
        by_name: dict[str, list[Episode]] = defaultdict(list)
        for episode in episodes:
            for name in self.names_of(episode.env, episode.task):
                by_name[name].append(episode)
        return {name: Evaluation(episodes=tuple(by_name[name])) for name in self.order if name in by_name}

    def training_metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return success/KIND, reward/KIND, reward/NAME/mean/KIND and episodes/KIND over the valid episodes."""
        metrics: dict[str, float] = {}
        for name, of_kind in self.split(episode for episode in episodes if episode.outcome.is_valid).items():
            metrics |= {
                f"success/{name}": fmean(map(is_success, of_kind.valid)),
                f"reward/{name}": fmean(episode.reward or 0.0 for episode in of_kind.valid),
                f"episodes/{name}": float(len(of_kind.valid)),
                **_part_means(name, reward_parts(of_kind.valid)),
            }
        return metrics

    def evaluation_metrics(self, evaluation: Evaluation) -> dict[str, float]:
        """Return success/KIND, its interval, reward/KIND, reward/NAME/mean/KIND, and episodes/KIND of the attempts."""
        metrics: dict[str, float] = {}
        for name, of_kind in self.split(evaluation.episodes).items():
            figures = of_kind.metrics()
            metrics |= {f"{figure}/{name}": figures[figure] for figure in _FIGURES if figure in figures}
            metrics |= _part_means(name, of_kind.parts)
        return metrics

    def text(self, evaluation: Evaluation) -> str:
        """Return the success rates in one line: "buy 0.812, cancel 1.000"; "" if there are no kinds."""
        by_kind = self.split(evaluation.episodes)
        return ", ".join(f"{name} {of_kind.success_rate:.3f}" for name, of_kind in by_kind.items() if of_kind.attempts)

    def changes(self, before: Evaluation | None, after: Evaluation | None) -> dict[str, KindChange]:
        """Return what training did to each environment and kind that was evaluated before or after it.

        The verdicts on environments hold together, and so do those on kinds.
        """
        first, last = (self.split(evaluation.episodes) if evaluation else {} for evaluation in (before, after))
        names = (name for name in self.order if name in first or name in last)
        empty = Evaluation(episodes=())
        changes = {name: KindChange(before=first.get(name, empty), after=last.get(name, empty)) for name in names}
        pairs = {name: change.after.pairs_since(change.before) for name, change in changes.items()}
        statistics: dict[str, Paired] = {}
        for are_environments in (True, False):
            family = {n: p for n, p in pairs.items() if p is not None and (n in self.environments) == are_environments}
            statistics |= zip(family, compare_all([*family.values()]), strict=True)
        return {name: replace(change, paired=statistics.get(name)) for name, change in changes.items()}


def _label(env: str, kind: str) -> str:
    return f"{env}/{kind}" if env else kind


def _part_means(kind: str, parts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"reward/{name}/mean/{kind}": part["mean"] for name, part in parts.items()}


@dataclass(frozen=True, kw_only=True)
class KindChange:
    """The success of one kind of task before and after training."""

    before: Evaluation
    after: Evaluation
    paired: Paired | None = None
    """The change on the tasks that both evaluations have, corrected for the number of kinds; None without any."""

    @property
    def verdict(self) -> str:
        """What became of the kind; "" without both evaluations.

        "better" or "worse" if the change on the same tasks is more than chance; else "solved before training", "never
        solved", which is without a success before and after, or "no change shown", which is not proof of none.
        """
        if self.paired is None:
            return ""
        if self.paired.is_different:
            return "better" if self.paired.difference.value > 0 else "worse"
        if reaches(self.before.success_rate, SOLVED):
            return "solved before training"
        return NOT_SHOWN if self.before.successes or self.after.successes else "never solved"

    def summary(self) -> dict[str, Any]:
        return {
            "tasks": len(self.before.by_task.keys() | self.after.by_task.keys()),
            **self.before.summary("before"),
            **self.after.summary("after"),
            "difference": self.paired and self.paired.difference.value,
            "difference_ci95": self.paired and self.paired.difference.interval,
            "p_value": self.paired and self.paired.p_value,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        both, verdict = (self.before, self.after), self.verdict
        text = " to ".join(f"{e.success_rate:.3f}" if e.attempts else "-" for e in both)
        reward = " to ".join(f"{e.reward.value:.3f}" if e.valid else "-" for e in both)
        if verdict == NOT_SHOWN and self.paired is not None:
            low, high = self.paired.difference.interval
            text = f"{verdict} ({text}, interval of the difference [{low:+.3f}, {high:+.3f}])"
        elif verdict:
            text += f", {verdict}"
        return f"{text}; mean reward {reward}"


def verdict_note(changes: Mapping[str, KindChange], environments: Collection[str] = ()) -> str:
    """Return at what level kinds are called better or worse, as a part of a sentence; "" if none was compared."""
    names = [name for name, change in changes.items() if change.paired is not None]
    kinds = sum(name not in environments for name in names)
    counts = {"environments": len(names) - kinds, "kinds": kinds}
    families = " and ".join(f"{count} {family}" for family, count in counts.items() if count > 1)
    correction = f", both corrected for {families} by Holm's method" if families else ""
    rule = f"at p < {LEVEL:g} of the sign-flip test, if the 95% interval of the difference is without 0{correction}"
    return f"a kind is called better or worse {rule}" if names else ""
