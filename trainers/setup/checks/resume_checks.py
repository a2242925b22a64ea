"""Whether a run may go on from a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from forge_env.core.errors import UserError
from forge_env.utils.settings import BY_CASE, may_change
from trainers.checkpoints import Checkpoint
from trainers.config import RunConfig
from trainers.setup.options.parser import flatten


def check_fits(checkpoint: Checkpoint, algorithm: str, config: RunConfig) -> None:
    """Check that a run may go on from a checkpoint with this config.

    Raises:
        UserError: a setting differs that may not change, with all their names; or the run has all its steps.
    """
    saved = checkpoint.extra
    if saved["algorithm"] != algorithm:
        raise UserError(
            f"{checkpoint.path} was saved by {saved['algorithm']}, and this is {algorithm}: go on with "
            f"python -m {saved['command']}"
        )
    trees = (saved["config"], asdict(config))
    before, now = ({name: value for name, value in flatten(tree) if value != {}} for tree in trees)
    free = may_change(config)
    differing = [
        f"--{name} is {_shown(now.get(name))} and was {_shown(before.get(name))}"
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


def _shown(value: Any) -> str:
    return "not set" if value is None or value == "" else str(value)
