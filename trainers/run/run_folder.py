"""The folder of a new run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from forge_env.core.errors import UserError
from trainers.setup.checks.run_checks import check_output
from trainers.setup.run_plan import RunPlan


def claim_folder(path: str) -> Path:
    """Make the output folder.

    Raises:
        UserError: when it holds another run, or cannot be made.
    """
    check_output(path)
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {path} cannot be made: {error.strerror}; choose another folder") from None
    return folder


def new_folder(plan: RunPlan) -> str:
    """Make a folder of its own for a run; another run may begin in the same second."""
    path = name = f"outputs/{plan.algorithm}-{plan.env.name or 'data'}-{datetime.now():%Y%m%d-%H%M%S}"
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
