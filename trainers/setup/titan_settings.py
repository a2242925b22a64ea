"""The settings of the trainer and of the reference model: what the user sets, and what a plan resolves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainers.config import RunConfig
from trainers.lora import Lora
from trainers.settings.trainer import ForwardSettings, ParallelismConfig, TrainerSettings
from trainers.setup.options.defaults import rising_steps
from trainers.titan.settings import TitanSettings

ADAM_BETAS = (0.9, 0.95)


def trainer_settings(config: RunConfig, lora: Lora | None = None) -> TitanSettings:
    """The trainer's settings; `lora` are the adapters that it trains."""
    return TitanSettings(
        **_as_set(config.training, TrainerSettings),
        **_as_set(config.parallelism, ParallelismConfig),
        **_sequences(config),
        learning_rate=config.training.learning_rate,
        warmup_steps=rising_steps(config, max(0, config.training.steps)),
        betas=ADAM_BETAS,
        replay=config.moe.replay != "off",
        lora=lora,
        threads=config.services.trainer.threads,
    )


def reference_settings(config: RunConfig) -> TitanSettings:
    """The reference model's settings: it computes logprobs as the trainer does.

    Its attention is the default of its own device, which may be another than the trainer's.
    """
    shared = _as_set(config.training, ForwardSettings)
    return TitanSettings(**shared, **_sequences(config), threads=config.services.ref_model.threads)


def _as_set(section: Any, part: type[Any]) -> dict[str, Any]:
    """The values of a section that belong to a part of it."""
    return {field.name: getattr(section, field.name) for field in fields(part)}


def _sequences(config: RunConfig) -> dict[str, Any]:
    training = config.training
    pack_length = training.max_tokens_per_micro_batch if training.packing else 0
    return {"pack_length": pack_length, "gpu_memory_gib": config.launcher.gpu_memory_gib}
