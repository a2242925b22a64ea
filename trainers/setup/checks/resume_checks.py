"""Whether a run may go on from a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import UserError
from forge_env.records.run_files import FACTS, SUMMARY, read_object
from forge_env.utils.atomic import take_lock
from forge_env.utils.secret_values import masked
from forge_env.utils.settings import BY_CASE, may_change
from trainers.checkpoints import Checkpoint, find, read_manifest
from trainers.config import RunConfig
from trainers.metrics.report import check_mark
from trainers.setup.options.parser import flatten
from trainers.setup.run_tasks import data_digests

if TYPE_CHECKING:
    from trainers.setup.run_plan import RunPlan

REFERENCE, REFERENCE_ADAPTER = "reference.safetensors", "reference_adapter"
"""The file, or the folder of an adapter, that a run keeps of its warmed-up policy, if a KL penalty is against it."""


def checkpoint_of(plan: RunPlan) -> Checkpoint:
    if not plan.config.output:
        raise UserError("--resume needs --output FOLDER: the run to go on with")
    folder = Path(plan.config.output)
    with lock_folder(folder):
        checkpoint = find(folder, plan.config.checkpoint.step)
        check_fits(checkpoint, plan.algorithm.name, plan.config)
        _check_incomplete(folder, checkpoint, plan.config.training.steps)
        if "report" in checkpoint.extra:
            check_mark(folder, checkpoint.extra["report"])
        check_data(folder, plan.views)
        _check_reference(plan, checkpoint, folder)
        _check_model(plan, checkpoint)
    return checkpoint


def _check_incomplete(folder: Path, checkpoint: Checkpoint, steps: int) -> None:
    """Check that a run that is complete has steps to take after the checkpoint; `steps` -1 is as many as it had."""
    if not (folder / SUMMARY).is_file():
        return
    all_steps = int(read_object(folder / SUMMARY)["steps"])
    if (all_steps if steps == BY_CASE else steps) > checkpoint.step:
        return
    raise UserError(
        f"the run in {folder} is complete, with all its {all_steps} steps, and none is left to take after "
        f"{checkpoint.path}: raise --training.steps to go on from there; as a model, name that folder with --model"
    )


def _check_model(plan: RunPlan, checkpoint: Checkpoint) -> None:
    """Check that the model of a given folder is still of the shape that the checkpoint was saved from."""
    sizes = read_manifest(checkpoint.path).get("model") or {}
    if plan.shape is None or plan.model.folder is None:
        return
    differing = [name for name, size in sizes.items() if size is not None and size != getattr(plan.shape, name, size)]
    if differing:
        raise UserError(f"{checkpoint.path} was saved from a model of another shape: {sizes}.")


def _check_reference(plan: RunPlan, checkpoint: Checkpoint, folder: Path) -> None:
    objective = plan.objective
    if objective is None or objective.kl_reference != "model" or not checkpoint.extra["warmup_steps"]:
        return
    name, what = (REFERENCE_ADAPTER, "adapter") if plan.lora else (REFERENCE, "reference model")
    if not (folder / name).exists():
        raise UserError(f"--resume: {folder / name} is missing, the {what} that this run was trained against")


def check_fits(checkpoint: Checkpoint, algorithm: str, config: RunConfig) -> None:
    extra = checkpoint.extra
    if extra["algorithm"] != algorithm:
        raise UserError(
            f"{checkpoint.path} was saved by {extra['algorithm']}, and this is {algorithm}: go on with "
            f"python -m {extra['command']}"
        )
    trees = (extra["config"], masked(asdict(config)))  # a secret may change
    before, now = ({name: value for name, value in flatten(tree) if value != {}} for tree in trees)
    free = may_change(config)
    differing = [
        f"--{name} is {_show(now.get(name))} and was {_show(before.get(name))}"
        for name in sorted({*before, *now})
        if not any(f"{name}.".startswith(f"{part}.") for part in free)
        and before.get(name) != json.loads(json.dumps(now.get(name)))  # through JSON, which has no tuples
    ]
    if differing:
        raise UserError(
            f"{checkpoint.path} was saved with other settings, which cannot change when a run goes on: "
            f"{'; '.join(differing)}; give the settings that it had"
        )
    tensor, saved_tensor = (settings["parallelism.tensor_parallel_degree"] for settings in (now, before))
    if config.training.optimizer_state == "8bit" and tensor != saved_tensor:
        raise UserError(
            f"--parallelism.tensor_parallel_degree is {tensor}, and {checkpoint.path} was saved with {saved_tensor} "
            f"and --training.optimizer_state 8bit; its moments cannot be cut in another way: give {saved_tensor}"
        )
    if config.training.steps != BY_CASE and config.training.steps < checkpoint.step:  # -1: the data gives the number
        raise UserError(
            f"--training.steps is {config.training.steps}, and {checkpoint.path} is past that: give at least "
            f"{checkpoint.step}, or go on from an older one with --checkpoint.step"
        )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder against a second process; the kernel releases the lock however this process ends."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        if not take_lock(lock):
            raise UserError(f"another process is at work on the run in {folder}: wait for its end, or end it")
        yield
    finally:
        os.close(lock)


def check_data(folder: Path, views: Iterable[RunConfig]) -> dict[str, Any]:
    """Return what run.json says of the data files of a run, by the settings of each environment."""
    before, now = data_at_start(folder).get("files") or {}, data_digests(views)
    for name in before:
        if before[name] != now.get(name):
            what = "has changed since this run began" if name in now else "is not there any more"
            raise UserError(
                f"the data file {name} {what}, so that the run would go on with other data: put the file back as it "
                "was, or start a new run"
            )
    return {"files": now} if now else {}


def data_at_start(folder: Path) -> dict[str, Any]:
    """What run.json says of the data that a run began with; empty for a new run."""
    path = folder / FACTS
    return (read_object(path).get("data") or {}) if path.is_file() else {}


def _show(value: Any) -> str:
    return "not set" if value is None or value == "" else str(value)
