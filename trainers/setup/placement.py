"""Where each process of a run lives: its service, rank, host, and GPU or CPU.

The plan of a run has one `Placement`; all code that starts or checks processes reads it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from forge_env.core.errors import UserError
from trainers.config import RunConfig
from trainers.metrics.gpus import count_gpus
from trainers.settings.mixture import read_names
from trainers.settings.services import ReplicasConfig, ServiceConfig

DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPU drivers: NVIDIA's, AMD's, and WSL's."""
FROZEN = {"ref_model": "reference", "teacher": "teacher"}
"""Services with a frozen model, by their names in the settings, and what each is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """The host, GPUs and threads of one replica of a service."""

    host: int = 0
    """The first host, from 0."""
    num_hosts: int = 1
    """Hosts in a row that share its processes evenly."""
    gpus: tuple[int, ...] = ()
    """Numbers of the GPUs of each of its hosts; none is the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    service: str
    """"controller", "store", "envs", "generator", "trainer", "ref_model" or "teacher"."""
    rank: int = 0
    host: int | None = None
    """Number of its host; None if there is one machine only."""
    gpu: int | None = None
    """Number of its GPU on this machine; None is the CPU."""
    threads: int = 0
    """CPU threads, if they are set."""
    part: str = ""
    """Its part of the service's work, for people."""
    replica: int = 0

    @property
    def where(self) -> str:
        host = f"host {self.host}, " if self.host is not None else ""
        if self.gpu is not None:
            return f"{host}GPU {self.gpu}"
        return f"{host}CPU" + (f", {self.threads} thread{'s' * (self.threads != 1)}" if self.threads else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The hosts and GPUs of a run, and which process has which of them."""

    num_hosts: int
    gpus_per_host: int
    gpus_wanted: Mapping[str, int]
    """Service -> its number of GPUs, in the order in which they are handed out."""
    shares_gpus: bool
    """Whether generator, trainer and frozen models have the same GPUs, see `LauncherConfig.share_gpus`."""
    replicas: Mapping[str, Sequence[ReplicaPlace]]
    """Service -> where each of its replicas lives; no replica where the service is not started."""
    processes: Sequence[Process]
    """Every process, service by service."""

    @property
    def gpus_needed(self) -> int:
        wanted = self.gpus_wanted.values()
        return max(wanted, default=0) if self.shares_gpus else sum(wanted)

    @property
    def has_reference(self) -> bool:
        return bool(self.replicas["ref_model"])

    @property
    def gpus_of_this_machine(self) -> list[int]:
        """Numbers of the GPUs that the run has on its first host."""
        places = (place for replicas in self.replicas.values() for place in replicas if place.host == 0)
        return sorted({gpu for place in places for gpu in place.gpus})

    def check(self, tensor: int) -> None:
        """Check that the processes fit on several hosts: each generator on one, and the trainer evenly on its hosts.

        `tensor` is `parallelism.tensor_parallel_degree`.
        """
        if self.num_hosts == 1 or not self.gpus_wanted:
            return
        hosts, per_host = self.num_hosts, self.gpus_per_host
        places = [place for replicas in self.replicas.values() for place in replicas]
        if any(place.gpus and place.gpus[-1] >= per_host for place in places):
            raise UserError(
                f"the run does not fit on {hosts} hosts with {per_host} GPUs each (--launcher.gpus_per_host): "
                f"{self._split}, and all GPUs of one generator are on one host"
            )
        shared_by = self.replicas["trainer"][0].num_hosts
        procs = sum(process.service == "trainer" for process in self.processes)
        if procs % shared_by or procs // shared_by % tensor:
            raise UserError(
                f"--services.trainer.procs is {procs}, which {shared_by} hosts of {per_host} GPUs do not share evenly "
                f"in whole groups of parallelism.tensor_parallel_degree, {tensor}"
            )

    def check_gpus(self) -> None:
        """Check that this machine has the GPUs of a run on one host."""
        num_gpus = self.gpus_needed if self.num_hosts == 1 else 0  # else see `check`
        available = gpus_available() if num_gpus else 0
        if num_gpus > available:
            raise UserError(
                f"the run needs {num_gpus} GPU{'s' * (num_gpus != 1)}, {available} are available: {self._split}; "
                "ask for fewer processes, or put a service on the CPU with --SERVICE.with_gpus false"
            )

    @property
    def _split(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.gpus_wanted.items())


def make_placement(config: RunConfig, *, has_reference: bool, has_engine: bool = True, teachers: int = 0) -> Placement:
    """Place every process of a run; the replicas of its teachers follow one another."""
    num_hosts, per_host = config.launcher.count, config.launcher.gpus_per_host or gpus_available()
    started = {"generator": has_engine, "trainer": True, "ref_model": has_reference, "teacher": teachers > 0}
    models = {name: getattr(config.services, name) for name, is_started in started.items() if is_started}
    if teachers > 1:
        models["teacher"] = replace(models["teacher"], num_replicas=teachers * models["teacher"].num_replicas)
    gpu_counts = {
        name: _gpus_wanted(config, each, per_host) for name, each in models.items() if each.with_gpus and each.procs
    }
    shared = _shares_gpus(config, gpu_counts, num_hosts, per_host)
    replicas = _place_replicas(config, models, num_hosts, per_host, gpu_counts if shared else {})
    return Placement(
        num_hosts=num_hosts,
        gpus_per_host=per_host,
        gpus_wanted=gpu_counts,
        shares_gpus=shared,
        replicas=replicas,
        processes=_processes(config, replicas, has_several_hosts=num_hosts > 1),
    )


def gpus_available() -> int:
    """GPUs of this machine; counts them without touching one."""
    if not any(map(os.path.exists, DRIVERS)):
        return 0  # known without torch
    if (count := count_gpus()) is not None:
        return count
    import torch

    return torch.cuda.device_count()


def _gpus_wanted(config: RunConfig, service: ServiceConfig, per_host: int) -> int:
    """GPUs of all replicas of a service; with `share_gpus` "yes", replicas share GPUs if a machine has too few."""
    all_replicas = service.procs * service.num_replicas
    if config.launcher.share_gpus != "yes" or not per_host:
        return all_replicas
    return min(all_replicas, max(1, per_host // service.procs) * service.procs)


def _shares_gpus(config: RunConfig, gpu_counts: Mapping[str, int], num_hosts: int, per_host: int) -> bool:
    if config.launcher.share_gpus == "no" or len(gpu_counts) < 2:
        return False
    if config.launcher.share_gpus == "yes":
        return True
    return num_hosts == 1 and max(gpu_counts.values()) <= per_host < sum(gpu_counts.values())


def _place_replicas(
    config: RunConfig, models: Mapping[str, ServiceConfig], hosts: int, per_host: int, shared: Mapping[str, int]
) -> dict[str, list[ReplicaPlace]]:
    """Where the replicas of each service live; `models` are the services with a model that are started.

    `shared` are the GPUs that each of them wants; empty if they do not share GPUs.

    The trainer's ranks fill host after host from the first on, for they exchange most. Each replica of the generator
    goes to the host with the fewest processes of its kind, GPU or CPU, and an environment process to a host with a
    generator. On each host GPUs are handed out to the generator, the trainer, the reference model and the teacher, in
    this order; a trainer on several hosts comes first, so that its GPUs have the same numbers on all of them. If GPUs
    are shared, each of them begins at the first, and begins there again with the replica that finds no more GPUs.
    """
    services = config.services
    load: Counter[tuple[int, bool]] = Counter()  # processes, by host and whether they have GPUs

    def least_loaded(service: ServiceConfig) -> int:
        host = min(range(hosts), key=lambda host: (load[host, service.with_gpus], host))
        load[host, service.with_gpus] += service.procs
        return host

    spread = -(-services.trainer.procs // per_host) if hosts > 1 and per_host and services.trainer.with_gpus else 1
    spread = min(max(1, spread), hosts)
    for host in range(spread):
        load[host, services.trainer.with_gpus] += -(-services.trainer.procs // spread)
    generators, *frozen_hosts = (
        [least_loaded(models[name]) for _ in range(models[name].num_replicas)] if name in models else []
        for name in ("generator", *FROZEN)
    )
    next_gpu: Counter[tuple[int, str]] = Counter()  # by host and, if they are shared, by service

    def place(name: str, host: int, num_hosts: int = 1) -> ReplicaPlace:
        service = models[name]
        count = -(-service.procs // num_hosts) if service.with_gpus else 0
        owner = name if shared else ""
        first = next_gpu[host, owner]
        if name in shared:
            first %= shared[name]
        for index in range(host, host + num_hosts):
            next_gpu[index, owner] += count
        return ReplicaPlace(host=host, num_hosts=num_hosts, gpus=tuple(range(first, first + count)))

    trainer_first = place("trainer", 0, spread) if spread > 1 else None
    environments = max(1, len(read_names(config.env.name)))  # each has processes of its own
    envs = range(environments * services.envs.num_replicas if generators else 0)
    return {
        "store": [ReplicaPlace()] if generators else [],
        "envs": [ReplicaPlace(host=generators[index % len(generators)]) for index in envs],
        "generator": [place("generator", host) for host in generators],
        "trainer": [trainer_first or place("trainer", 0)],
        **{name: [place(name, host) for host in on] for name, on in zip(FROZEN, frozen_hosts, strict=True)},
    }


def _processes(
    config: RunConfig, replicas: Mapping[str, Sequence[ReplicaPlace]], *, has_several_hosts: bool
) -> list[Process]:
    """Every process of the replicas.

    A trainer's rank is its place in the shards times the tensor degree, plus its place in tensor parallelism: the ranks
    that exchange most are neighbours. Ranks that share sequences (CP) are neighbouring shards: weights are sharded over
    them too. Ranks that experts are spread over (EP) are neighbours. Groups that each hold all weights (HSDP) follow
    one another.
    """
    processes = [Process(service="controller", part="this process: the loop, the report")]
    if replicas["store"]:
        part = "two versions of the weights; a process if the store needs one"
        processes.append(Process(service="store", host=0 if has_several_hosts else None, part=part))
    parts_of_services = {
        "envs": [f"{label or 'environments'}, agents, tokenising, rewards" for label in read_names(config.env.name)],
        "generator": [f"engine, TP {rank}" for rank in range(config.services.generator.procs)],
        "trainer": [_trainer_part(config, rank) for rank in range(config.services.trainer.procs)],
        **{name: _frozen_parts(what, getattr(config.services, name).procs) for name, what in FROZEN.items()},
    }
    for name, parts in parts_of_services.items():
        service: ReplicasConfig = getattr(config.services, name)
        for replica, place in enumerate(replicas[name]):
            for rank, (host, gpu) in enumerate(_slots(place, 1 if name == "envs" else len(parts))):
                processes.append(
                    Process(
                        service=name,
                        rank=rank,
                        host=host if has_several_hosts else None,
                        gpu=gpu,
                        threads=service.threads if gpu is None else 0,
                        part=parts[replica // service.num_replicas if name == "envs" else rank],
                        replica=replica,
                    )
                )
    return processes


def _trainer_part(config: RunConfig, rank: int) -> str:
    """Name the coordinates of a trainer's rank: copy of the weights, shard, part of the rows, tensor part."""
    tensor = max(1, config.parallelism.tensor_parallel_degree)
    copies = max(1, config.parallelism.data_parallel_replicate_degree)
    shards = max(1, config.services.trainer.procs // (tensor * copies))
    copy, shard = divmod(rank // tensor, shards)
    context = max(1, config.parallelism.context_parallel_degree)
    of_copy, of_rows = f"copy {copy}, " if copies > 1 else "", f"CP {shard % context}, " if context > 1 else ""
    experts = max(1, config.parallelism.expert_parallel_degree)
    of_experts = f", EP {(shard * tensor + rank % tensor) % experts}" if experts > 1 else ""
    return f"{of_copy}FSDP {shard}, {of_rows}TP {rank % tensor}{of_experts}"


def _frozen_parts(what: str, procs: int) -> list[str]:
    return [f"frozen {what}, FSDP {rank}" for rank in range(procs)] if procs > 1 else [f"frozen {what}"]


def _slots(place: ReplicaPlace, procs: int) -> Iterator[tuple[int, int | None]]:
    per_host = -(-procs // place.num_hosts)
    for rank in range(procs):
        yield place.host + rank // per_host, place.gpus[rank % per_host] if place.gpus else None
