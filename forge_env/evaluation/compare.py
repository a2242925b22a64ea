"""Compares two runs on the attempts that both have at the same tasks."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from forge_env.core.episode import Episode, read_jsonl
from forge_env.core.errors import UserError
from forge_env.core.types import Task
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
"""Task id and episode id of an attempt."""
_MEASURES: dict[str, Callable[[Episode], float]] = {
    "success": is_success,
    "reward": lambda episode: episode.reward or 0.0,
}


def compare(first: Path, second: Path) -> list[Comparison]:
    """Compare the success and the reward of two runs, phase by phase.

    Raises:
        UserError: when they have no attempt in common, or different tasks with the same id.
    """
    first_files, second_files = episode_files(first), episode_files(second)
    comparisons = []
    for phase in first_files.keys() & second_files.keys():
        a, b = _by_key(read_jsonl(first_files[phase])), _by_key(read_jsonl(second_files[phase]))
        if a.keys() & b.keys():
            _check_tasks(first, second, a, b)
            for measure, value in _MEASURES.items():
                a, b = (run if measure == "success" else _with_reward(run) for run in (a, b))
                if a.keys() & b.keys():
                    comparisons += [_compare(phase, a, b, measure, value), *_by_kind(phase, a, b, measure, value)]
    if not comparisons:
        raise UserError(f"{first} and {second} have no attempt at a task in common: compare runs of the same tasks")
    return sorted(comparisons, key=lambda c: (c.phase, bool(c.kind), c.measure != "success"))


def compare_all_success(runs: Sequence[tuple[Path, Path]], warn: Callable[[str], None]) -> list[Comparison | None]:
    """Compare the success of pairs of evaluations, with verdicts that hold for all of the pairs together.

    Returns:
        One for each pair; None for one that cannot be compared, and `warn` is told why.
    """
    read = functools.cache(lambda path: _by_key(read_jsonl(path / EPISODES)))
    compared: dict[int, tuple[Comparison, Pairs]] = {}
    for number, (first, second) in enumerate(runs):
        a, b = read(first), read(second)
        try:
            _check_tasks(first, second, a, b)
            if not a.keys() & b.keys():
                raise UserError(f"{first} and {second} have no attempt at a task in common")
        except UserError as error:
            warn(str(error))
        else:
            compared[number] = (_compare("", a, b, "success", is_success), _pairs(a, b, is_success))
    corrected = compare_all([pairs for _, pairs in compared.values()])
    found = {n: replace(one, paired=p) for (n, (one, _)), p in zip(compared.items(), corrected, strict=True)}
    return [found.get(number) for number in range(len(runs))]


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _by_kind(
    phase: str, a: dict[Key, Episode], b: dict[Key, Episode], measure: str, value: Callable[[Episode], float]
) -> list[Comparison]:
    """Compare each of several environments, and each kind of task, that both runs have."""
    several = all(len({episode.env for episode in run.values()}) > 1 for run in (a, b))
    tasks: dict[str, dict[str, Task]] = defaultdict(dict)
    for key, episode in [*a.items(), *b.items()]:
        tasks[episode.env if several else ""][key[0]] = episode.task
    kinds = Kinds.of({env: of_env.values() for env, of_env in tasks.items()})
    found: list[tuple[Comparison, Pairs]] = []
    for name in kinds.order:
        a_of_kind, b_of_kind = (
            {key: e for key, e in run.items() if name in kinds.names_of(e.env, e.task)} for run in (a, b)
        )
        if a_of_kind.keys() & b_of_kind.keys():
            of_kind = replace(_compare(phase, a_of_kind, b_of_kind, measure, value), kind=name)
            found.append((of_kind, _pairs(a_of_kind, b_of_kind, value)))
    corrected = compare_all([pairs for _, pairs in found])
    return [replace(of_kind, paired=paired) for (of_kind, _), paired in zip(found, corrected, strict=True)]


def _by_key(episodes: Iterable[Episode]) -> dict[Key, Episode]:
    attempts = (e for e in episodes if e.outcome.is_attempt)
    return {(e.task.id, e.id): replace(e, turns=(), lineage=()) for e in attempts}  # turns hold most of the memory


def _with_reward(episodes: dict[Key, Episode]) -> dict[Key, Episode]:
    return {key: episode for key, episode in episodes.items() if episode.outcome.is_valid}


def _compare(
    phase: str, a: dict[Key, Episode], b: dict[Key, Episode], measure: str, value: Callable[[Episode], float]
) -> Comparison:
    pairs, common = _pairs(a, b, value), a.keys() & b.keys()
    return Comparison(
        phase=phase,
        measure=measure,
        tasks=len(pairs.first),
        all_tasks=(len({task for task, _ in a}), len({task for task, _ in b})),
        episodes=len(common),
        first=clustered_mean(pairs.second).value,
        second=clustered_mean(pairs.first).value,
        paired=compare_all([pairs])[0],
        unpaired=(len(a) - len(common), len(b) - len(common)),
        other_seeds=sum(a[key].seed != b[key].seed for key in common),
        envs=(_env(a), _env(b)),
    )


def _pairs(a: dict[Key, Episode], b: dict[Key, Episode], value: Callable[[Episode], float]) -> Pairs:
    """The values of the second run and those of the first, by task, of the attempts that both have."""
    tasks: dict[str, list[Key]] = defaultdict(list)
    for key in sorted(a.keys() & b.keys()):
        tasks[key[0]].append(key)
    x, y = ([fmean(value(run[k]) for k in keys) for keys in tasks.values()] for run in (a, b))
    common = sum(map(len, tasks.values()))
    return Pairs.of(y, x, (common, common))


def _check_tasks(first: Path, second: Path, a: dict[Key, Episode], b: dict[Key, Episode]) -> None:
    shared = {key[0]: key for key in sorted(a.keys() & b.keys(), reverse=True)}
    different = [task for task, key in shared.items() if value_digest(a[key].task) != value_digest(b[key].task)]
    if different:
        key = shared[min(different)]
        raise UserError(
            f"{len(different)} of the {len(shared)} tasks with the same id in {first} and {second} are different, "
            f"as {key[0]!r:.80} of {a[key].env or 'one'} and of {b[key].env or 'the other'}: "
            "compare runs of the same tasks"
        )


def _env(episodes: dict[Key, Episode]) -> str:
    return next((episode.env for episode in episodes.values()), "")
