"""The settings of the trainer and of the reference model: what the user sets, and what a plan resolves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainers.config import RunConfig
from trainers.lora import lora_of
from trainers.model.shape import ModelShape
from trainers.settings.trainer import ForwardSettings, TrainerSettings
from trainers.setup.options.defaults import rising_steps
from trainers.titan.settings import TitanSettings

ADAM_BETAS = (0.9, 0.95)


def trainer_settings(config: RunConfig, shape: ModelShape | None = None) -> TitanSettings:
    """The trainer's settings; `shape` is that of the model, where it is known."""
    training, parallelism = config.training, config.parallelism
    return TitanSettings(
        **_as_set(config, TrainerSettings),
        **_sequences(config),
        learning_rate=training.learning_rate,
        warmup_steps=rising_steps(config, max(0, training.steps)),
        betas=ADAM_BETAS,
        replay=config.moe.replay != "off",
        lora=lora_of(config, shape),
        dp_replicate=parallelism.data_parallel_replicate_degree,
        dp_shard=parallelism.data_parallel_shard_degree,
        tp=parallelism.tensor_parallel_degree,
        cp=parallelism.context_parallel_degree,
        ep=parallelism.expert_parallel_degree,
        threads=config.services.trainer.threads,
    )


def reference_settings(config: RunConfig) -> TitanSettings:
    """The reference model's settings: it computes logprobs as the trainer does.

    Its attention is the default of its own device, which may be another than the trainer's.
    """
    shared = _as_set(config, ForwardSettings)
    return TitanSettings(**shared, **_sequences(config), threads=config.services.ref_model.threads)


def _as_set(config: RunConfig, section: type[ForwardSettings]) -> dict[str, Any]:
    return {field.name: getattr(config.training, field.name) for field in fields(section)}


def _sequences(config: RunConfig) -> dict[str, Any]:
    training = config.training
    pack_length = training.max_tokens_per_micro_batch if training.packing else 0
    return {"pack_length": pack_length, "gpu_memory_gib": config.launcher.gpu_memory_gib}
