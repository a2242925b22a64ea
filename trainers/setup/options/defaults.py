"""Defaults for each case of training: a setting of -1 gets the value of its case from the table of this file.

docs/configuration.md shows the table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, TypeVar

from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits
from forge_env.registry.registry import env_class
from forge_env.rollout.factory import declared_limits
from forge_env.utils.settings import BY_CASE, with_values
from trainers.config import RunConfig
from trainers.families.shape import ModelShape
from trainers.settings.mixture import read_names

C = TypeVar("C", bound=RunConfig)


class Default(NamedTuple):
    """The default of a setting in the case of a run."""

    value: float
    reason: str
    """Printed in brackets behind the value; "" does not print the default."""
    is_taken: bool
    """Whether the run has this value because the user gave none."""


class Rates(NamedTuple):
    """Learning rates of AdamW for all weights of a model of this size."""

    parameters: float
    policy_gradient: float
    """Of policy gradients."""
    sft: float
    """Of the warm-up, and of supervised training."""


RATES = (Rates(1.5e6, 6e-4, 3e-3), Rates(1e8, 6e-5, 6e-4), Rates(8e9, 1e-6, 1e-5))
"""A smaller model than the first has its rates, and a larger one than the last; in between they follow a straight line
in logarithms. The wider a layer, the smaller AdamW's best rate (muP, arXiv 2203.03466).

