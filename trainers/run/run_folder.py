"""The folder of a run: a new one, or that of a run that goes on; one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from forge_env.core.errors import UserError
from trainers.checkpoints import Checkpoint, check_fits, find
from trainers.config import RunConfig
from trainers.setup.checks.run_checks import check_output, check_resume


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


def new_folder(algorithm: str, config: RunConfig) -> str:
    return f"outputs/{algorithm}-{config.env.name or 'data'}-{datetime.now():%Y%m%d-%H%M%S}"


def checkpoint_of(algorithm: str, config: RunConfig) -> Checkpoint | None:
    """Find the checkpoint that a run resumes from; None for a new run.

    Raises:
        UserError: when there is none, or it does not fit this config.
    """
    check_resume(config)
    if not config.resume:
        return None
    checkpoint = find(Path(config.output), config.checkpoint.step)
    check_fits(checkpoint, algorithm, config)
    if config.training.steps == checkpoint.step and (Path(config.output) / "summary.json").is_file():
        raise UserError(
            f"the run in {config.output} is complete, with all its {checkpoint.step} steps; to go on with it, raise "
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
