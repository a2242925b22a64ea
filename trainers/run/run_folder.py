"""The folder of a new run or of a resumed run; one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from forge_env.core.errors import UserError
from trainers.checkpoints import Checkpoint, find
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


def checkpoint_of(plan: RunPlan) -> Checkpoint | None:
    """Find the checkpoint that a run resumes from; None for a new run.

    Raises:
        UserError: when there is none, or it does not fit the plan.
    """
    if not plan.resume:
        return None
    checkpoint = find(Path(plan.output), plan.checkpoint.step)
    plan.check_resumes(checkpoint)
    if plan.steps == checkpoint.step and (Path(plan.output) / "summary.json").is_file():
        raise UserError(
            f"the run in {plan.output} is complete, with all its {checkpoint.step} steps; to go on with it, raise "
            f"--training.steps"
        )
    return checkpoint


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against a second process; the kernel releases the lock however this process ends."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is at work on the run in {folder}: wait for its end, or end it") from None
        yield
    finally:
        os.close(lock)
