"""The engine of a run: its settings, which the plan of the run has."""

from __future__ import annotations

from agents.generator.start import EngineSettings
from trainers.config import RunConfig
from trainers.model.shape import ModelShape

AT_ONCE = {True: 256, False: 64}
"""Episodes in flight in an evaluation, by whether the engine is on a GPU."""
REQUESTS = 128  # that an engine on CPU takes at once; further ones wait in its queue
MOST_REQUESTS = 512  # that one on GPU takes
GATHER_S = 0.015  # of an engine on CPU, see EngineSettings
GIB = 2**30
MOST_CACHE_GIB = {True: 32.0, False: 64.0}
"""Of keys and values on a GPU, by whether it is shared: further requests then wait."""


def engine_settings(config: RunConfig, shape: ModelShape | None, *, shares_gpus: bool) -> EngineSettings:
    """The settings of the engine of a run.

    Args:
        config: of the run.
        shape: of its model; None where it is not known yet.
        shares_gpus: whether other services have the engine's GPUs too.
    """
    generator = config.services.generator
    on_gpu = generator.with_gpus
    cache_gib = _cache_gib(config, shape, MOST_CACHE_GIB[shares_gpus]) if on_gpu else EngineSettings().kv_cache_gib
    return EngineSettings(
        max_model_len=config.env.max_tokens,
        max_requests=_requests(config),
        dtype=engine_dtype(config),
        kv_cache_gib=generator.kv_cache_gib or cache_gib,
        tensor_parallel=generator.procs,
        enforce_eager=not (on_gpu and generator.cuda_graphs),
        worker_process=on_gpu and generator.worker_process,
        seed=config.training.seed,
        cache_on_update=config.training.cache_on_update,
        stall_seconds=config.deadlines.stall_seconds,
        gather_s=0.0 if on_gpu or config.training.deterministic else GATHER_S,
    )


def engine_dtype(config: RunConfig) -> str:
    """What the engine computes in, and the weights are published in."""
    return "bfloat16" if config.services.generator.with_gpus else "float32"


def _cache_gib(config: RunConfig, shape: ModelShape | None, most: float) -> float:
    """What all requests need at their longest, an evaluation's among them, in bfloat16; at most `most`."""
    if shape is None:
        return 0.0
    one = 2 * shape.num_hidden_layers * shape.key_value_size * 2 * config.env.max_tokens
    needed = _requests(config) * one / max(1, config.services.generator.procs) / GIB
    return max(min(1.1 * needed, most), 0.25)


def episodes_at_once(config: RunConfig) -> int:
    """Episodes in flight in an evaluation."""
    return AT_ONCE[config.services.generator.with_gpus]


def _requests(config: RunConfig) -> int:
    """Requests that the engine takes at once: on GPU those of all episodes that may be open, up to a bound."""
    if not config.services.generator.with_gpus:
        return REQUESTS
    size = config.algorithm.n_samples if config.algorithm else 1
    training = config.groups_per_step * (config.staleness + 1) * size
    # In few sizes: vLLM compiles for each of them anew.
    return min(-(-max(training, episodes_at_once(config)) // REQUESTS) * REQUESTS, MOST_REQUESTS)
