"""The settings of a run's engine: how large its cache is, and whether it sleeps while the trainer steps.

    the card x gpu_memory_utilization
    - the other processes of the run on this card: their peak, or if the engine sleeps, what they hold at rest
    = the room for all engines on this card; of an equal part of it, less an engine's weights and buffers
    = the room for its keys and values

The cache is what all requests need at their longest, if there is room; otherwise all the room there is. It has at least
`LEAST_REQUESTS` requests of full length, even above gpu_memory_utilization; fit.py refuses what a card cannot hold.
`check_engine` and `check_sleep` say what vLLM cannot do.
"""

from __future__ import annotations

from dataclasses import replace

from agents.generator.engine_args import has_draft_model
from agents.generator.settings import GATHER_S, EngineSettings
from forge_env.core.errors import UserError
from trainers.setup.card import GIB, gib
from trainers.setup.memory import BYTES, engine_memory
from trainers.setup.run_plan import RunPlan

REQUESTS = 128  # that an engine on CPU runs at once; further ones wait in its queue
MOST_REQUESTS = 512  # that an engine on GPU runs at once

LEAST_CACHE_GIB = 0.25  # for a small model, which would need less
LEAST_REQUESTS = 4  # of full length; with fewer, most of a batch would wait in the queue
CPU_HEADS = (64, 128)  # sizes of heads of linear attention; vLLM has kernels for these on a CPU


def plan_engine(
    plan: RunPlan, *, others: float = 0.0, at_rest: float = 0.0, on_card: int = 1
) -> tuple[EngineSettings, str]:
    """The settings of the engine of a run, and a sentence on its cache and its sleep; "" if there is none to say.

    Args:
        others: peak of the run's other processes on the engine's GPU, in bytes.
        at_rest: bytes that they hold while the engine works.
    """
    generator, card, no_sleep = plan.config.services.generator, plan.card, cannot_sleep_reason(plan)
    settings, sleep = _settings(plan), generator.sleep
    if plan.shape is None or not generator.with_gpus:
        return settings, "the engine sleeps while the trainer steps" if settings.sleep else ""
    one, user_size = cache_of_one(plan), generator.kv_cache_gib * GIB
    need = user_size or max(1.1 * settings.max_requests * one, LEAST_CACHE_GIB * GIB)
    cache, sleeps = need, settings.sleep
    if card is not None:
        fixed_size = engine_memory(plan, replace(settings, kv_cache_gib=0.0)).total

        def room(others_use: float) -> float:
            return (card * generator.gpu_memory_utilization - others_use) / on_card - fixed_size

        sleeps = others > 0 and (sleeps or (sleep == "auto" and not no_sleep and room(others) < need))
        cache = max(user_size or min(LEAST_REQUESTS * one, need), min(need, room(at_rest if sleeps else others)))

    beside = f"{gib(others)} GiB of the other processes on its GPU"
    if card is None:
        why = ": the memory of its GPU is not known here, which --launcher.gpu_memory_gib says"
    elif not others:
        why = ": no other process of the run is on its GPU"
    elif sleeps and sleep == "yes":
        why = ", as --services.generator.sleep says"
    elif sleeps:
        why = f": beside the {beside}, there is no room for all requests at their longest, {gib(need)} GiB"
    elif cache >= need:
        why = f": there is room for it beside the {beside}"
    else:
        reason = "--services.generator.sleep is no" if sleep == "no" else no_sleep
        why = f", which is what the {beside} leave; it does not sleep: {reason}"
    keeps = card is not None and not sleeps
    does = ", and sleeps while the trainer steps" if sleeps else " while the trainer steps" if keeps else ""
    who = "the engine" if on_card == 1 else f"each of the {on_card} engines on a GPU"
    about = f"{who} {'keeps' if keeps else 'has'} a cache of {gib(cache)} GiB{does}{why}"
    return replace(settings, kv_cache_gib=cache / GIB, sleep=sleeps), about


