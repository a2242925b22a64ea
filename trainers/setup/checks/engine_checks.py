"""Checks of the engine: its cache and steps, its sleep, and what vLLM cannot do."""

from __future__ import annotations

from forge_env.core.errors import UserError
from trainers.setup.card import GIB
from trainers.setup.run_plan import RunPlan
from trainers.setup.sizing.engine import REQUESTS, cache_of_one, cannot_sleep_reason, requests_at_once

CPU_HEADS = (64, 128)
"""Sizes of heads of linear attention: vLLM has kernels for these on a CPU."""


def check_engine(plan: RunPlan) -> None:
    """Check that the engine's cache and steps have room for its requests, and that it can do what the run needs."""
    shape, engine_args = plan.shape, plan.engine_args
    if shape is not None and shape.num_experts and engine_args.get("quantization"):
        raise UserError(
            f"--services.generator.engine.quantization is {engine_args['quantization']}, and the model has experts, "
            "whose quantized kernels do not take new weights over in place: leave it out"
        )
    _check_linear(plan)
    generator, longest = plan.config.services.generator, plan.config.env.max_tokens
    if plan.replays_routes and generator.with_gpus and engine_args.get("enable_prefix_caching") is False:
        raise UserError(
            "--services.generator.engine.enable_prefix_caching is false, and vLLM 0.32 returns the experts that it "
            "chose, which the trainer replays, with its prefix cache only: leave it out, or set --moe.replay off"
        )
    one = cache_of_one(plan) if shape else 0.0
    if 0 < generator.kv_cache_gib * GIB < one:
        raise UserError(
            f"--services.generator.kv_cache_gib is {generator.kv_cache_gib:g}, and one request of --env.max_tokens, "
            f"{longest}, takes {one / GIB:.2g} GiB: set it to that or more, or to 0"
        )
    tokens = engine_args.get("max_num_batched_tokens")
    # Without chunked prefill, which an engine on CPU does not have, a prompt is computed in one step.
    least = requests_at_once(plan) if generator.with_gpus else max(REQUESTS, longest)
    if tokens is not None and tokens < least:
        what = "the requests that it takes at once" if least != longest else "--env.max_tokens"
        raise UserError(
            f"--services.generator.engine.max_num_batched_tokens is {tokens}, and a step of the engine has room for "
            f"{what}, {least}, at least: set it to that or more"
        )


def _check_linear(plan: RunPlan) -> None:
    """Check that an engine on a CPU has a kernel for the model's linear attention."""
    linear = plan.shape.linear if plan.shape else None
    if linear is None or not plan.has_engine or plan.config.services.generator.with_gpus:
        return
    if linear.key_dim != linear.value_dim or linear.key_dim not in CPU_HEADS:
        raise UserError(
            f"the model has linear_key_head_dim {linear.key_dim} and linear_value_head_dim {linear.value_dim}, and "
            f"vLLM 0.32 computes linear attention on a CPU with equal heads of {CPU_HEADS[0]} or {CPU_HEADS[1]} only: "
            "put the engine on a GPU, or take another model"
        )


def check_sleep(plan: RunPlan) -> None:
    """Check that `services.generator.sleep: yes` is possible, and that a trainer uses the memory meanwhile."""
    generator, processes = plan.config.services.generator, plan.placement.processes
    if generator.sleep != "yes":
        return
    if reason := cannot_sleep_reason(plan):
        raise UserError(f"--services.generator.sleep is yes, and {reason}: leave it out")
    trainer_gpus = {process.where for process in processes if process.service == "trainer"}
    engines = [process for process in processes if process.service == "generator"]
    if generator.with_gpus and not any(process.where in trainer_gpus for process in engines):
        raise UserError(
            "--services.generator.sleep is yes, and no trainer is on the engine's GPU to use its memory meanwhile: "
            "leave it out, or share the GPUs with --launcher.share_gpus yes"
        )
