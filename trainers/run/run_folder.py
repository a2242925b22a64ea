"""The folder of a new run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from forge_env.core.errors import UserError
from forge_env.utils.folders import make_folders
from trainers.setup.checks.output_folder import check_output
from trainers.setup.run_plan import RunPlan


def claim_folder(path: str) -> list[Path]:
    """Make the output folder; returns the folders that were not there before, the innermost first.

    Raises:
        UserError: when it holds another run, or cannot be made.
    """
    check_output(path)
    try:
        return make_folders(Path(path))
    except OSError as error:
        raise UserError(f"--output {path} cannot be made: {error.strerror}; choose another folder") from None


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
