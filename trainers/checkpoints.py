"""A run's checkpoints on disk, RUN/checkpoints/step_000040/: names, manifests, which to keep, which to go on from.

A folder has its final name only when it is complete; before that its name begins with a dot.
trainers/titan/checkpoint.py writes what is in it. Nothing here needs torch: the controller reads checkpoints too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from forge_env.core.errors import UserError
from forge_env.records.run_files import MANIFEST, env_here, steps_of

CHECKPOINT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Options of the section `checkpoint`."""

    interval: Annotated[int, Ge(0)] = 0
    """Optimizer steps between two checkpoints; 0 is one, after the last step."""
    keep_last: Annotated[int, Ge(1)] = 2
    """Checkpoints to keep; older ones are removed once a newer one is complete."""
    keep_best: bool = True
    """Give each evaluated step that is the best so far a checkpoint, which `keep_last` never removes."""
    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written."""
    step: Annotated[int, Ge(0)] = 0
    """With resume: go on from the checkpoint of this step; 0 is the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint of a run."""

    path: Path
    step: int
    """Optimizer steps of the algorithm, without the steps of the warm-up."""
    extra: Mapping[str, Any]
    """The run's own entries; see trainers/run/checkpointing.py."""


def path_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:06d}"


def find(run: Path, step: int = 0) -> Checkpoint:
    """Find the checkpoint of a step, or the newest for 0, and check that no file is missing or damaged."""
    folders = steps_of(run)
    if not folders:
        raise UserError(
            f"--resume: {run} holds no complete checkpoint; a run writes one every --checkpoint.interval steps and "
            f"after its last step: start again, with another --output"
        )
    if step and step not in folders:
        steps = ", ".join(map(str, folders))
        raise UserError(f"--checkpoint.step is {step}, and {run} has no checkpoint of that step; it has {steps}")
    step = step or max(folders)
    try:
        extra = read_manifest(folders[step]).get("extra")
        if not isinstance(extra, dict) or not {"algorithm", "config"} <= extra.keys():
            raise UserError(
                f"{folders[step]} is not a checkpoint of a run: its {MANIFEST} names no algorithm and config"
            )
    except UserError as error:
        older = max((other for other in folders if other < step), default=None)
        offer = "there is no older one" if older is None else f"go on from an older one with --checkpoint.step {older}"
        raise UserError(f"{str(error).rstrip('.')}; {offer}") from None
    if env := extra["config"].get("env"):
        env["name"] = env_here(env["name"], run)
    return Checkpoint(path=folders[step], step=step, extra=extra)


def clean(run: Path, step: int) -> None:
    """Remove half-written files of a killed run, and checkpoints after `step`: the run now takes another course."""
    for path in (run / "checkpoints").glob(".*"):
        shutil.rmtree(path)
    for other, path in steps_of(run).items():
        if other > step:
            remove(path)


def prune(run: Path, keep_last: int, spare: int | None = None) -> None:
    """Remove all complete checkpoints except the newest `keep_last`, at least one, and that of the step `spare`."""
    for step, path in list(steps_of(run).items())[: -max(1, keep_last)]:
        if step != spare:
            remove(path)


def remove(path: Path) -> None:
    """Remove a checkpoint. It loses the name of a complete one first, in case this is interrupted."""
    old_path = path.with_name(f".{path.name}.old")
    shutil.rmtree(old_path, ignore_errors=True)
    path.rename(old_path)
    shutil.rmtree(old_path, ignore_errors=True)  # a model may just be written into it


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest and compare it with the files that are there."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a checkpoint: there is no such folder.")
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        files, version = manifest["files"], manifest["version"]
    except FileNotFoundError:
        raise UserError(f"{folder} is not a checkpoint of this trainer: it has no {MANIFEST}.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder} is damaged: its {MANIFEST} cannot be read.") from None
    if version != CHECKPOINT_VERSION:
        raise UserError(f"{folder} has checkpoint version {version}, this trainer reads {CHECKPOINT_VERSION}.")
    for name, size in files.items():
        present = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if present != size:
            raise UserError(f"{folder} is damaged: {name} has {present} bytes of {size}.")
    return manifest


def write_texts(folder: Path, texts: Mapping[str, Sequence[bytes]]) -> None:
    """Write further files of a checkpoint, given as lines by file name, and wait until they are on the disk."""
    for name, lines in texts.items():
        with (folder / name).open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest with the names of all files in the folder, and wait until it is on the disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {str(path.relative_to(folder)): path.stat().st_size for path in paths}
    with (folder / MANIFEST).open("w") as file:
        file.write(json.dumps({"version": CHECKPOINT_VERSION, **manifest, "files": files}))
        file.flush()
        os.fsync(file.fileno())