The first two are measured on models made on the spot (benchmarks/results/demo.md, docs/gpu.md), and the last is the
default of TRL and verl. Measured between them: 135 million pretrained weights went from 0.016 to 0.54 in 60 steps at
5e-5, from 0.03 to 0.58 in 120 at 2e-5, and from 0.031 to 0.039 in 40 at 1e-6. 98 million went from 0.25 to 0.63 in 180
steps at 2e-5, and from 0.18 to 0.92 at 6e-5.
"""
ADAPTER_FACTOR = 10
"""Rate of adapters, as a multiple of the rate of all weights (https://thinkingmachines.ai/blog/lora/)."""


class Case(NamedTuple):
    name: str
    rising_part: int
    """The learning rate of policy gradients rises over the steps divided by this, 10 steps at most."""
    warmup_steps: int
    limits: EpisodeLimits


ENV_EPISODES, ENV_CORES = 128, 4
"""With engines on GPUs, an environment has a process for each 128 episodes at once and 4 cores. At 512
and 16, steps of short turns were 1.7 times as fast as with one process (benchmarks/results/gpu.md)."""
MICRO_BATCH = "training.max_tokens_per_micro_batch"
LARGER_MICRO_BATCHES = (65536, 32768, 16384, 8192)
"""Of policy gradients on GPUs: the first that the card has room for, see `trainers.setup.plan`. A step of 135 million
parameters on 30,000 tokens took 0.20 s in two micro-batches and 0.12 s in one (H200): the host's launches are its time.
"""
SMALL = EpisodeLimits(max_turns=3, max_turn_tokens=32, max_tokens=512, episode_seconds=300.0)
TINY = Case("a tiny model made on the spot", 20, 200, SMALL)
LARGER = Case("a model of size 100m made on the spot", 20, 200, SMALL)
ALL_WEIGHTS = Case("all weights of a given model", 2, 0, EpisodeLimits())
ADAPTERS = Case("adapters of a given model", 2, 0, EpisodeLimits())


def case_of(config: RunConfig) -> Case:
    """What a run trains."""
    if config.model.path:
        return ADAPTERS if config.lora.is_on else ALL_WEIGHTS
    return LARGER if config.model.size == "100m" else TINY


def rates_of(shape: ModelShape | None) -> Rates:
    """The learning rates for all weights of a model, to one digit; of a large model if its sizes are not known."""
    size = min(max(shape.parameters if shape else math.inf, RATES[0].parameters), RATES[-1].parameters)
    low, high = next(pair for pair in pairwise(RATES) if size <= pair[1].parameters)
    part = math.log(size / low.parameters) / math.log(high.parameters / low.parameters)
    policy_gradient, sft = (float(f"{a * (b / a) ** part:.0e}") for a, b in zip(low[1:], high[1:], strict=True))
    return Rates(size, policy_gradient, sft)


def rising_steps(config: RunConfig, steps: int) -> int:
    """The number of optimizer steps over which the learning rate rises from 0.

    `training.warmup_steps` stays -1: its default follows the number of steps, which may change when a run goes on.
    """
    if config.training.warmup_steps != BY_CASE:
        return config.training.warmup_steps
    if config.algorithm is None and not config.model.path:
        return 0
    return min(10, steps // case_of(config).rising_part)


def take_defaults(config: C, shape: ModelShape | None) -> tuple[C, dict[str, Default]]:
    """Give each setting that is -1 the default of its case, but `training.warmup_steps`: see `rising_steps`.

    Returns the config with these values, and all defaults by the names of the settings. `shape` is None if the sizes of
    the model are not known.
    """
    defaults = {
        name: Default(value, reason, is_taken=attrgetter(name)(config) == BY_CASE)
        for name, value, reason in _defaults(config, shape)
    }
    return with_values(
        config, {name: default.value for name, default in defaults.items() if default.is_taken}
    ), defaults


def _defaults(config: RunConfig, shape: ModelShape | None) -> Iterator[tuple[str, float, str]]:
    """Name, value and reason of each default. A limit is of training.seq_len, else of the environment or the case."""
    case, env, longest = case_of(config), config.env, config.training.seq_len
    yield "warmup.steps", case.warmup_steps, case.name if config.algorithm else ""
    rates, factor = rates_of(shape), ADAPTER_FACTOR if config.lora.is_on else 1
    count = shape.parameters if shape is not None and config.model.path else 0
    size = f", {count / 1e6:,.0f} million parameters" if count >= 1e6 else f", {count:,} parameters" if count else ""
    policy_gradient, sft = (float(f"{factor * rate:g}") for rate in (rates.policy_gradient, rates.sft))
    yield "training.learning_rate", policy_gradient if config.algorithm else sft, case.name + size
    yield MICRO_BATCH, 4096, ""
    yield "services.envs.num_replicas", *_env_processes(config)
    warmup = case.warmup_steps if config.warmup.steps == BY_CASE else config.warmup.steps
    has_demonstrations = warmup > 0 if config.algorithm else env.name
    yield "warmup.learning_rate", sft, case.name + size if has_demonstrations else ""
    try:
        env_limits = declared_limits(env_class(env.name), env.options, name=env.name) if env.name else {}
    except UserError:
        env_limits = {}  # the checks of the environment report it
    limits_of_case = ("max_turns", "max_turn_tokens", "max_tokens")
    limits = {name: (value, case.name if name in limits_of_case else "") for name, value in asdict(case.limits).items()}
    limits |= {name: (value, f"declared by {env.name}") for name, value in env_limits.items()}
    if longest > 0:
        limits |= dict.fromkeys(("max_tokens", "max_turn_tokens"), (longest, "training.seq_len"))
    elif shape is not None and 0 < shape.max_position_embeddings < limits["max_tokens"][0]:
        limits["max_tokens"] = (shape.max_position_embeddings, "all that the model reads")
    for name, (value, reason) in limits.items():
        yield f"env.{name}", value, reason if env.name else ""


def _env_processes(config: RunConfig) -> tuple[int, str]:
    """The processes of each environment, and why there are several."""
    training, size = config.training, config.algorithm.n_samples if config.algorithm else 1
    episodes, cores = training.groups_per_step * (training.most_behind + 1) * size, len(os.sched_getaffinity(0))
    try:
        kinds = [env_class(each.name) for each in read_names(config.env.name).values()]
    except UserError:
        kinds = []  # the checks of the environment report it
    if not config.services.generator.with_gpus or not kinds or any(kind.one_process for kind in kinds):
        return 1, ""
    count = max(1, min(episodes // len(kinds) // ENV_EPISODES, cores // ENV_CORES))
    return count, f"{episodes} episodes at once, {cores} cores" if count > 1 else ""
