"""The plan of a run, for --dry-run: what its settings come to, where each process lives, what it needs and lacks.

Nothing is started and nothing is downloaded to make it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.runtime.weights import KEEP, CudaIpcStore, NcclStore, WeightStore
from trainers.config import RunConfig
from trainers.model.shape import FoundModel, ModelShape, find_shape
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import about_ratio
from trainers.objective.plugins import names_reference, resolve
from trainers.setup.checks import CHECKS
from trainers.setup.engine import engine_settings
from trainers.setup.hosts import count_hosts
from trainers.setup.memory import (
    BFLOAT16,
    FLOAT32,
    GIB,
    Memory,
    generator_memory,
    reference_memory,
    store_memory,
    trainer_memory,
)
from trainers.setup.packages import check_ours, check_packages, missing_packages
from trainers.setup.parser import leaves
from trainers.setup.placement import Process, gpus_needed, gpus_per_host, needs_reference, processes
from trainers.setup.read_config import data_file
from trainers.setup.weight_store import find_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would be."""

    settings: list[tuple[str, Any, Any]]
    """Dotted name, value and default of every setting, in the order of the config."""
    meaning: list[tuple[str, str]]
    """What the settings come to, in words."""
    processes: list[tuple[Process, Memory | None]]
    """Every process with its estimate; None where the model's sizes are not known."""
    missing: list[str]
    """What is not on this machine."""
    problems: list[str]
    """Why it would not start: the first of them is what a start says."""


def make_plan(config: RunConfig) -> Plan:
    """Work out the plan of a run. Mistakes are listed, and what they leave undecided is left out.

    Raises:
        UserError: for a foreign package of our name, without which nothing can be worked out.
    """
    check_ours()
    mistakes = _mistakes(config)
    model = _model(config)
    placed = _placed(config)
    return Plan(
        settings=_settings(config),
        meaning=_meaning(config, model),
        processes=[(process, _memory(config, process, model.shape)) for process in placed],
        missing=_missing(config, model),
        problems=mistakes,
    )


def page_objective(config: RunConfig) -> Objective | None:
    """The objective that the page of a config makes of it; None for supervised training.

    Raises:
        UserError: for settings out of range or that contradict each other, or a part of the user's own that cannot be
            used.
    """
    make = getattr(sys.modules[type(config).__module__], "objective", None)
    if make is None:
        return None
    return resolve(make(config), config)


def _mistakes(config: RunConfig) -> list[str]:
    """Every mistake once, in the order in which a start would meet them."""
    found = []
    checks: list[Callable[[], object]] = [check_packages]
    checks += [partial(check, config) for check in (*CHECKS, page_objective, _check_data)]
    for check in checks:
        try:
            check()
        except UserError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def _check_data(config: RunConfig) -> None:
    data = config.dataset
    file = data_file(data.path, data.split)
    if file is not None and not file.is_file():
        raise UserError(f"--dataset.path is {data.path!r}, and there is no file {file}")


def _settings(config: RunConfig) -> list[tuple[str, Any, Any]]:
    default = type(config)()
    return [(name, _get(config, name), _get(default, name)) for name, _ in leaves(config) if name != "dry_run"]


