"""Whether a run may go on from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, get_origin

from forge_env.core.errors import UserError
from forge_env.utils.settings import BY_CASE, leaves, may_change
from trainers.checkpoints import Checkpoint
from trainers.config import RunConfig


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
    before, now = dict(_leaves(saved["config"])), dict(_leaves(asdict(config)))
    _check_names(checkpoint, config, before)
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


def _check_names(checkpoint: Checkpoint, config: RunConfig, before: Mapping[str, Any]) -> None:
    """Raise UserError if the checkpoint does not have the settings that runs have now."""
    settings = leaves(config)
    entries = tuple(f"{setting.name}." for setting in settings if get_origin(setting.kind) is dict)
    names = {setting.name for setting in settings if f"{setting.name}." not in entries}
    if other := sorted(names ^ {name for name in before if not name.startswith(entries)}):
        raise UserError(
            f"{checkpoint.path} was saved by another version of forge_env: --{other[0]} is a setting of one of the "
            "two versions only; go on with the version that began the run"
        )


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: Any) -> str:
    return "not set" if value is None or value == "" else str(value)
