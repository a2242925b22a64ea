"""What the folder of a training run says, read with care: a run may have been killed in the middle of a line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError, UserError
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.metrics import ToolFigures, tool_figures

MOST_BYTES = 32 * 2**20
"""Of a file of episodes; of a longer one the end is read, so that the page of a long run takes seconds too."""

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as its folder tells it."""

    folder: Path
    facts: Values
    """run.json: what the run is; {} where it is missing."""
    summary: Values | None
    """summary.json; None for a run that is not complete."""
    config: str
    """config.yaml."""
    phases: Mapping[str, Sequence[Values]]
    """The lines of metrics.jsonl by phase, each step once."""
    said: Sequence[Values]
    """The lines of console.jsonl."""
    evaluations: Mapping[str, Evaluation]
    """By the name of the file: "before", "tool_off", "evaluation_20", "after"; with further figures, "before.greedy" or
    "after.NAME"."""
    trained: Sequence[Episode]
    """Episodes of the training, the last ones of a long run."""
    are_all: bool
    """Whether those are all of them."""

    @property
    def is_complete(self) -> bool:
        return self.summary is not None

    def known(self, name: str) -> Any:
        """A fact of the summary, or else of run.json; None where neither has it."""
        return (self.summary or {}).get(name, self.facts.get(name))

    def series(self, phase: str, name: str) -> list[tuple[float, float]]:
        """A metric over its steps, where it is a number."""
        return [
            (record["step"], float(record[name]))
            for record in self.phases.get(phase, ())
            if isinstance(record.get(name), int | float)
        ]

    def names(self, phase: str, pattern: str) -> list[str]:
        """The metrics of a phase whose names match, in the order in which they appear."""
        names = dict.fromkeys(name for record in self.phases.get(phase, ()) for name in record)
        return [name for name in names if re.fullmatch(pattern, name)]

    def tools(self) -> dict[str, ToolFigures]:
        """What the tools did in training, and in the evaluations of a run without any."""
        return tool_figures(self.trained or [e for each in self.evaluations.values() for e in each.episodes])

    def outcomes(self) -> Counter[str]:
        """How the episodes of the training ended."""
        return Counter(episode.outcome.value for episode in self.trained)

    def errors(self) -> dict[str, Counter[str]]:
        """What episodes without a reward say, by their outcome."""
        found: dict[str, Counter[str]] = {}
        for episode in (*self.trained, *(e for each in self.evaluations.values() for e in each.episodes)):
            if not episode.outcome.is_valid:
                found.setdefault(episode.outcome.value, Counter())[episode.error] += 1
        return found


def read_run(folder: Path) -> RunRecord:
    """Read the folder of a training run.

    Raises:
        UserError: when it is none.
    """
    if not (folder / "metrics.jsonl").is_file():
        raise UserError(f"{folder} is not the folder of a training run: it has no metrics.jsonl")
    files = {path.stem: path for path in (folder / "episodes").glob("*.jsonl")}
    measured = [name for name in files if re.fullmatch(r"(before|tool_off|after|evaluation_\d+)(\.[\w.]+)?", name)]
    trained, are_all = _read_episodes(files["train"]) if "train" in files else ([], True)
    return RunRecord(
        folder=folder,
        facts=_read_json(folder / "run.json") or {},
        summary=_read_json(folder / "summary.json"),
        config=_read_text(folder / "config.yaml"),
        phases=_phases(folder / "metrics.jsonl"),
        said=[line for line in _read_lines(folder / "console.jsonl") if isinstance(line.get("text"), str)],
        evaluations={name: Evaluation(episodes=tuple(_read_episodes(files[name])[0])) for name in sorted(measured)},
        trained=trained,
        are_all=are_all,
    )


def _phases(path: Path) -> dict[str, list[Values]]:
    """Each step of a phase once, the last one that was written, in the order of the steps."""
    found: dict[str, dict[float, Values]] = {}
    for line in _read_lines(path):
        if isinstance(line.get("step"), int | float) and isinstance(line.get("phase"), str):
            found.setdefault(line["phase"], {})[line["step"]] = line
    return {phase: [steps[step] for step in sorted(steps)] for phase, steps in found.items()}


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(_read_text(path))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in _read_text(path).splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the last one, of a run that was killed
        if isinstance(record, dict):
            found.append(record)
    return found


def _read_episodes(path: Path) -> tuple[list[Episode], bool]:
    """The episodes at the end of a file, and whether they are all of it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size > MOST_BYTES:
            file.seek(size - MOST_BYTES)
            file.readline()
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    found = []
    for line in lines:
        try:
            found.append(Episode.from_json(line))
        except ForgeError:
            continue
    return found, size <= MOST_BYTES
