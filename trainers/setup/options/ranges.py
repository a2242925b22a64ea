"""The range of every number of a config that has one, by its dotted name."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

from forge_env.core.errors import UserError
from trainers.config import BY_CASE, RunConfig

AT_LEAST: dict[str, float] = {
    "dataset.tasks": 0,
    "dataset.held_out": 0,
    "env.max_turns": 1,
    "env.max_turn_tokens": 1,
    "env.max_tokens": 2,
    "env.max_thinking_tokens": 0,
    "env.min_valid": 1,
    "warmup.steps": 0,
    "warmup.until_success": 0,
    "warmup.probe_every": 1,
    "warmup.probe_tasks": 1,
    "warmup.demonstrations": 1,
    "warmup.batch_size": 1,
    "warmup.learning_rate": 0,
    "warmup.learning_rate_warmup": 0,
    "training.steps": 1,
    "training.seed": 0,
    "training.batch_size": 1,
    "training.gradient_accumulation_steps": 1,
    "training.sync_interval": 1,
    "training.learning_rate": 0,
    "training.warmup_steps": 0,
    "training.weight_decay": 0,
    "training.seq_len": 0,
    "training.staleness": 0,
    "training.mismatch_alarm": 0,
    "training.keep_logits_gib": 0,
    "training.max_tokens_per_micro_batch": 1,
    "lora.rank": 0,
    "moe.compare_interval": 0,
    "services.generator.procs": 1,
    "services.generator.threads": 1,
    "services.generator.num_replicas": 1,
    "services.generator.kv_cache_gib": 0,
    "services.envs.threads": 1,
    "services.envs.num_replicas": 1,
    "services.trainer.procs": 1,
    "services.trainer.threads": 1,
    "services.trainer.num_replicas": 1,
    "services.ref_model.procs": 0,
    "services.ref_model.threads": 1,
    "services.ref_model.num_replicas": 1,
    "launcher.hosts": 0,
    "launcher.port": 1,
    "launcher.gpus_per_host": 0,
    "launcher.gpu_memory_gib": 0,
    "launcher.silence_seconds": 2,
    "launcher.lease_seconds": 5,
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.expert_parallel_degree": 1,
    "evaluation.interval": 0,
    "evaluation.n": 1,
    "evaluation.temperature": 0,
    "checkpoint.interval": 0,
    "checkpoint.keep_last": 1,
    "checkpoint.step": 0,
    "metrics.system_seconds": 0,
}
ABOVE: dict[str, float] = {
    "env.step_seconds": 0,
    "env.episode_seconds": 0,
    "env.scoring_seconds": 0,
    "evaluation.top_p": 0,
    "training.max_grad_norm": 0,
    "training.step_seconds": 0,
    "lora.alpha": 0,
    "deadlines.stall_seconds": 0,
    "deadlines.base_seconds": 0,
    "deadlines.least_mib_per_second": 0,
    "services.generator.gpu_memory_utilization": 0,
    "services.generator.ping_seconds": 0,
    "services.envs.ping_seconds": 0,
    "services.trainer.ping_seconds": 0,
    "services.ref_model.ping_seconds": 0,
}
LARGEST = 2**31 - 1
"""Of a whole number that has no bound of its own."""
PROCESSES = 4096  # or hosts, or threads; a plan has a line for each process
AT_MOST: dict[str, float] = {
    "services.generator.gpu_memory_utilization": 1,
    "services.envs.num_replicas": PROCESSES,
    "services.envs.threads": PROCESSES,
    **{
        f"services.{service}.{name}": PROCESSES
        for service in ("generator", "trainer", "ref_model")
        for name in ("procs", "num_replicas", "threads")
    },
    "services.generator.kv_cache_gib": 1024,
    "lora.rank": 1024,
    "launcher.hosts": PROCESSES,
    "launcher.gpus_per_host": PROCESSES,
    "launcher.gpu_memory_gib": 1024,
    "launcher.port": 65535,
    "training.learning_rate": 1,
    "training.max_tokens_per_micro_batch": 2**24,
    "warmup.learning_rate": 1,
    "evaluation.top_p": 1,
}
# Of the algorithms' own sections, those that a section has; what hangs on two settings is checked by the loss.
ALGORITHM_AT_LEAST: dict[str, float] = {
    "n_samples": 1,
    "beta": 0,
    "constant": 0,
    "correction_low": 0,
    "correction_high": 1,
    "std_ddof": 0,
    "std_eps": 0,
    "clip_low": 0,
    "clip_high": 0,
    "dual_clip": 0,
    "clip_ratio": 0,
    "overlong_length": 0,
    "overlong_buffer": 0,
    "overlong_penalty": 0,
    "temperature": 0.01,  # vLLM takes a lower one for 0.01
}
ALGORITHM_ABOVE: dict[str, float] = {"tau_pos": 0, "tau_neg": 0}
ALGORITHM_AT_MOST: dict[str, float] = {"clip_low": 1, "correction_low": 1, "std_ddof": 1, "overlong_buffer": 1}


def value_of(config: RunConfig, name: str) -> float:
    """The number of a dotted name."""
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    assert isinstance(value, int | float), name
    return value


def check_numbers(config: RunConfig) -> None:
    """Check every number of a config.

    Raises:
        UserError: for the first one out of range, by its dotted name.
    """
    default = type(config)()
    for name, (allowed, holds) in _rules(config).items():
        value, is_by_case = value_of(config, name), value_of(default, name) == BY_CASE
        if not holds(value) and not (is_by_case and value == BY_CASE):
            other = f", or {BY_CASE} for the default" if is_by_case else ""
            raise UserError(f"--{name} is {value}; it must be {allowed}{other}")
        if isinstance(value, int) and value > LARGEST:
            raise UserError(f"--{name} is {value}; it must be at most {LARGEST}")
    shard = config.parallelism.data_parallel_shard_degree
    if shard < 1 and shard != -1:
        raise UserError(
            f"--parallelism.data_parallel_shard_degree is {shard}; it must be at least 1, or -1 for all processes that "
            "the other degrees leave"
        )


def _rules(config: RunConfig) -> dict[str, tuple[str, Callable[[float], bool]]]:
    """Dotted name -> the allowed range in words, and a function that tests a value."""
    section, prefix = config.algorithm, f"{config.algorithm_name}."
    least, above, most = dict(AT_LEAST), dict(ABOVE), dict(AT_MOST)
    for table, bounds in ((least, ALGORITHM_AT_LEAST), (above, ALGORITHM_ABOVE), (most, ALGORITHM_AT_MOST)):
        table.update({prefix + name: bound for name, bound in bounds.items() if hasattr(section, name)})
    rules: dict[str, tuple[str, Callable[[float], bool]]] = {}
    for name, low in least.items():
        if name in most:
            rules[name] = (f"from {_shown(low)} to {_shown(most[name])}", partial(_is_between, low, most[name]))
        else:
            rules[name] = (f"at least {_shown(low)}", partial(operator.le, low))
    for name, low in above.items():
        if name in most:
            rules[name] = (f"above {low:g} and at most {_shown(most[name])}", partial(_is_above, low, most[name]))
        else:
            rules[name] = (f"above {low:g}", partial(operator.lt, low))
    return rules


def _shown(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _is_above(low: float, high: float, value: float) -> bool:
    return low < value <= high


def _is_between(low: float, high: float, value: float) -> bool:
    return low <= value <= high
