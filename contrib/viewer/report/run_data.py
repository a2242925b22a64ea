"""Reads the folder of a training run for its figures. A killed run may have left half of a line in any file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from contrib.viewer.lenient_json import json_lines
from contrib.viewer.stored_runs import StoredRun
from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.reward_value import are_same
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.kinds import Kinds
from forge_env.evaluation.metrics import MAX_PARTS, ToolFigures, tool_figures

MAX_BYTES = 32 * 2**20
"""Of a longer file of episodes only the end is read, so that the figures of a long run take seconds too."""
_EVALUATIONS = re.compile(r"(before|tool_off|after|evaluation_\d+)(\.[\w.]+)?")
_PART = r"reward/.+/mean"

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunData:
    facts: Values
    """run.json; {} if it is missing."""
    summary: Values | None
    """summary.json; None for a run that is not complete."""
    phases: Mapping[str, Sequence[Values]]
    """The records of metrics.jsonl by phase, one for each step."""
    console: Sequence[Values]
    """The lines of console.jsonl: "time", "kind" and "text"."""
    evaluations: Mapping[str, Evaluation]
    """By the name of the file: "before", "tool_off", "evaluation_20", "after"; further ones "before.greedy" or
    "after.NAME"."""
    training_episodes: Sequence[Episode]
    """Episodes of the training; the last ones of a long run."""
    has_all_trained: bool
    """Whether `training_episodes` holds all episodes of the training."""
    actions: Sequence[Values] = ()
    """The lines of actions.jsonl, see contrib/live."""

    @property
    def is_complete(self) -> bool:
        return self.summary is not None

    @property
    def title(self) -> str:
        return f"{self.fact('algorithm') or 'training'} on {self.fact('env') or 'data'}"

    @property
    def why_incomplete(self) -> str:
        if self.is_complete:
            return ""
        last = self.console[-1] if self.console else {}
        return str(last.get("text")) if last.get("kind") == "error" else "it was killed, or is still running"

    def fact(self, name: str) -> Any:
        """A value of summary.json, or else of run.json; None if neither has it."""
        return (self.summary or {}).get(name, self.facts.get(name))

    def number(self, name: str) -> float | None:
        """The same, as a number; None if it has another type."""
        value = self.fact(name)
        return value if is_number(value) else None

    def series(self, phase: str, name: str) -> list[tuple[float, float]]:
        return [
            (record["step"], float(record[name]))
            for record in self.phases.get(phase, ())
            if is_number(record.get(name))
        ]

    def metric_names(self, phase: str, pattern: str) -> list[str]:
        """The metrics of a phase with names that match, in the order in which they appear."""
        names = dict.fromkeys(name for record in self.phases.get(phase, ()) for name in record)
        return [name for name in names if re.fullmatch(pattern, name)]

    @property
    def reward_parts(self) -> list[str]:
        """The parts of the reward that have metrics; [] for a single one that is the reward itself."""
        names = [*self.metric_names("train", _PART), *self.metric_names("evaluation", _PART)]
        parts = list(dict.fromkeys(name[len("reward/") : -len("/mean")] for name in names))
        is_reward = len(parts) == 1 and all(
            are_same([value, reward])
            for phase in ("train", "evaluation")
            for (_, value), (_, reward) in zip(self.series(phase, names[0]), self.series(phase, "reward"), strict=False)
        )
        return [] if is_reward else parts[:MAX_PARTS]

    @property
    def kinds(self) -> Kinds:
        """The kinds of task that have metrics of their own; none where the run's tasks have no kinds."""
        kind_facts = self.facts.get("kinds")
        if not isinstance(kind_facts, dict):
            return Kinds()
        names, environments = (tuple(map(str, kind_facts.get(name) or ())) for name in ("names", "environments"))
        left_out = kind_facts.get("left_out")
        return Kinds(names=names, left_out=int(left_out) if is_number(left_out) else 0, environments=environments)

    def tools(self) -> dict[str, ToolFigures]:
        """The tool calls of the training, or of the evaluations if there was no training."""
        return tool_figures(self.training_episodes or self.evaluation_episodes)

    @property
    def evaluation_episodes(self) -> list[Episode]:
        return [episode for evaluation in self.evaluations.values() for episode in evaluation.episodes]


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_training(folder: Path) -> None:
    if not (folder / "metrics.jsonl").is_file():
        raise UserError(f"{folder} is not the folder of a training run: it has no metrics.jsonl")


def read_run(folder: Path) -> RunData:
    check_training(folder)
    files = {path.stem: path for path in (folder / "episodes").glob("*.jsonl")}
    evaluations = sorted(name for name in files if _EVALUATIONS.fullmatch(name))
    episodes, has_all_trained = _read_episodes(files["train"]) if "train" in files else ([], True)
    stored_run = StoredRun(path=folder, name=folder.name, kind="training")
    return RunData(
        facts=stored_run.read_json("run.json"),
        summary=stored_run.read_json("summary.json") or None,
        phases=_read_phases(folder / "metrics.jsonl"),
        actions=[line for line in _read_json_lines(folder / "actions.jsonl") if isinstance(line.get("text"), str)],
        console=[line for line in _read_json_lines(folder / "console.jsonl") if isinstance(line.get("text"), str)],
        evaluations={name: Evaluation(episodes=tuple(_read_episodes(files[name])[0])) for name in evaluations},
        training_episodes=episodes,
        has_all_trained=has_all_trained,
    )


def _read_phases(path: Path) -> dict[str, list[Values]]:
    """The records of each phase in the order of their steps; of several records of one step, the last."""
    phases: dict[str, dict[float, Values]] = {}
    for record in _read_json_lines(path):
        if is_number(record.get("step")) and isinstance(record.get("phase"), str):
            phases.setdefault(record["phase"], {})[record["step"]] = record
    return {phase: [by_step[step] for step in sorted(by_step)] for phase, by_step in phases.items()}


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    return json_lines(path.read_bytes()) if path.is_file() else []


def _read_episodes(path: Path) -> tuple[list[Episode], bool]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size > MAX_BYTES:
            file.seek(size - MAX_BYTES)
            file.readline()
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    episodes = []
    for line in lines:
        try:
            episodes.append(Episode.from_json(line))
        except ForgeError:
            continue
    return episodes, size <= MAX_BYTES
