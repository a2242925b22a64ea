"""What is checked before anything starts. Each mistake is one sentence: what is wrong, the value, what is allowed.

`check_config` raises the first one; `--dry-run` goes through `CHECKS` and lists them all.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

from forge_env.core.errors import UserError
from forge_env.registry.registry import env_class
from forge_env.rollout.factory import make
from trainers.config import RunConfig
from trainers.metrics.sink import load_sink
from trainers.model.shape import find_shape
from trainers.objective.old_logprobs import window
from trainers.setup.figures import check_sets
from trainers.setup.hosts import check_hosts, count_hosts
from trainers.setup.placement import find_places, gpus_available, gpus_needed, gpus_per_host, gpus_wanted
from trainers.setup.ranges import check_numbers
from trainers.setup.read_config import give_dataset
from trainers.setup.weight_store import find_store


def check_config(config: RunConfig) -> None:
    """Check a config before anything is started, and hand its data set to the environment.

    Raises:
        UserError: for the first mistake.
    """
    for check in CHECKS:
        check(config)


def _check_environment(config: RunConfig) -> None:
    if config.env.name or config.algorithm is not None:  # supervised training may go without
        make(config.env.name, **config.env.options).declared_limits()
    config.env.fault_policy()
    _check_expert(config)


def _check_expert(config: RunConfig) -> None:
    """Where a run begins with demonstrations, the environment has somebody to give them."""
    if config.algorithm is None or hasattr(env_class(config.env.name), "expert"):
        return
    if config.warmup.steps > 0 or not config.model.path:
        why = f"--warmup.steps is {config.warmup.steps}" if config.warmup.steps > 0 else "there is no --model"
        raise UserError(
            f"the environment {config.env.name} has no expert, whose demonstrations the warm-up and the tiny model are "
            f"made from, and {why}: train a --model that can do some of it already, with --warmup.steps 0"
        )


def _check_own_parts(config: RunConfig) -> None:
    training = config.training
    if config.algorithm is None and (training.loss or training.advantages or training.reward):
        raise UserError(
            "--loss, --advantages and --reward are for policy gradients: supervised training has its own loss"
        )


def _check_pace(config: RunConfig) -> None:
    """The weights that sample a group are up to sync_interval - 1 optimizer steps old already when they are synced."""
    interval, staleness = config.training.sync_interval, config.staleness
    if staleness < interval - 1:
        raise UserError(
            f"--training.sync_interval is {interval} and --training.staleness is {staleness}: the engine's weights are "
            f"up to {interval - 1} steps old between two updates, so leave it out, or allow that: --training.staleness "
            f"{interval - 1}"
        )
    if config.evaluation.interval % interval:
        raise UserError(
            f"--evaluation.interval is {config.evaluation.interval} and --training.sync_interval is {interval}: the "
            f"engines have new weights every {interval} steps only, so evaluate at a multiple of {interval}"
        )


def _check_deterministic(config: RunConfig) -> None:
    """What `deterministic` promises, it promises of one engine on CPU, and of samples that wait for their weights."""
    training, services = config.training, config.services
    if not training.deterministic:
        return
    if config.staleness and training.sync_interval > window(config):
        raise UserError(
            f"--training.deterministic needs --training.sync_interval 1 or --training.old_logprobs trainer, and it is "
            f"{training.sync_interval}: which groups a step takes must not depend on the clock"
        )
    if config.staleness > window(config) - 1:
        raise UserError(
            f"--training.deterministic needs --training.staleness {window(config) - 1}, and it is {config.staleness}: "
            f"which weights sample a group must not depend on the clock"
        )
    for name in ("generator", "envs"):
        replicas = getattr(services, name).num_replicas
        if replicas > 1:
            raise UserError(
                f"--training.deterministic needs one replica of each service, and --services.{name}.num_replicas is "
                f"{replicas}: set it to 1"
            )
    for name in ("generator", "trainer", "ref_model"):
        if getattr(services, name).with_gpus:
            raise UserError(
                f"--training.deterministic is for CPU, and --services.{name}.with_gpus is true: a GPU's sums do not "
                f"repeat bit by bit"
            )


def _check_schedule(config: RunConfig) -> None:
    training = config.training
    if training.lr_schedule != "constant" and 0 < training.steps <= training.warmup_steps:
        raise UserError(
            f"--training.lr_schedule is {training.lr_schedule}, and --training.warmup_steps, {training.warmup_steps}, "
            f"leaves none of the {training.steps} steps to decay in: make it shorter"
        )


def _check_resume(config: RunConfig) -> None:
    if config.resume and not config.output:
        raise UserError("--resume needs --output FOLDER: the run to go on with")


def _check_model(config: RunConfig) -> None:
    """The folder of a local model is whole, and the model reads as many tokens as an episode may have."""
    if config.model.path and config.model.size != "tiny":
        raise UserError(
            f"--model.size is {config.model.size}, which is for a model made on the spot, and --model is "
            f"{config.model.path}: leave one of them out"
        )
    if config.model.path and Path(config.model.path).expanduser().exists():
        from agents.model_folder import find_model  # not above: check_packages comes first, and says whose agents it is

        find_model(config.model.path)
    shape = find_shape(config.model.path, config.model.size).shape
    if shape is None or not 0 < shape.max_position_embeddings < config.env.max_tokens:
        return
    name = "training.seq_len" if config.training.seq_len else "env.max_tokens"
    raise UserError(
        f"--{name} is {config.env.max_tokens}, and the model {config.model.path or 'made on the spot'} reads "
        f"{shape.max_position_embeddings} tokens at most: set it to that or less"
    )


def _check_services(config: RunConfig) -> None:
    services = config.services
    if services.trainer.num_replicas > 1:
        raise UserError(
            f"--services.trainer.num_replicas is {services.trainer.num_replicas}, and there is one trainer, whose "
            "processes share the work: set it to 1, and --services.trainer.procs to the number of processes"
        )
    if services.envs.procs > 1:
        raise UserError(
            f"--services.envs.procs is {services.envs.procs}, and environments do not share one's work: set it to 1, "
            f"and --services.envs.num_replicas to the number of processes"
        )
    if services.envs.with_gpus:
        raise UserError("--services.envs.with_gpus is true, and environments run on the CPU: set it to false")
    if services.generator.procs > 1 and not services.generator.with_gpus:
        raise UserError(
            f"--services.generator.procs is {services.generator.procs} and it has no GPUs: an engine on CPU is one "
            "process; set it to 1, or --generator.with_gpus true"
        )
    if services.ref_model.procs > 1:
        raise UserError(
            f"--services.ref_model.procs is {services.ref_model.procs}; the reference model is one process: set it to "
            "1, or to 0 for none"
        )
    if services.ref_model.with_gpus and services.ref_model.procs == 0:
        raise UserError(
            "--services.ref_model.with_gpus is true and --services.ref_model.procs is 0, which is no reference model: "
            "--ref_model.procs 1"
        )


def _check_weights(config: RunConfig) -> None:
    """The weight store can carry the weights, as far as their size is known yet."""
    try:
        shape = find_shape(config.model.path, config.model.size).shape
    except UserError:
        return  # said by the check of the model
    find_store(config, shape.parameters if shape else 0)


_UNUSABLE = {
    "pipeline_parallel_degree": "the loss needs the logprobs of a whole row on every rank",
    "context_parallel_degree": "the loss needs the logprobs of a whole row on every rank",
    "expert_parallel_degree": "the models are dense, and have no experts to spread",
    "data_parallel_replicate_degree": "this version shards the weights over all data-parallel ranks",
}


def _check_parallelism(config: RunConfig) -> None:
    for name, reason in _UNUSABLE.items():
        degree = getattr(config.parallelism, name)
        if degree > 1:
            raise UserError(f"--parallelism.{name} is {degree}, and {reason}: set it to 1")
    tensor, shard = config.parallelism.tensor_parallel_degree, config.parallelism.data_parallel_shard_degree
    procs = config.services.trainer.procs
    if shard == -1:
        fits, needed = procs % tensor == 0, -(-procs // tensor) * tensor
    else:
        fits, needed = procs == tensor * shard, tensor * shard
    if not fits:
        processes = "trainer process" if needed == 1 else "trainer processes"
        raise UserError(
            f"parallelism needs {needed} {processes}, services.trainer.procs is {procs}: --trainer.procs {needed}"
        )


def _check_heads(config: RunConfig) -> None:
    try:
        shape = find_shape(config.model.path, config.model.size).shape
    except UserError:
        return  # said by the check of the model
    if shape is None:
        return
    degrees = {
        "parallelism.tensor_parallel_degree": config.parallelism.tensor_parallel_degree,
        "services.generator.procs": config.services.generator.procs,
    }
    for name, degree in degrees.items():
        for what in ("num_attention_heads", "num_key_value_heads"):
            heads = getattr(shape, what)
            if heads % degree:
                raise UserError(
                    f"--{name} is {degree}, which does not divide the model's {what}, {heads}: choose "
                    f"{_divisors(shape.num_attention_heads, shape.num_key_value_heads)}"
                )


def _divisors(*numbers: int) -> str:
    """The common divisors, as "1, 2 or 4"."""
    found = [str(n) for n in range(1, min(numbers) + 1) if not any(number % n for number in numbers)]
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _check_gpus(config: RunConfig) -> None:
    if count_hosts(config) > 1:
        return  # see _check_places
    needed = gpus_needed(config)
    available = gpus_available() if needed else 0
    if needed > available:
        split = ", ".join(f"{name} {count}" for name, count in gpus_wanted(config).items())
        raise UserError(
            f"the run needs {needed} GPU{'s' * (needed != 1)}, {available} are available: {split}; "
            "ask for fewer processes, or put a service on the CPU with --SERVICE.with_gpus false"
        )


def _check_sharing(config: RunConfig) -> None:
    hosts = count_hosts(config)
    if config.launcher.share_gpus == "yes" and hosts > 1:
        raise UserError(
            f"--launcher.share_gpus is yes, which is for the GPUs of one machine, and the run has {hosts} hosts: leave "
            "it out"
        )


def _check_places(config: RunConfig) -> None:
    """The processes fit on the hosts, and those that work closest together on one."""
    hosts = count_hosts(config)
    if hosts == 1 or not gpus_wanted(config):
        return
    per_host, places = gpus_per_host(config), find_places(config)
    if any(place.gpus and place.gpus[-1] >= per_host for each in places.values() for place in each):
        split = ", ".join(f"{name} {count}" for name, count in gpus_wanted(config).items())
        raise UserError(
            f"the run does not fit on {hosts} hosts with {per_host} GPUs each (--launcher.gpus_per_host): {split}, and "
            "all GPUs of one generator are on one host"
        )
    (trainer,) = places["trainer"]
    procs, tensor = config.services.trainer.procs, max(1, config.parallelism.tensor_parallel_degree)
    if procs % trainer.num_hosts or procs // trainer.num_hosts % tensor:
        raise UserError(
            f"--services.trainer.procs is {procs}, which {trainer.num_hosts} hosts of {per_host} GPUs do not share "
            f"evenly in whole groups of parallelism.tensor_parallel_degree, {tensor}"
        )


def _check_metrics(config: RunConfig) -> None:
    metrics = config.metrics
    if metrics.wandb != "off" and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"--metrics.wandb is {metrics.wandb} and wandb is not installed: it comes with the extra of that name, or "
            "by pip install 'wandb>=0.22'"
        )
    if metrics.wandb == "online" and not os.environ.get("WANDB_API_KEY"):
        raise UserError(
            "--metrics.wandb is online and WANDB_API_KEY is not set: set it to your key, or use --metrics.wandb offline"
        )
    for target in metrics.sinks:
        load_sink(target)


CHECKS: tuple[Callable[[RunConfig], None], ...] = (
    check_numbers,
    give_dataset,
    _check_environment,
    check_sets,
    _check_own_parts,
    _check_metrics,
    _check_pace,
    _check_deterministic,
    _check_schedule,
    _check_resume,
    _check_model,
    _check_services,
    _check_weights,
    _check_parallelism,
    _check_heads,
    check_hosts,
    _check_sharing,
    _check_gpus,
    _check_places,
)
