"""Where each process of a run lives: which service, which rank, which GPU or the CPU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from trainers.config import RunConfig, ServiceConfig
from trainers.own_parts import names_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a run."""

    service: str
    """"controller", "store", "envs", "generator", "trainer" or "ref_model"."""
    rank: int = 0
    gpu: int | None = None
    """Number of its GPU on this machine; None is the CPU."""
    threads: int = 0
    """CPU threads, where they are set."""
    part: str = ""
    """Which part of the service's work is its own, for a person."""
    replica: int = 0

    @property
    def where(self) -> str:
        if self.gpu is not None:
            return f"GPU {self.gpu}"
        return "CPU" + (f", {self.threads} thread{'s' * (self.threads != 1)}" if self.threads else "")


def processes(config: RunConfig) -> list[Process]:
    """Every process of a run; GPUs are handed out to the generator, the trainer and the reference model, in this order.

    A trainer's rank is its place in the shards times the tensor degree, plus its place in tensor parallelism: the ranks
    that exchange most are neighbours.
    """
    found = [
        Process(service="controller", part="this process: the loop, the report"),
        Process(service="store", part="weights, two versions"),
    ]
    services, next_gpu = config.services, 0
    parts = {
        "envs": ["environments, agents, tokenising, rewards"],
        "generator": [f"engine, TP {rank}" for rank in range(services.generator.procs)],
        "trainer": trainer_parts(config),
        "ref_model": ["frozen reference"] * (services.ref_model.procs if needs_reference(config) else 0),
    }
    for name, own in parts.items():
        service: ServiceConfig = getattr(services, name)
        for replica, (rank, part) in itertools.product(range(service.num_replicas), enumerate(own)):
            gpu = next_gpu if service.with_gpus else None
            next_gpu += service.with_gpus
            threads = 0 if service.with_gpus else service.threads
            place = f"{part}, replica {replica}" if service.num_replicas > 1 else part
            found.append(Process(service=name, rank=rank, gpu=gpu, threads=threads, part=place, replica=replica))
    return found


def trainer_parts(config: RunConfig) -> list[str]:
    """The coordinates of each rank of the trainer."""
    tensor = max(1, config.parallelism.tensor_parallel_degree)
    return [f"FSDP {rank // tensor}, TP {rank % tensor}" for rank in range(config.services.trainer.procs)]


def gpus_wanted(config: RunConfig) -> dict[str, int]:
    """GPUs of each service that wants any, in the order in which they are handed out."""
    services = config.services
    started = {"generator": services.generator, "trainer": services.trainer}
    if needs_reference(config):
        started["ref_model"] = services.ref_model
    return {
        name: service.procs * service.num_replicas
        for name, service in started.items()
        if service.with_gpus and service.procs
    }


def needs_reference(config: RunConfig) -> bool:
    """Whether a reference model of its own is started: there is one to start, and something that asks for it.

    Raises:
        UserError: when the loss of the user's own cannot be used.
    """
    return config.services.ref_model.procs > 0 and names_reference(config)


def gpus_available() -> int:
    """GPUs of this machine; counts them without touching one."""
    import torch

    return torch.cuda.device_count()
