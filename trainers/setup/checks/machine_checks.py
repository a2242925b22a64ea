"""Checks of what the processes and machines can do: services, parallelism, memory, attention and places."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from forge_env.core.errors import UserError
from trainers.config import RunConfig
from trainers.setup.memory import COPIED, OFFLOADED, gib, trainer_dtype
from trainers.setup.placement import Placement, gpus_available
from trainers.setup.sizing.card import Processes

_GROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = float("inf")


def check_services(config: RunConfig) -> None:
    services = config.services
    if services.trainer.num_replicas > 1:
        raise UserError(
            f"--services.trainer.num_replicas is {services.trainer.num_replicas}, and there is one trainer, whose "
            "processes share the work: set it to 1, and --services.trainer.procs to the number of processes"
        )
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


def check_parallelism(config: RunConfig) -> None:
    if (degree := config.parallelism.pipeline_parallel_degree) > 1:
        raise UserError(
            f"--parallelism.pipeline_parallel_degree is {degree}, and the loss needs the logprobs of a whole row on "
            "every rank: set it to 1"
        )
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
    if training.offload_sums and not training.cpu_offload:
        raise UserError(
            "--training.offload_sums is true, which is for offloaded gradients: leave it out, or set "
            "--training.cpu_offload true"
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


def check_host_memory(config: RunConfig, processes: Processes, host: float) -> None:
    """Check that the host has room for the processes on its CPU, and for what those on GPUs keep there.

    Args:
        config: of the run.
        processes: of the run, with the estimates of their memory.
        host: bytes of this machine's memory, see `host_memory`; 0 is not checked.

    Raises:
        UserError: otherwise, with what each service takes.
    """
    parts: Counter[str] = Counter()
    for process, memory in processes:
        if memory is not None:
            parts.update(memory.on_host if process.gpu is not None else {process.service: memory.total})
    on_gpus = "put trainer and generator on GPUs with --trainer.with_gpus true --generator.with_gpus true"
    remedies = ["take a smaller model", on_gpus]
    if OFFLOADED in parts:
        remedies = ["leave --training.cpu_offload out", "make them smaller with --training.optimizer_state 8bit"]
    elif COPIED in parts:
        remedies = ["take a smaller model", "let the engine have weights without adapters with --lora.publish merged"]
    elif not config.lora.is_on and config.model.path:
        remedies.insert(1, "train adapters with --lora.rank 16")
    needed = sum(parts.values())
    if 0 < host < needed:
        each = " + ".join(f"{name} {gib(size)}" for name, size in parts.most_common() if size)
        raise UserError(
            f"this machine has {gib(host)} GiB of memory, and the estimate of what the run needs there is "
            f"{gib(needed)}: {each}; {', '.join(remedies[:-1])}, or {remedies[-1]}"
        )


def host_memory(placement: Placement) -> float:
    """Bytes of memory that this machine has, or that the control groups of this process leave it.

    0 for a run that is on several machines, or on GPUs that this machine does not have.
    """
    if placement.num_hosts > 1 or placement.gpus_needed > gpus_available():
        return 0.0
    return min(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")), *_group_limits(), _NO_LIMIT)


def _group_limits() -> Iterator[float]:
    """The memory limits of the control groups of this process, in bytes, of both versions."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (_GROUPS / "memory", "memory.limit_in_bytes") if controllers else (_GROUPS, "memory.max")
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(top) and (group / name).is_file():
                limit = (group / name).read_text().strip()
                yield float(limit) if limit.isdigit() else _NO_LIMIT


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
                f"{wanted}, which computes in bfloat16, and --training.dtype is float32: set "
                "--training.attention to flex, or leave it out"
            )
    elif training.attention == "sdpa" and (training.packing or degree > 1):
        cause = "training.packing is true" if training.packing else f"parallelism.context_parallel_degree is {degree}"
        raise UserError(
            f"{wanted} and --{cause}: for rows that share a sequence, or are shared, sdpa builds a mask of tokens x "
            "tokens, which the plan of the GPU's memory has no room for: set it to flex, or leave it out"
        )


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
