"""Which runs a folder holds, and which files of a run the viewer reads."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forge_env.core.errors import UserError

Kind = Literal["training", "evaluation", "file"]
FileKind = Literal["episodes", "faults", "trained"]
MOST_RUNS = 1000
SMALL = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A file of lines that the index follows. Example: ``RunFile(path=Path("outputs/x/episodes/train.jsonl"),
    phase="train", kind="episodes")``"""

    path: Path
    phase: str
    kind: FileKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A folder that a training run or an evaluation has left, or a file of episodes."""

    path: Path
    name: str
    kind: Kind

    def files(self) -> list[RunFile]:
        """The files of lines that are there now."""
        if self.kind == "file":
            return [RunFile(path=self.path, phase="episodes", kind="episodes")]
        found = [RunFile(path=path, phase=path.stem, kind="episodes") for path in _listed(self.path / "episodes")]
        fixed: list[tuple[str, str, FileKind]] = [
            ("episodes.jsonl", "episodes", "episodes"),
            ("faults.jsonl", "faults", "faults"),
            ("trained.jsonl", "trained", "trained"),
        ]
        found += [
            RunFile(path=self.path / name, phase=phase, kind=kind)
            for name, phase, kind in fixed
            if (self.path / name).is_file()
        ]
        return found

    def read_json(self, name: str) -> dict[str, Any]:
        """A small file of JSON beside the episodes; empty where there is none that can be read."""
        try:
            data = json.loads(self.read_text(name) or "{}")
        except (ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}

    def read_text(self, name: str) -> str:
        """A small file of text beside the episodes; empty where there is none that can be read."""
        if self.kind == "file":
            return ""
        try:
            if (self.path / name).stat().st_size > SMALL:
                return ""
            return (self.path / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def find_runs(place: Path) -> list[Run]:
    """Return the run at a place, or those in the folder there, two levels deep.

    Raises:
        UserError: when there is none.
    """
    place = place.expanduser()
    if place.is_file():
        return [Run(path=place, name=place.name, kind="file")]
    if not place.is_dir():
        raise UserError(f"there is no {place}: name the folder of a run, a folder of runs, or a .jsonl file")
    kind = _kind(place)
    if kind:
        return [Run(path=place, name=place.resolve().name, kind=kind)]
    runs = [
        Run(path=folder, name=str(folder.relative_to(place)), kind=found)
        for folder in [*_folders(place), *(inner for outer in _folders(place) for inner in _folders(outer))]
        if (found := _kind(folder))
    ]
    if not runs:
        raise UserError(f"{place} holds no run: name the folder of a training run or an evaluation, or a .jsonl file")
    return sorted(runs, key=lambda run: run.name)[:MOST_RUNS]


def _kind(folder: Path) -> Literal["training", "evaluation"] | None:
    if (folder / "episodes.jsonl").is_file() or (folder / "plan.json").is_file():
        return "evaluation"
    if any((folder / name).is_file() for name in ("run.json", "metrics.jsonl")) or _listed(folder / "episodes"):
        return "training"
    return None


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(Path(e.path) for e in os.scandir(folder) if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return []


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(Path(e.path) for e in os.scandir(folder) if e.name.endswith(".jsonl") and e.is_file())
    except OSError:
        return []
