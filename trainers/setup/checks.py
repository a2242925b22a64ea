"""Checks of a config before anything starts. Each mistake is one sentence: what is wrong, the value, what is allowed.

`make_plan` calls the checks and lists their sentences; a start raises the first one.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from agents.generator.lora_slot import RANKS
from agents.model_folder import find_model as find_folder
from forge_env.core.env import Env
from forge_env.core.errors import UserError
from forge_env.registry.registry import env_class
from forge_env.rollout.factory import EnvFactory, make
from trainers.config import RunConfig
from trainers.lora import check_config, check_trainer, lora_of
from trainers.metrics.sink import load_sink
from trainers.model.shape import FoundModel, ModelShape, find_shape
from trainers.setup.memory import gib, host_bytes
from trainers.setup.options.read_config import data_file
from trainers.setup.placement import Placement, gpus_available
from trainers.setup.sizing.estimates import trainer_dtype


def make_environment(config: RunConfig) -> EnvFactory | None:
    """Make the environments' factory; None for supervised training without an environment.

    Raises:
        UserError: for an environment or options that cannot be used.
    """
    factory = None
    if config.env.name or config.algorithm is not None:
        factory = make(config.env.name, **config.env.options)
        factory.declared_limits()
    config.env.fault_policy()
    if config.algorithm is not None:
        size = config.algorithm.n_samples
        if 1 < size < config.env.min_valid:
            raise UserError(
                f"--env.min_valid is {config.env.min_valid}, and a group has --{config.algorithm_name}.n_samples, "
                f"{size}, episodes, so that none would be trained on: set it to {size} or less"
            )
        _check_expert(config, env_class(config.env.name))
    return factory


def _check_expert(config: RunConfig, environment: type[Env]) -> None:
    """Check that the environment has an expert, if the run begins with demonstrations."""
    if hasattr(environment, "expert"):
        return
    if config.warmup.steps > 0 or not config.model.path:
        why = f"--warmup.steps is {config.warmup.steps}" if config.warmup.steps > 0 else "there is no --model"
        raise UserError(
            f"the environment {config.env.name} has no expert, whose demonstrations the warm-up and the tiny model are "
            f"made from, and {why}: train a --model that can do some of it already, with --warmup.steps 0"
        )


def check_plugins(config: RunConfig) -> None:
    training = config.training
    if config.algorithm is None and (training.loss or training.advantages or training.reward):
        raise UserError(
            "--loss, --advantages and --reward are for policy gradients: supervised training has its own loss"
        )


def check_pace(config: RunConfig) -> None:
    """Check the staleness bound: between two syncs the engine's weights get up to sync_interval - 1 steps old."""
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


