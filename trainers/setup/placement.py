"""Where each process of a run lives: which service, which rank, which host, which GPU or the CPU."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trainers.config import RunConfig, ServiceConfig
from trainers.objective.plugins import names_reference
from trainers.setup.hosts import count_hosts

DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""What the driver of a GPU makes: NVIDIA's, AMD's, and that of Windows' Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one replica of a service lives."""

    host: int = 0
    """The first host, from 0."""
    num_hosts: int = 1
    """Hosts in a row that share its processes evenly."""
    gpus: tuple[int, ...] = ()
    """Numbers of the GPUs of each of its hosts; none is the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a run."""

    service: str
    """"controller", "store", "envs", "generator", "trainer" or "ref_model"."""
    rank: int = 0
    host: int | None = None
    """Number of its host; None where there is one machine only."""
    gpu: int | None = None
    """Number of its GPU on this machine; None is the CPU."""
    threads: int = 0
    """CPU threads, where they are set."""
    part: str = ""
    """Which part of the service's work is its own, for a person."""
    replica: int = 0

    @property
    def where(self) -> str:
        host = f"host {self.host}, " if self.host is not None else ""
        if self.gpu is not None:
            return f"{host}GPU {self.gpu}"
        return f"{host}CPU" + (f", {self.threads} thread{'s' * (self.threads != 1)}" if self.threads else "")


def find_places(config: RunConfig) -> dict[str, list[Place]]:
    """Where the replicas of each service live.

    The trainer's ranks fill host after host from the first on, for they exchange most. Each replica of the generator
    goes to the host with the fewest processes of its kind, GPU or CPU, and an environment process to a host with a
    generator. On each host GPUs are handed out to the generator, the trainer and the reference model, in this order; a
    trainer on several hosts comes first, so that its GPUs have the same numbers on all of them. Where GPUs are shared,
    each of the three begins at the first.
    """
    hosts, services = count_hosts(config), config.services
    per_host = gpus_per_host(config) if hosts > 1 else 0
    load: Counter[tuple[int, bool]] = Counter()  # processes, by host and whether they have GPUs

    def least(service: ServiceConfig) -> int:
        host = min(range(hosts), key=lambda host: (load[host, service.with_gpus], host))
        load[host, service.with_gpus] += service.procs
        return host

    spread = -(-services.trainer.procs // per_host) if per_host and services.trainer.with_gpus else 1
    spread = min(max(1, spread), hosts)
    for host in range(spread):
        load[host, services.trainer.with_gpus] += -(-services.trainer.procs // spread)
    generators = [least(services.generator) for _ in range(services.generator.num_replicas)]
    references = services.ref_model.num_replicas if needs_reference(config) else 0
    reference_hosts = [least(services.ref_model) for _ in range(references)]
    next_gpu: Counter[tuple[int, object]] = Counter()  # by host and, where they are shared, by service
    shared = shares_gpus(config)

    def place(service: ServiceConfig, host: int, num_hosts: int = 1) -> Place:
        each = -(-service.procs // num_hosts) if service.with_gpus else 0
        whose = id(service) if shared else None
        first = next_gpu[host, whose]
        for index in range(host, host + num_hosts):
            next_gpu[index, whose] += each
        return Place(host=host, num_hosts=num_hosts, gpus=tuple(range(first, first + each)))

    trainer_first = place(services.trainer, 0, spread) if spread > 1 else None
    return {
        "store": [Place()],
        "envs": [Place(host=generators[index % len(generators)]) for index in range(services.envs.num_replicas)],
        "generator": [place(services.generator, host) for host in generators],
        "trainer": [trainer_first or place(services.trainer, 0)],
        "ref_model": [place(services.ref_model, host) for host in reference_hosts],
    }


def processes(config: RunConfig) -> list[Process]:
    """Every process of a run, service by service, see `find_places`.

    A trainer's rank is its place in the shards times the tensor degree, plus its place in tensor parallelism: the ranks
    that exchange most are neighbours.
    """
    several = count_hosts(config) > 1
    places = find_places(config)
    found = [
        Process(service="controller", part="this process: the loop, the report"),
        Process(
            service="store",
            host=0 if several else None,
            part="two versions of the weights; a process for TorchStore only",
        ),
    ]
    parts = {
        "envs": ["environments, agents, tokenising, rewards"],
        "generator": [f"engine, TP {rank}" for rank in range(config.services.generator.procs)],
        "trainer": trainer_parts(config),
        "ref_model": ["frozen reference"],
    }
    for name, own in parts.items():
        service: ServiceConfig = getattr(config.services, name)
        for replica, place in enumerate(places[name]):
            for rank, (host, gpu) in enumerate(_slots(place, service)):
                part = own[rank % len(own)]
                found.append(
                    Process(
                        service=name,
                        rank=rank,
                        host=host if several else None,
                        gpu=gpu,
                        threads=0 if service.with_gpus else service.threads,
                        part=part,
                        replica=replica,
                    )
                )
    return found


def _slots(place: Place, service: ServiceConfig) -> Iterator[tuple[int, int | None]]:
    """Host and GPU of every process of one replica, by rank."""
    per_host = -(-service.procs // place.num_hosts)
    for rank in range(service.procs):
        yield place.host + rank // per_host, place.gpus[rank % per_host] if place.gpus else None


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


def gpus_needed(config: RunConfig) -> int:
    """GPUs that all services need together."""
    wanted = gpus_wanted(config).values()
    return max(wanted, default=0) if shares_gpus(config) else sum(wanted)


def shares_gpus(config: RunConfig) -> bool:
    """Whether generator, trainer and reference model have the same GPUs, see `LauncherConfig.share_gpus`."""
    wanted = gpus_wanted(config)
    if config.launcher.share_gpus == "no" or len(wanted) < 2:
        return False
    if config.launcher.share_gpus == "yes":
        return True
    return count_hosts(config) == 1 and max(wanted.values()) <= gpus_per_host(config) < sum(wanted.values())


def needs_reference(config: RunConfig) -> bool:
    """Whether a reference model of its own is started: there is one to start, and something that asks for it.

    Raises:
        UserError: when the loss of the user's own cannot be used.
    """
    return config.services.ref_model.procs > 0 and names_reference(config)


def gpus_per_host(config: RunConfig) -> int:
    """GPUs of every host of a run."""
    return config.launcher.gpus_per_host or gpus_available()


def gpus_available() -> int:
    """GPUs of this machine; counts them without touching one."""
    if not any(map(os.path.exists, DRIVERS)):
        return 0  # known without torch, which takes seconds to import
    import torch

    return torch.cuda.device_count()
