"""The runs in a folder, and the files of each run that the viewer reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from forge_env.core.errors import UserError
from forge_env.records.run_files import CONFIG, EPISODES, FAULTS, PLAN
from forge_env.utils.yaml_text import read_yaml

RunKind = Literal["training", "evaluation", "file"]
FileKind = Literal["episodes", "faults", "trained"]
MAX_RUNS = 1000
NO_SETTINGS = ("version", "depends_on", "task_digest", "extended_from")
"""What a plan records besides settings."""
MAX_DOCUMENT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A file of JSON lines that the index follows."""

    path: Path
    phase: str
    kind: FileKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """The folder of a training run or of an evaluation, or a file of episodes."""

    path: Path
    name: str
    kind: RunKind

    def files(self) -> list[RunFile]:
        if self.kind == "file":
            return [RunFile(path=self.path, phase="episodes", kind="episodes")]
        files = [RunFile(path=path, phase=path.stem, kind="episodes") for path in _json_lines(self.path / "episodes")]
        kinds: dict[str, FileKind] = {EPISODES: "episodes", FAULTS: "faults", "trained.jsonl": "trained"}
        here = [(self.path / name, kind) for name, kind in kinds.items() if (self.path / name).is_file()]
        return [*files, *(RunFile(path=path, phase=kind, kind=kind) for path, kind in here)]

    def read_json(self, name: str) -> dict[str, Any]:
        """A small JSON document of the run; {} if it is missing or unreadable."""
        try:
            data = json.loads(self.read_text(name) or "{}")
        except (ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}

    def settings(self) -> dict[str, str]:
        """The settings of the run by their names, such as "env.max_turns"; {} if it records none."""
        if self.kind == "evaluation":
            plan = self.read_json(PLAN)
            return dict(_flat({name: value for name, value in plan.items() if name not in NO_SETTINGS}))
        try:
            import yaml

            return dict(_flat(read_yaml(self.read_text(CONFIG)) or {}))
        except (yaml.YAMLError, ValueError, RecursionError):
            return {}

    def read_text(self, name: str) -> str:
        """A small text document of the run; "" if it is missing or unreadable."""
        if self.kind == "file":
            return ""
        try:
            if (self.path / name).stat().st_size > MAX_DOCUMENT_BYTES:
                return ""
            return (self.path / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values in nested settings as texts, each with its names joined by points."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, default=str)


def find_runs(*paths: Path) -> list[StoredRun]:
    """Return the runs at some paths, each a run or a folder of runs, two levels deep.

    Those of several paths are named by their place in the innermost folder that holds all of them.
    """
    if len(paths) == 1:
        return _runs_at(paths[0].expanduser())
    runs = {run.path.absolute(): run for path in paths for run in _runs_at(path.expanduser())}
    folder = os.path.commonpath([path.parent for path in runs])
    return [replace(run, name=str(path.relative_to(folder))) for path, run in runs.items()][:MAX_RUNS]


def _runs_at(path: Path) -> list[StoredRun]:
    wanted = "name the folder of a run, a folder of runs, or a .jsonl file"
    if path.is_file():
        if path.suffix != ".jsonl":
            raise UserError(f"{path} is no .jsonl file: {wanted}")
        return [StoredRun(path=path, name=path.name, kind="file")]
    if not path.is_dir():
        raise UserError(f"there is no {path}: {wanted}")
    if kind := _run_kind(path):
        return [StoredRun(path=path, name=path.resolve().name, kind=kind)]
    folders = _subfolders(path)
    folders += [inner for outer in folders for inner in _subfolders(outer)]
    runs = [
        StoredRun(path=folder, name=str(folder.relative_to(path)), kind=kind)
        for folder in folders
        if (kind := _run_kind(folder))
    ]
    if not runs:
        raise UserError(f"{path} holds no run: name the folder of a training run or an evaluation, or a .jsonl file")
    return sorted(runs, key=lambda run: run.name)[:MAX_RUNS]


def _run_kind(folder: Path) -> Literal["training", "evaluation"] | None:
    if (folder / EPISODES).is_file() or (folder / PLAN).is_file():
        return "evaluation"
    if any((folder / name).is_file() for name in ("run.json", "metrics.jsonl")) or _json_lines(folder / "episodes"):
        return "training"
    return None


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(Path(e.path) for e in os.scandir(folder) if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return []


def _json_lines(folder: Path) -> list[Path]:
    try:
        return sorted(Path(e.path) for e in os.scandir(folder) if e.name.endswith(".jsonl") and e.is_file())
    except OSError:
        return []
