"""The pass rates of tasks: `forge-env profile` writes them beside an evaluation, and a training run reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from forge_env.core.episode import read_jsonl
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.evaluation.evaluate import is_success
from forge_env.evaluation.folder import RESULT, read_faults
from forge_env.records.run_files import EPISODES, FAULTS, read_object
from forge_env.utils.atomic import replace_file

FILE = "profile.json"
FACTS = ("env", "options", "agent", "adapter", "split", "seed", "n")
"""What profile.json says of its evaluation, beside the tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How often an agent solved each of some tasks. A fault is not an attempt; a time-out is one without success."""

    facts: Mapping[str, Any]
    tasks: Mapping[str, Mapping[str, Any]]
    """By id: the digest of the task's content; the attempts, those that solved it, and those that faults ended."""

    @classmethod
    def read(cls, folder: str) -> Profile:
        file = Path(folder) / FILE
        content = read_object(file) if file.is_file() else {}
        if not content.get("tasks"):
            raise UserError(
                f"--dataset.pass_rate is {folder}, and {FILE} is missing there, or has no tasks: give the folder of a "
                "complete forge-env profile"
            )
        return cls(facts={name: content.get(name) for name in FACTS}, tasks=content["tasks"])

    def others(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks that it has no rate of: it lacks their id, or has it with another content."""
        return [task for task in tasks if self.tasks.get(task.id, {}).get("digest") != digest_of(task)]

    def rate(self, task: Task) -> float | None:
        """The share of the attempts at a task that solved it; None if faults ended all."""
        of_task = self.tasks[task.id]
        return of_task["solved"] / of_task["attempts"] if of_task["attempts"] else None

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks were never, now and then, and always solved, and how many have no rate."""
        counts = dict.fromkeys(("never solved", "mixed", "always solved", "without a rate"), 0)
        for of_task in self.tasks.values():
            successes, attempts = of_task["solved"], of_task["attempts"]
            name = "always solved" if successes == attempts else "mixed" if successes else "never solved"
            counts[name if attempts else "without a rate"] += 1
        return counts


def rates_of(folder: str) -> dict[str, tuple[int, int]]:
    """The attempts that solved a task, and all attempts at it, by its id; {} without a folder."""
    tasks = Profile.read(folder).tasks if folder else {}
    return {name: (of_task["solved"], of_task["attempts"]) for name, of_task in tasks.items()}


def write_profile(folder: Path) -> Profile:
    result, tasks = read_object(folder / RESULT), dict[str, dict[str, Any]]()
    faults = read_faults(folder / FAULTS) if (folder / FAULTS).exists() else ()
    episodes = read_jsonl(folder / EPISODES) if (folder / EPISODES).exists() else ()
    for episode in chain(episodes, faults):
        new = {"digest": digest_of(episode.task), "attempts": 0, "solved": 0, "faults": 0}
        of_task = tasks.setdefault(episode.task.id, new)
        of_task["attempts"] += episode.outcome.is_attempt
        of_task["solved"] += episode.outcome.is_attempt and is_success(episode)
    for of_task in tasks.values():  # not the faults that were tried again
        of_task["faults"] = max(0, result["n"] - of_task["attempts"])
    profile = Profile(facts={name: result[name] for name in FACTS}, tasks=tasks)
    content = {**profile.facts, "counts": profile.counts, "tasks": tasks}
    replace_file(folder / FILE, json.dumps(content, indent=1) + "\n")
    return profile


def digest_of(task: Task) -> str:
    """The digest of a task's content, whatever id it has."""
    return replace(task, id="").id
