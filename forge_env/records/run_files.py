"""Files of a run: an evaluation, a training run with its phases, or a single file of JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits
from forge_env.utils.yaml_text import read_yaml_file

if TYPE_CHECKING:
    from forge_env.core.episode import Episode

PLAN, EPISODES, FAULTS = "plan.json", "episodes.jsonl", "faults.jsonl"
"""Files of an evaluation."""
CONFIG, FACTS = "config.yaml", "run.json"
"""The settings of a training run, and what else it records when it begins."""
SUMMARY = "summary.json"
"""Of a training run that is complete."""
MANIFEST = "forge_env.json"
ENVIRONMENT = "environment.pkl"
"""The environment of a training run, if that is a class that no other process can import."""
IMPORTED = "imported"
"""Key of an Episode's info: what an import keeps of its log, {"from": ..., "tools": [...], "model": ...}."""
_CHECKPOINT = re.compile(r"step_(\d{6,})")


def episode_files(run: Path) -> dict[str, Path]:
    """Return the files of episodes by phase; an evaluation and a single file have one phase, named ""."""
    run = run.expanduser()
    if run.is_file():
        return {"": run}
    if (run / EPISODES).is_file():
        return {"": run / EPISODES}
    files = {path.stem: path for path in sorted((run / "episodes").glob("*.jsonl"))}
    if not files:
        allowed = "a .jsonl file, or the folder of an evaluation or of a training run"
        raise UserError(f"{run} holds no episodes: give {allowed}")
    return files


def steps_of(run: Path) -> dict[int, Path]:
    """The folders of a run's complete checkpoints by their steps, the oldest first."""
    paths = [path for path in (run / "checkpoints").glob("*") if path.is_dir()]
    return dict(sorted((step, path) for path in paths if (step := step_of(path)) is not None))


def step_of(checkpoint: Path) -> int | None:
    match = _CHECKPOINT.fullmatch(checkpoint.name)
    return int(match[1]) if match else None


def metrics_of(run: Path, phase: str) -> list[dict[str, float]]:
    """The recorded metrics of a phase of a training run, in order; a half-written last line is ignored."""
    file = run / "metrics.jsonl"
    try:
        whole = file.read_text(encoding="utf-8").rpartition("\n")[0] if file.is_file() else ""
        return [record for record in map(json.loads, whole.splitlines()) if record["phase"] == phase]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is damaged, and cannot be read: {error!r}") from None


def trained_config(run: Path, section: str = "env") -> dict[str, Any] | None:
    """Return a section of the config of a training run, or of a checkpoint's; None if there is none."""
    run = run.absolute().parent.parent if (run / MANIFEST).is_file() else run
    content = read_yaml_file(run / CONFIG) if (run / CONFIG).is_file() else None
    values = content.get(section) if isinstance(content, dict) else None
    return values if isinstance(values, dict) else None  # otherwise it is another program's file


def env_here(name: Any, run: Path) -> Any:
    """The name of a run's environment, whose file may have been moved or copied with the folder of the run."""
    file, _, class_name = str(name).rpartition(":")
    own = run.absolute() / ENVIRONMENT
    return f"{own}:{class_name}" if Path(file).name == ENVIRONMENT and own.is_file() else name


def limits_from(settings: Mapping[str, Any]) -> EpisodeLimits:
    """Return the limits in saved settings, with defaults for missing ones."""
    return EpisodeLimits(**{f.name: settings[f.name] for f in fields(EpisodeLimits) if f.name in settings})


def read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no JSON object")
    return content


def imported_facts(episode: Episode) -> Mapping[str, Any]:
    """Return what an import has kept of the log of an episode; nothing for any other episode."""
    facts = episode.info.get(IMPORTED)
    return facts if isinstance(facts, Mapping) else {}
