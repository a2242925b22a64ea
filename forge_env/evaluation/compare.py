"""Compares two runs on the attempts that both have at the same tasks."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from forge_env.core.episode import read_jsonl
from forge_env.core.errors import UserError
from forge_env.evaluation.evaluate import is_success
from forge_env.evaluation.kinds import Kinds
from forge_env.records.run_files import EPISODES, episode_files
from forge_env.utils.digests import value_digest
from forge_env.utils.statistics import Paired, Pairs, clustered_mean, compare_all


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """One phase of two runs. `first` and `second` are means over the common attempts; all tasks have equal weight.

    Its repr is one line of text.
    """

    phase: str
    measure: str
    """ "success" or "reward"."""
    tasks: int
    """Number of tasks that both runs have."""
    all_tasks: tuple[int, int]
    """Number of tasks of each run."""
    episodes: int
    first: float
    second: float
    paired: Paired
    """Statistics of the second run minus the first; statistics of kinds are corrected for the number of kinds."""
    unpaired: tuple[int, int]
    """Number of episodes of each run that the other one lacks."""
    other_seeds: int
    """Number of pairs with different seeds; their difference is partly random."""
    envs: tuple[str, str]
    """Name of the environment of each run."""
    kind: str = ""
    """The kind of task that it is about, see `Task.kind`; "" is all tasks."""

    def __repr__(self) -> str:
        pairs, change = self.paired, self.paired.difference
        name = " ".join(filter(None, (self.phase, self.measure, self.kind and f"of {self.kind}")))
        return (
            f"{name}: {self.first:.3f} to {self.second:.3f}, difference {change.value:+.3f} [{change.low:+.3f}, "
            f"{change.high:+.3f}], {pairs.wins} tasks better, {pairs.losses} worse, {pairs.ties} the same, "
            f"p = {pairs.p_value:.4f}"
        )

    def notes(self) -> Iterator[str]:
        """Yield what is not alike in the two runs, in sentences."""
        if self.tasks < max(self.all_tasks):
            yield f"{self.tasks} tasks are shared, of {self.all_tasks[0]} and {self.all_tasks[1]}"
        if self.envs[0] != self.envs[1]:
            yield f"the environments are {self.envs[0]} and {self.envs[1]}"
        if any(self.unpaired):
            yield f"{self.unpaired[0]} and {self.unpaired[1]} episodes have no counterpart"
        if self.other_seeds:
            yield f"{self.other_seeds} pairs have different seeds"


Key = tuple[str, str]
"""Task id and episode id: attempts of two runs with the same key are a pair."""


class Result(NamedTuple):
    """What a comparison needs of an attempt, see `Outcome.is_attempt`."""

    task: str
    id: str
    env: str
    kind: str
    seed: int | str
    success: float
    reward: float | None
    """None for a time-out, whose success is compared alone."""
    digest: str
    """Of the task: equal tasks have equal ones."""


Results = Mapping[Key, Result]
_MEASURES: dict[str, Callable[[Result], float]] = {
    "success": lambda result: result.success,
    "reward": lambda result: result.reward or 0.0,
}


def compare(first: Path, second: Path) -> list[Comparison]:
    """Compare the success and the reward of two runs, phase by phase.

    Raises:
        UserError: when they have no attempt in common, or different tasks with the same id.
    """
    first_files, second_files = episode_files(first), episode_files(second)
    comparisons = []
    for phase in first_files.keys() & second_files.keys():
        a, b = _read(first_files[phase]), _read(second_files[phase])
        if a.keys() & b.keys():
            comparisons += compare_results((str(first), a), (str(second), b), phase=phase)
    if not comparisons:
        raise nothing_common(str(first), str(second))
    return sorted(comparisons, key=lambda c: (c.phase, bool(c.kind), c.measure != "success"))


def compare_results(
    first: tuple[str, Results], second: tuple[str, Results], *, phase: str = "", measures: Iterable[str] = _MEASURES
) -> list[Comparison]:
    """Compare what two runs measured, of all tasks and then of each kind of task.

    Raises:
        UserError: when they have no attempt in common, or different tasks with the same id.
    """
    _check_tasks(first, second)
    comparisons = []
    for measure in measures:
        a, b = (
            {k: r for k, r in results.items() if measure == "success" or r.reward is not None}
            for _, results in (first, second)
        )
        if a.keys() & b.keys():
            comparisons += [*_compare(phase, [("", a, b)], measure), *_compare(phase, _by_kind(a, b), measure)]
    return comparisons


def compare_all_success(runs: Sequence[tuple[Path, Path]], warn: Callable[[str], None]) -> list[Comparison | None]:
    """Compare the success of pairs of evaluations, with verdicts that hold for all of the pairs together.

    Returns:
        One for each pair; None for one that cannot be compared, and `warn` is told why.
    """
    read = functools.cache(lambda path: _read(path / EPISODES))
    pairs: dict[int, tuple[str, Results, Results]] = {}
    for number, (first, second) in enumerate(runs):
        a, b = read(first), read(second)
        try:
            _check_tasks((str(first), a), (str(second), b))
        except UserError as error:
            warn(str(error))
        else:
            pairs[number] = ("", a, b)
    by_pair = dict(zip(pairs, _compare("", [*pairs.values()], "success"), strict=True))
    return [by_pair.get(number) for number in range(len(runs))]


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _by_kind(a: Results, b: Results) -> list[tuple[str, Results, Results]]:
    """The results of each of several environments, and of each kind of task, that both runs have."""
    several = all(len({result.env for result in run.values()}) > 1 for run in (a, b))
    tasks: dict[str, dict[str, Result]] = defaultdict(dict)
    for result in (*a.values(), *b.values()):
        tasks[result.env if several else ""][result.task] = result
    kinds = Kinds.of({env: of_env.values() for env, of_env in tasks.items()})
    of_kinds: dict[str, tuple[dict[Key, Result], dict[Key, Result]]] = {name: ({}, {}) for name in kinds.order}
    for number, run in enumerate((a, b)):
        for key, result in run.items():
            for name in of_kinds.keys() & kinds.names_of(result.env, result):
                of_kinds[name][number][key] = result
    return [(name, *both) for name, both in of_kinds.items() if both[0].keys() & both[1].keys()]


def _read(file: Path) -> dict[Key, Result]:
    return {
        (e.task.id, e.id): Result(
            e.task.id, e.id, e.env, e.task.kind, e.seed, is_success(e), e.reward, value_digest(e.task)
        )
        for e in read_jsonl(file)
        if e.outcome.is_attempt
    }


def _compare(phase: str, family: Sequence[tuple[str, Results, Results]], measure: str) -> list[Comparison]:
    """Compare the results of each member of a family, named by its kind, with verdicts that hold for all of them."""
    family_pairs = [_pairs(a, b, _MEASURES[measure]) for _, a, b in family]
    return [
        Comparison(
            phase=phase,
            measure=measure,
            kind=kind,
            tasks=len(pairs.first),
            all_tasks=(len({task for task, _ in a}), len({task for task, _ in b})),
            episodes=len(common := a.keys() & b.keys()),
            first=clustered_mean(pairs.second).value,
            second=clustered_mean(pairs.first).value,
            paired=statistics,
            unpaired=(len(a) - len(common), len(b) - len(common)),
            other_seeds=sum(a[key].seed != b[key].seed for key in common),
            envs=(_env(a), _env(b)),
        )
        for (kind, a, b), pairs, statistics in zip(family, family_pairs, compare_all(family_pairs), strict=True)
    ]


def _pairs(a: Results, b: Results, value: Callable[[Result], float]) -> Pairs:
    """The values of the second run and those of the first, by task, of the attempts that both have."""
    tasks: dict[str, list[Key]] = defaultdict(list)
    for key in sorted(a.keys() & b.keys()):
        tasks[key[0]].append(key)
    x, y = ([fmean(value(run[k]) for k in keys) for keys in tasks.values()] for run in (a, b))
    common = sum(map(len, tasks.values()))
    return Pairs.of(y, x, (common, common))


def nothing_common(first: str, second: str) -> UserError:
    return UserError(f"{first} and {second} have no attempt at a task in common: compare runs of the same tasks")


def _check_tasks(first: tuple[str, Results], second: tuple[str, Results]) -> None:
    (first_name, a), (second_name, b) = first, second
    shared = {key[0]: key for key in sorted(a.keys() & b.keys(), reverse=True)}
    if not shared:
        raise nothing_common(first_name, second_name)
    different = [task for task, key in shared.items() if a[key].digest != b[key].digest]
    if different:
        key = shared[min(different)]
        raise UserError(
            f"{len(different)} of the {len(shared)} tasks with the same id in {first_name} and {second_name} are "
            f"different, as {key[0]!r:.80} of {a[key].env or 'one'} and of {b[key].env or 'the other'}: "
            "compare runs of the same tasks"
        )


def _env(results: Results) -> str:
    return next((result.env for result in results.values()), "")