def _settings(plan: RunPlan) -> EngineSettings:
    config, lora, generator = plan.config, plan.lora, plan.config.services.generator
    on_gpu = generator.with_gpus
    return EngineSettings(
        max_model_len=config.env.max_tokens,
        max_requests=requests_at_once(plan),
        dtype=plan.engine_dtype,
        kv_cache_gib=generator.kv_cache_gib or (0.0 if on_gpu else EngineSettings().kv_cache_gib),
        gpu_memory_utilization=generator.gpu_memory_utilization,
        gpu_memory_gib=config.launcher.gpu_memory_gib,
        sleep=generator.sleep == "yes" and not cannot_sleep_reason(plan),
        engine_args=plan.engine_args,
        lora_rank=lora.rank if lora and lora.publish == "adapter" else 0,
        return_routes=plan.replays_routes,
        tensor_parallel=generator.procs,
        cuda_graphs=on_gpu and generator.cuda_graphs,
        worker_process=on_gpu and generator.worker_process,
        fast_path=generator.fast_path,
        seed=config.training.seed,
        cache_on_update=config.training.cache_on_update,
        stall_seconds=config.deadlines.stall_seconds,
        gather_s=0.0 if on_gpu or config.training.deterministic else GATHER_S,
    )


def cannot_sleep_reason(plan: RunPlan) -> str:
    """Why the engine cannot sleep while the trainer steps, as the end of a sentence; "" if it can."""
    staleness = plan.config.training.most_behind
    if not plan.is_supervised and staleness > plan.window - 1:
        return f"episodes are in flight while the trainer steps, for --training.staleness is {staleness}"
    if has_draft_model(plan.engine_args):
        return "the weights of its draft model would be lost, which the trainer does not publish"
    return ""


def cache_of_one(plan: RunPlan) -> float:
    """Bytes of keys and values, or of linear attention's memory, of one request of full length, on one process of the
    engine."""
    size = BYTES[plan.engine_dtype]
    if str(plan.engine_args.get("kv_cache_dtype", "auto")).startswith("fp8"):
        size = 1
    shape, linear = plan.sizes, plan.sizes.linear
    token = 2 * shape.attention_layers * shape.key_value_size * size
    memory = linear.layers * linear.memory_bytes(size) if linear else 0
    return (token * plan.config.env.max_tokens + memory) / max(1, plan.config.services.generator.procs)


def requests_at_once(plan: RunPlan) -> int:
    """Requests that the engine runs at once: on GPU one for each episode that may be open, up to a bound."""
    if not plan.config.services.generator.with_gpus:
        return REQUESTS
    size = plan.objective.group_size if plan.objective else 1
    training = plan.config.training.groups_per_step * (plan.config.training.most_behind + 1) * size
    # Rounded up to a multiple of REQUESTS: vLLM compiles anew for each number.
    return min(-(-max(training, plan.episodes_at_once) // REQUESTS) * REQUESTS, MOST_REQUESTS)


def check_engine(plan: RunPlan) -> None:
    """Check that the engine's cache and steps have room for its requests, and that it can do what the run needs."""
    shape, engine_args = plan.shape, plan.engine_args
    if shape is not None and shape.num_experts and engine_args.get("quantization"):
        raise UserError(
            f"--services.generator.engine.quantization is {engine_args['quantization']}, and the model has experts, "
            "whose quantized kernels do not take new weights over in place: leave it out"
        )
    generator, longest = plan.config.services.generator, plan.config.env.max_tokens
    linear = shape.linear if shape and plan.has_engine and not generator.with_gpus else None
    if linear is not None and (linear.key_dim != linear.value_dim or linear.key_dim not in CPU_HEADS):
        raise UserError(
            f"the model has linear_key_head_dim {linear.key_dim} and linear_value_head_dim {linear.value_dim}, and "
            f"vLLM 0.32 computes linear attention on a CPU with equal heads of {CPU_HEADS[0]} or {CPU_HEADS[1]} only: "
            "put the engine on a GPU, or take another model"
        )
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


def check_sleep(plan: RunPlan) -> None:
    """Check that `services.generator.sleep: yes` is possible, and that a trainer uses the memory meanwhile."""
    generator, processes = plan.config.services.generator, plan.placement.processes
    if generator.sleep != "yes":
        return
    if reason := cannot_sleep_reason(plan):
        raise UserError(f"--services.generator.sleep is yes, and {reason}: leave it out")
    taken = {process.where for process in processes if process.service == "trainer"}
    engines = [process for process in processes if process.service == "generator"]
    if generator.with_gpus and not any(process.where in taken for process in engines):
        raise UserError(
            "--services.generator.sleep is yes, and no trainer is on the engine's GPU to use its memory meanwhile: "
            "leave it out, or share the GPUs with --launcher.share_gpus yes"
        )