def _get(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def _model(config: RunConfig) -> FoundModel:
    try:
        return find_shape(config.model.path, config.model.size)
    except UserError:
        return FoundModel(shape=None, where=f"not found: {config.model.path}")


def _placed(config: RunConfig) -> list[Process]:
    try:
        return processes(config)
    except UserError:  # a loss of the user's own that cannot be used: the page's own then says what is started
        return processes(replace(config, training=replace(config.training, loss="")))


# ---- what the settings come to ----


def _meaning(config: RunConfig, model: FoundModel) -> list[tuple[str, str]]:
    return [
        ("model", _about_model(model)),
        ("environment", _about_env(config)),
        *_about_steps(config),
        ("algorithm", _about_algorithm(config)),
        *_about_ratio(config),
        ("KL reference", _about_reference(config)),
        ("weights", _about_weights(config)),
        *_about_store(config, model.shape),
        ("optimizer", _about_optimizer(config)),
        ("precision", f"trainer {_dtype(config)} over float32 weights, engine "
         f"{'bfloat16' if config.services.generator.with_gpus else 'float32'}"),
    ]  # fmt: skip


def _about_ratio(config: RunConfig) -> list[tuple[str, str]]:
    if config.algorithm is None:
        return []
    try:
        return [("importance ratio", about_ratio(config))]
    except UserError:
        return []


def _about_weights(config: RunConfig) -> str:
    interval, staleness = config.training.sync_interval, config.staleness
    often = "after every optimizer step" if interval == 1 else f"after every {interval} optimizer steps"
    age = f"weights at most {_count(staleness, 'step')} older than those" if staleness else "the weights"
    return f"go to the engine {often}; a group is sampled from {age} that it trains"


def _about_store(config: RunConfig, shape: ModelShape | None) -> list[tuple[str, str]]:
    found = _store(config, shape)
    return [("", found[1])] if found else []


def _store(config: RunConfig, shape: ModelShape | None) -> tuple[WeightStore, str] | None:
    """The weight store; None where it depends on what is not known, or there can be none."""
    try:
        return find_store(config, shape.parameters) if shape else None
    except UserError:
        return None


def _about_optimizer(config: RunConfig) -> str:
    training = config.training
    rise = f", rising over {_count(training.warmup_steps, 'step')}" if training.warmup_steps else ""
    rate = f"learning rate {training.learning_rate:g} {training.lr_schedule}{rise}"
    return f"AdamW, {rate}, weight decay {training.weight_decay:g}, gradient norm at most {training.max_grad_norm:g}"


def _about_model(model: FoundModel) -> str:
    if model.shape is None:
        return f"{model.where}; its sizes are not known here"
    shape = model.shape
    return (
        f"{model.where}: {shape.parameters:,} parameters, {shape.num_hidden_layers} layers of {shape.hidden_size}, "
        f"vocabulary {shape.vocab_size:,}"
    )


def _about_env(config: RunConfig) -> str:
    env, data = config.env, config.dataset
    tasks = f"the split {data.split} of {data.path}" if data.path else "its own tasks"
    limits = f"{_count(env.max_turns, 'turn')}, {env.max_turn_tokens:,} tokens a turn, {env.max_tokens:,} in all"
    every = f" and evaluated every {config.evaluation.interval} steps" if config.evaluation.interval else ""
    return f"{env.name}, {data.tasks:,} of {tasks}, {data.held_out:,} held out{every}; an episode has at most {limits}"


def _about_steps(config: RunConfig) -> list[tuple[str, str]]:
    training, section = config.training, config.algorithm
    if section is None:
        demonstrations = config.warmup.batch_size
        tokens = demonstrations * config.env.max_tokens
        return [
            ("optimizer step", f"{demonstrations} demonstrations, at most {tokens:,} tokens"),
            ("run", f"{_count(training.steps, 'optimizer step')}"),
        ]
    groups, size = config.groups_per_step, section.n_samples
    episodes = groups * size
    whole = f"{groups * training.steps:,} groups, {episodes * training.steps:,} episodes"
    return [
        (
            "optimizer step",
            f"{_count(groups, 'group')} = batch_size {training.batch_size} x gradient_accumulation_steps "
            f"{training.gradient_accumulation_steps}; {episodes:,} episodes = {groups} x n_samples {size}; at most "
            f"{episodes * config.env.max_tokens:,} tokens",
        ),
        ("run", f"{_count(training.steps, 'optimizer step')}: {whole}"),
    ]


def _about_algorithm(config: RunConfig) -> str:
    section = config.algorithm
    if section is None:
        return "supervised: minus the logprob of the expert's tokens"
    try:
        objective = page_objective(config)
    except UserError:
        return config.algorithm_name
    assert objective is not None
    loss = config.training.loss or type(objective.loss).__name__
    own = f", advantages {config.training.advantages}" if config.training.advantages else ""
    return (
        f"{config.algorithm_name}, loss {loss}, aggregation {section.aggregation}, correction {section.correction}, "
        f"temperature {section.temperature:g}{own}"
    )


def _about_reference(config: RunConfig) -> str:
    try:
        asked, own = names_reference(config), needs_reference(config)
    except UserError:
        return "not known: the loss cannot be used"
    if own:
        return f"a frozen model of its own on {'GPU' if config.services.ref_model.with_gpus else 'CPU'}"
    return "the generator's own logprobs: there is no ref_model" if asked else "none: nothing asks for it"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


# ---- memory ----


def _dtype(config: RunConfig) -> str:
    chosen = config.training.dtype
    return chosen if chosen != "auto" else "bfloat16" if config.services.trainer.with_gpus else "float32"


def _memory(config: RunConfig, process: Process, shape: ModelShape | None) -> Memory | None:
    if process.service in ("controller", "envs"):
        return Memory()
    if shape is None:
        return None
    found = _store(config, shape)
    on_gpu = found is not None and isinstance(found[0], CudaIpcStore | NcclStore)
    receives = found is not None and isinstance(found[0], NcclStore)
    if process.service == "store":
        return Memory() if on_gpu else store_memory(shape)
    compute = FLOAT32 if process.gpu is None else BFLOAT16
    tokens = max(config.training.max_tokens_per_micro_batch, config.env.max_tokens)
    if process.service == "generator":
        cache = engine_settings(config, shape).kv_cache_gib * GIB
        return generator_memory(
            shape, tensor=config.services.generator.procs, compute=compute, cache=cache, receives=receives
        )
    if process.service == "ref_model":
        return reference_memory(shape, tokens=tokens, compute=compute, receives=receives)
    tensor = max(1, config.parallelism.tensor_parallel_degree)
    return trainer_memory(
        shape,
        shard=max(1, config.services.trainer.procs // tensor),
        tensor=tensor,
        tokens=tokens,
        compute=BFLOAT16 if _dtype(config) == "bfloat16" else FLOAT32,
        checkpointing=config.training.activation_checkpoint,
        compiled=config.training.compile,
        kept_logits=config.training.keep_logits_gib * GIB if process.gpu is not None else 0,
        versions=KEEP if on_gpu and process.rank == 0 else 0,
    )


# ---- what is missing ----


def _missing(config: RunConfig, model: FoundModel) -> list[str]:
    found = [f"{package} is not installed" for package in missing_packages()]
    found += [model.missing] if model.missing else []
    if model.shape is None:
        found.append("the sizes of the model, and so the estimates of its memory")
    data = config.dataset
    if data.path and data_file(data.path, data.split) is None and not Path(data.path).exists():
        found.append(f"the data set {data.path} is no local file: the start reads it from the hub, or from its cache")
    try:
        needed = gpus_needed(config)
    except UserError:
        needed = 0
    available = count_hosts(config) * gpus_per_host(config) if needed else 0
    if needed > available:
        found.append(f"{needed - available} of {needed} GPUs")
    return found
