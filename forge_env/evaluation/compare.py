"""Compares two runs on what both of them did: the same attempts at the same tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from forge_env.core.episode import Episode, read_jsonl
from forge_env.core.errors import UserError
from forge_env.evaluation.evaluate import is_success
from forge_env.records.run_files import episode_files
from forge_env.utils.digests import value_digest
from forge_env.utils.statistics import Paired, clustered_mean, paired


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One phase of two runs. `first` and `second` are means over the common attempts, each task with one weight."""

    phase: str
    measure: str
    """ "success" or "reward"."""
    tasks: int
    """That both have."""
    all_tasks: tuple[int, int]
    """Of each run."""
    episodes: int
    first: float
    second: float
    paired: Paired
    """Of the second run minus the first."""
    unpaired: tuple[int, int]
    """Episodes of each run that the other one lacks."""
    other_seeds: int
    """Pairs whose seeds differ, so that chance does not fall out of the difference."""
    envs: tuple[str, str]
    """The environment of each run, by its name."""


Key = tuple[str, str]


def compare(first: Path, second: Path) -> list[Comparison]:
    """Compare the success and the reward of two runs, phase by phase.

    Raises:
        UserError: when they have nothing in common, or tasks of the same id that differ.
    """
    files, others = episode_files(first), episode_files(second)
    found = []
    for phase in files.keys() & others.keys():
        a, b = _by_key(read_jsonl(files[phase])), _by_key(read_jsonl(others[phase]))
        if a.keys() & b.keys():
            _check_tasks(first, second, a, b)
            found.append(_compare(phase, a, b, "success", lambda episode: float(is_success(episode))))
            a, b = _with_reward(a), _with_reward(b)
        if a.keys() & b.keys():
            found.append(_compare(phase, a, b, "reward", lambda episode: episode.reward or 0.0))
    if not found:
        raise UserError(f"{first} and {second} have no attempt at a task in common: compare runs of the same tasks")
    return sorted(found, key=lambda c: (c.phase, c.measure != "success"))


def _by_key(episodes: Iterable[Episode]) -> dict[Key, Episode]:
    return {(e.task.id, e.id): e for e in episodes if e.outcome.is_attempt}


def _with_reward(episodes: dict[Key, Episode]) -> dict[Key, Episode]:
    return {key: episode for key, episode in episodes.items() if episode.outcome.is_valid}


def _compare(
    phase: str, a: dict[Key, Episode], b: dict[Key, Episode], name: str, value: Callable[[Episode], float]
) -> Comparison:
    tasks: dict[str, list[Key]] = defaultdict(list)
    for key in sorted(a.keys() & b.keys()):
        tasks[key[0]].append(key)
    x, y = ([sum(value(run[k]) for k in keys) / len(keys) for keys in tasks.values()] for run in (a, b))
    common = a.keys() & b.keys()
    return Comparison(
        phase=phase,
        measure=name,
        tasks=len(tasks),
        all_tasks=(len({task for task, _ in a}), len({task for task, _ in b})),
        episodes=len(common),
        first=clustered_mean(x).value,
        second=clustered_mean(y).value,
        paired=paired(y, x),
        unpaired=(len(a) - len(common), len(b) - len(common)),
        other_seeds=sum(a[key].seed != b[key].seed for key in common),
        envs=(_env(a), _env(b)),
    )


def _check_tasks(first: Path, second: Path, a: dict[Key, Episode], b: dict[Key, Episode]) -> None:
    """Check that tasks of the same id are the same: what they ask, their target and their metadata."""
    shared = {key[0]: key for key in sorted(a.keys() & b.keys(), reverse=True)}
    other = [task for task, key in shared.items() if value_digest(a[key].task) != value_digest(b[key].task)]
    if other:
        key = shared[min(other)]
        raise UserError(
            f"{len(other)} of the {len(shared)} tasks that {first} and {second} have by the same id are different, "
            f"as {key[0]!r:.80} of {a[key].env or 'one'} and of {b[key].env or 'the other'}: "
            "compare runs of the same tasks"
        )


def _env(episodes: dict[Key, Episode]) -> str:
    return next((episode.env for episode in episodes.values()), "")