def check_deterministic(config: RunConfig, old_logprobs: str) -> None:
    """Check `deterministic`, which needs one engine on a CPU, and groups that do not overlap with training."""
    training, services = config.training, config.services
    window = training.sync_interval if old_logprobs == "trainer" else 1
    if not training.deterministic:
        return
    if config.staleness and training.sync_interval > window:
        raise UserError(
            f"--training.deterministic needs --training.sync_interval 1 or --training.old_logprobs trainer, and it is "
            f"{training.sync_interval}: which groups a step takes must not depend on the clock"
        )
    if config.staleness > window - 1:
        raise UserError(
            f"--training.deterministic needs --training.staleness {window - 1}, and it is {config.staleness}: "
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


def check_schedule(config: RunConfig) -> None:
    training = config.training
    if training.lr_schedule != "constant" and 0 < training.steps <= training.warmup_steps:
        raise UserError(
            f"--training.lr_schedule is {training.lr_schedule}, and --training.warmup_steps, {training.warmup_steps}, "
            f"leaves none of the {training.steps} steps to decay in: make it shorter"
        )


def check_resume(config: RunConfig) -> None:
    if config.resume and not config.output:
        raise UserError("--resume needs --output FOLDER: the run to go on with")
    if config.checkpoint.step and not config.resume:
        raise UserError(
            f"--checkpoint.step is {config.checkpoint.step}, and needs --resume: it is the checkpoint that a run goes "
            "on from; give both, or leave it out"
        )
    if config.output and not config.resume:
        check_output(config.output)


def check_output(path: str) -> None:
    """A new run has a folder of its own.

    Raises:
        UserError: when there is something already.
    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"--output {path} exists and is not empty: it may hold another run; go on with that one by --resume, or "
            f"choose another folder"
        )


def find_model(config: RunConfig) -> FoundModel:
    """Find the model of a run without downloading it, and check that a local folder is complete.

    Raises:
        UserError: when there is none, or it lacks something.
    """
    if config.model.path and config.model.size != "tiny":
        raise UserError(
            f"--model.size is {config.model.size}, which is for a model made on the spot, and --model is "
            f"{config.model.path}: leave one of them out"
        )
    if config.model.path and Path(config.model.path).expanduser().exists():
        find_folder(config.model.path)
    return find_shape(config.model.path, config.model.size)


def check_thinking(config: RunConfig, shape: ModelShape | None) -> None:
    """Check `env.thinking` and its budget against the turn limit and the model, as far as the model is known.

    Raises:
        UserError: for a budget that leaves no room for an answer, or thinking that the model does not have.
    """
    env, folder = config.env, Path(config.model.path).expanduser()
    if env.max_thinking_tokens and env.thinking == "off":
        raise UserError(
            f"--env.max_thinking_tokens is {env.max_thinking_tokens}, and --env.thinking is off, so that there is no "
            "thought to limit: set the latter to on or template, or the former to 0"
        )
    if env.max_thinking_tokens >= env.max_turn_tokens:
        raise UserError(
            f"--env.max_thinking_tokens is {env.max_thinking_tokens}, and a turn has --env.max_turn_tokens, "
            f"{env.max_turn_tokens}, at most: raise the latter, which the thought and the answer share, or set the "
            "former to 0"
        )
    if env.thinking != "off" and config.model.path and (folder / "config.json").is_file():
        from agents.renderer.families import check_thinking as check  # slow import, which most runs do not need

        check(folder, env.thinking)
    elif env.thinking == "on" and shape is not None and not shape.thinks:
        raise UserError(
            f"--env.thinking is on, and the model {config.model.path} has none: set it to off, or choose another model"
        )


def check_length(config: RunConfig, shape: ModelShape | None) -> None:
    """Check that an episode fits into the model's context."""
    if shape is None or not 0 < shape.max_position_embeddings < config.env.max_tokens:
        return
    name = "training.seq_len" if config.training.seq_len else "env.max_tokens"
    raise UserError(
        f"--{name} is {config.env.max_tokens}, and the model {config.model.path or 'made on the spot'} reads "
        f"{shape.max_position_embeddings} tokens at most: set it to that or less"
    )


def check_services(config: RunConfig) -> None:
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
    if services.ref_model.with_gpus and services.ref_model.procs == 0:
        raise UserError(
            "--services.ref_model.with_gpus is true and --services.ref_model.procs is 0, which is no reference model: "
            "--ref_model.procs 1"
        )


_UNUSABLE = {
    "pipeline_parallel_degree": "the loss needs the logprobs of a whole row on every rank",
    "expert_parallel_degree": "the models are dense, and have no experts to spread",
}


def check_parallelism(config: RunConfig) -> None:
    for name, reason in _UNUSABLE.items():
        degree = getattr(config.parallelism, name)
        if degree > 1:
            raise UserError(f"--parallelism.{name} is {degree}, and {reason}: set it to 1")
    parallelism, procs = config.parallelism, config.services.trainer.procs
    shard = parallelism.data_parallel_shard_degree
    others = (
        parallelism.tensor_parallel_degree
        * parallelism.context_parallel_degree
        * parallelism.data_parallel_replicate_degree
    )
    if shard == -1:
        fits, needed = procs % others == 0, -(-procs // others) * others
    else:
        fits, needed = procs == others * shard, others * shard
    if not fits:
        processes = "trainer process" if needed == 1 else "trainer processes"
        raise UserError(
            f"parallelism needs {needed} {processes}, services.trainer.procs is {procs}: --trainer.procs {needed}"
        )


def check_optimizer(config: RunConfig) -> None:
    """Weights and AdamW's moments can be kept as they are wanted."""
    training = config.training
    if training.cpu_offload and not config.services.trainer.with_gpus:
        raise UserError(
            "--training.cpu_offload is true, which is for a trainer on GPU, and this one is on the CPU, whose memory "
            "has the weights already: leave it out, or use --trainer.with_gpus true"
        )
    if training.optimizer_state == "bfloat16" and not config.services.trainer.with_gpus:
        raise UserError(
            "--training.optimizer_state is bfloat16, which is for a trainer on GPU, and this one is on the CPU: set it "
            "to float32 or 8bit"
        )
    if training.optimizer_state == "bfloat16" and training.cpu_offload:
        raise UserError(
            "--training.optimizer_state is bfloat16 and --training.cpu_offload is true, by which the optimizer runs on "
            "the CPU, where there is none with such a state: set it to float32 or 8bit, or leave cpu_offload out"
        )
    if training.optimizer_state == "8bit" and importlib.util.find_spec("torchao") is None:
        raise UserError(
            "--training.optimizer_state is 8bit and torchao is not installed: it comes with the extra of that name, or "
            "by pip install 'torchao>=0.18'"
        )


def check_lora(config: RunConfig) -> None:
    """Adapters are of known matrices, and the other settings work with them."""
    check_config(config.lora)
    training, procs = config.training, config.services.ref_model.procs
    check_trainer(lora_of(config.lora), training.optimizer_state, cpu_offload=training.cpu_offload)
    if config.lora.publish == "adapter" and not 1 <= config.lora.rank <= RANKS[-1]:
        raise UserError(
            f"--lora.publish is adapter and --lora.rank is {config.lora.rank}: the engine takes adapters of rank 1 to "
            f"{RANKS[-1]}: set the rank to that, or --lora.publish to merged"
        )
    if config.lora.rank and procs:
        raise UserError(
            f"--services.ref_model.procs is {procs} and --lora.rank is {config.lora.rank}: a trainer of adapters is "
            "its own reference model, without them: set the former to 0"
        )


def check_host_memory(config: RunConfig, shape: ModelShape | None, host: float) -> None:
    """Check that the host has room for offloaded weights.

    Args:
        config: of the run.
        shape: of the model; None where its sizes are not known.
        host: bytes of this machine's memory, see `host_memory`; 0 is not checked.
    """
    training = config.training
    if not (training.cpu_offload and config.services.trainer.with_gpus and shape and host):
        return
    replicas = max(1, config.parallelism.data_parallel_replicate_degree)
    ranks = max(1, config.services.trainer.procs // replicas)
    needed = replicas * host_bytes(shape, training.optimizer_state, ranks=ranks)
    if needed > host:
        raise UserError(
            f"--training.cpu_offload is true, and weights, gradients and optimizer state take {gib(needed)} GiB of the "
            f"host, which has {gib(host)}: leave it out, or make them smaller with --training.optimizer_state 8bit"
        )


def host_memory(placement: Placement) -> float:
    """Bytes of this machine's memory, where it is the only one and has GPUs; otherwise 0."""
    if placement.num_hosts > 1 or not gpus_available():
        return 0.0
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def check_context(config: RunConfig) -> None:
    """Check that the longest row can be cut over the ranks of context parallelism."""
    degree, longest = config.parallelism.context_parallel_degree, config.env.max_tokens
    least = 128 if config.services.trainer.with_gpus else 2  # of a rank's part: trainers.titan.context
    if degree > 1 and degree * least > longest:
        name = "training.seq_len" if config.training.seq_len else "env.max_tokens"
        raise UserError(
            f"--parallelism.context_parallel_degree is {degree}, which cuts rows into parts of at least {least} "
            f"tokens, and --{name}, the longest row, is {longest}: set the degree to {max(1, longest // least)} or less"
        )


def check_attention(config: RunConfig) -> None:
    """Check that the trainer can use the attention that was asked for; by default it takes one that it can."""
    training, degree = config.training, config.parallelism.context_parallel_degree
    wanted = f"--training.attention is {training.attention}"
    if not config.services.trainer.with_gpus:
        if training.attention not in ("", "sdpa"):
            raise UserError(
                f"{wanted}, which is for a trainer on GPU, and this one is on the CPU: set it to sdpa, or leave it out"
            )
    elif training.attention == "varlen":
        if degree > 1:
            raise UserError(
                f"{wanted}, which cannot share a row between processes, and --parallelism.context_parallel_degree is "
                f"{degree}: set it to flex, or leave it out"
            )
        if trainer_dtype(config) == "float32":
            raise UserError(
                f"{wanted}, which computes in bfloat16, and --training.dtype is float32: set the former to flex, or "
                "leave it out"
            )
    elif training.attention == "sdpa" and (training.packing or degree > 1):
        cause = "training.packing is true" if training.packing else f"parallelism.context_parallel_degree is {degree}"
        raise UserError(
            f"{wanted} and --{cause}: for rows that share a sequence, or are shared, sdpa builds a mask of tokens x "
            "tokens, which the plan of the GPU's memory has no room for: set it to flex, or leave it out"
        )


def check_heads(config: RunConfig, shape: ModelShape | None) -> None:
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
    divisors = [str(n) for n in range(1, min(numbers) + 1) if not any(number % n for number in numbers)]
    return " or ".join([", ".join(divisors[:-1]), divisors[-1]] if len(divisors) > 1 else divisors)


def check_gpus(placement: Placement) -> None:
    """Check that this machine has the GPUs of a run on one host."""
    if placement.num_hosts > 1:
        return  # see check_places
    needed = placement.gpus_needed
    available = gpus_available() if needed else 0
    if needed > available:
        split = ", ".join(f"{name} {count}" for name, count in placement.gpus_wanted.items())
        raise UserError(
            f"the run needs {needed} GPU{'s' * (needed != 1)}, {available} are available: {split}; "
            "ask for fewer processes, or put a service on the CPU with --SERVICE.with_gpus false"
        )


def check_sharing(config: RunConfig, placement: Placement) -> None:
    hosts = placement.num_hosts
    if config.launcher.share_gpus == "yes" and hosts > 1:
        raise UserError(
            f"--launcher.share_gpus is yes, which is for the GPUs of one machine, and the run has {hosts} hosts: leave "
            "it out"
        )


def check_places(config: RunConfig, placement: Placement) -> None:
    """Check that the processes fit on the hosts: each generator on one, and the trainer evenly on its hosts."""
    hosts, per_host, replicas = placement.num_hosts, placement.gpus_per_host, placement.replicas
    if hosts == 1 or not placement.gpus_wanted:
        return
    if any(place.gpus and place.gpus[-1] >= per_host for places in replicas.values() for place in places):
        split = ", ".join(f"{name} {count}" for name, count in placement.gpus_wanted.items())
        raise UserError(
            f"the run does not fit on {hosts} hosts with {per_host} GPUs each (--launcher.gpus_per_host): {split}, and "
            "all GPUs of one generator are on one host"
        )
    (trainer,) = replicas["trainer"]
    procs, tensor = config.services.trainer.procs, max(1, config.parallelism.tensor_parallel_degree)
    if procs % trainer.num_hosts or procs // trainer.num_hosts % tensor:
        raise UserError(
            f"--services.trainer.procs is {procs}, which {trainer.num_hosts} hosts of {per_host} GPUs do not share "
            f"evenly in whole groups of parallelism.tensor_parallel_degree, {tensor}"
        )


def check_metrics(config: RunConfig) -> None:
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


def check_data(config: RunConfig) -> None:
    """Check that a local file of tasks exists."""
    data = config.dataset
    file = data_file(data.path, data.split)
    if file is not None and not file.is_file():
        raise UserError(f"--dataset.path is {data.path!r}, and there is no file {file}")
