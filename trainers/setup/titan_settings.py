"""The settings of the trainer and of the reference model: arguments of classes that only their processes import."""

from __future__ import annotations

from typing import Any

from trainers.config import RunConfig
from trainers.lora import lora_of
from trainers.model.shape import ModelShape
from trainers.setup.options.defaults import rising_steps

ADAM_BETAS = (0.9, 0.95)


def trainer_settings(config: RunConfig, shape: ModelShape | None = None) -> dict[str, Any]:
    """Arguments of `trainers.titan.trainer.TitanSettings`; `shape` is that of the model, where it is known."""
    training, parallelism = config.training, config.parallelism
    return {
        "learning_rate": training.learning_rate,
        "warmup_steps": rising_steps(config, max(0, training.steps)),
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "betas": ADAM_BETAS,
        "seed": training.seed,
        "dtype": "" if training.dtype == "auto" else training.dtype,
        "attention": training.attention,
        "compile": training.compile,
        "activation_checkpoint": training.activation_checkpoint,
        "keep_logits_gib": training.keep_logits_gib,
        "cpu_offload": training.cpu_offload,
        "reshard_after_forward": training.reshard_after_forward,
        "optimizer_state": training.optimizer_state,
        "fp32_head": training.fp32_head,
        "replay": config.moe.replay != "off",
        "lora": lora_of(config, shape),
        "dp_replicate": parallelism.data_parallel_replicate_degree,
        "gpu_memory_gib": config.launcher.gpu_memory_gib,
        "dp_shard": parallelism.data_parallel_shard_degree,
        "tp": parallelism.tensor_parallel_degree,
        "cp": parallelism.context_parallel_degree,
        "ep": parallelism.expert_parallel_degree,
        "threads": config.services.trainer.threads,
        "deterministic": training.deterministic,
        "max_tokens_per_micro_batch": training.max_tokens_per_micro_batch,
        "pack_length": training.max_tokens_per_micro_batch if training.packing else 0,
    }


def reference_settings(config: RunConfig) -> dict[str, Any]:
    """Arguments of `trainers.titan.reference.TitanReference`: what the trainer's have to do with logprobs.

    Its attention is the default of its own device, which may be another than the trainer's.
    """
    shared = ("dtype", "fp32_head", "gpu_memory_gib", "max_tokens_per_micro_batch", "pack_length")
    trainer = trainer_settings(config)
    return {name: trainer[name] for name in shared} | {"threads": config.services.ref_model.threads}
