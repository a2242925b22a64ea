"""The output folder of a new run: whether it is free, and what a run that trained nothing leaves in it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from datetime import datetime
from pathlib import Path

from agents.model_folder import INITIAL
from forge_env.core.errors import UserError
from forge_env.records.run_files import CONFIG, ENVIRONMENT, FACTS, steps_of
from forge_env.registry.contrib import rows
from forge_env.utils.folders import make_folders
from forge_env.utils.secret_values import FILE as SECRETS
from trainers.setup.checks.resume_checks import REFERENCE, REFERENCE_ADAPTER

CONSOLE, METRICS = "console.jsonl", "metrics.jsonl"
_WRITTEN = frozenset(
    {CONSOLE, METRICS, CONFIG, FACTS, SECRETS, INITIAL, REFERENCE, REFERENCE_ADAPTER, ENVIRONMENT}
    | {"episodes", "logs", "checkpoints", "report.html", "trace.json", "trained.jsonl", "live.json", "actions.jsonl"}
    | rows("sinks").keys()
)
"""What a run may have written before its first optimizer step."""


def check_output(path: str) -> None:
    """Check that a new run can have a folder of its own."""
    folder = Path(path)
    if folder.exists() and not is_free(folder):
        raise UserError(
            f"--output {path} exists and is not empty: it may hold another run; go on with that one by --resume, or "
            f"choose another folder"
        )
    parent = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        why = os.strerror(errno.EACCES if parent.is_dir() else errno.ENOTDIR)
        raise UserError(f"--output {path} cannot be made: {why}; choose another folder")


def claim_folder(path: str) -> list[Path]:
    """Make the output folder; returns the folders that were not there before, the innermost first."""
    try:
        return make_folders(Path(path))
    except OSError as error:
        raise UserError(f"--output {path} cannot be made: {error.strerror}; choose another folder") from None


def new_folder(algorithm: str, env: str) -> str:
    """Make a folder of its own for a run; another run may begin in the same second."""
    path = name = f"outputs/{algorithm}-{env or 'data'}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    while True:
        try:
            Path(path).mkdir(parents=True)
            return path
        except OSError:
            if not Path(path).is_dir():
                return path  # it cannot be made, and `claim_folder` says why
            number += 1
            path = f"{name}-{number}"


def is_free(folder: Path) -> bool:
    """Whether a folder is empty, or holds a run that took no optimizer step, and nothing else."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    if not names:
        return True
    return CONSOLE in names and names <= _WRITTEN and not steps_of(folder) and not _has_trained(folder)


def clear(folder: Path) -> None:
    """Remove what a run that trained nothing has left; other files stay."""
    for path in [folder / name for name in _WRITTEN]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _has_trained(folder: Path) -> bool:
    try:
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
        return any(json.loads(line)["phase"] == "train" for line in lines)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True
