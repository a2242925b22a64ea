"""Which processes a run has, on which machines, and when one of them counts as hung."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Interval

from agents.generator.engine_args import read_engine_args
from agents.generator.settings import EngineOptions, StallOption
from forge_env.core.errors import UserError
from forge_env.registry.contrib import rows
from forge_env.runtime.host_settings import HostSettings
from forge_env.utils.settings import BY_CASE, OR_BY_CASE

PROCESSES = 4096
"""Processes, hosts or threads at most; a plan has a line for each process."""


@dataclass(frozen=True, kw_only=True)
class ReplicasConfig:
    num_replicas: Annotated[int, Interval(ge=1, le=PROCESSES)] = 1
    threads: Annotated[int, Interval(ge=1, le=PROCESSES)] = 1
    """CPU threads of one process."""
    ping_seconds: Annotated[float, Gt(0)] = 30.0
    """A replica that does not answer a ping within this time is ended and replaced. The trainer is not pinged."""


@dataclass(frozen=True, kw_only=True)
class EnvsConfig(ReplicasConfig):
    num_replicas: Annotated[int, Interval(ge=1, le=PROCESSES), OR_BY_CASE] = BY_CASE


@dataclass(frozen=True, kw_only=True)
class ServiceConfig(ReplicasConfig):
    procs: Annotated[int, Interval(ge=1, le=PROCESSES)] = 1
    """Processes of one replica. For the generator it is the tensor parallel degree; for the trainer it is all of its
    ranks."""
    with_gpus: bool = False
    """Each process is on a GPU. If the machine has GPUs, this is true for trainer, generator, reference model
    and teacher, unless it is given; see also launcher.share_gpus."""


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(ServiceConfig):
    procs: Annotated[int, Interval(ge=0, le=PROCESSES)] = 0


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig(EngineOptions, ServiceConfig):
    sleep: Literal["auto", "yes", "no"] = "auto"
    """The engine gives its GPU memory back while the trainer steps. For an engine that shares the trainer's GPU and has
    no episodes in flight at that time. "auto" does so if the card has no room for both; docs/gpu.md."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Further settings of vLLM, by the names of its EngineArgs: `--services.generator.engine.block_size 32`.
    docs/gpu.md lists them."""


@dataclass(frozen=True, kw_only=True)
class ServicesConfig:
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    envs: EnvsConfig = field(default_factory=EnvsConfig)
    """The environments, with their agents, tokenising and rewards: a replica is one process, never on a GPU."""
    trainer: ServiceConfig = field(default_factory=lambda: ServiceConfig(threads=2))
    ref_model: ReferenceConfig = field(default_factory=ReferenceConfig)
    """The frozen reference model of the KL penalty. It starts if beta is above 0, or if a loss of your own names
    ref_logprobs. Its weights are sharded over the processes of a replica, and the samples of a step are split over the
    replicas."""
    teacher: ServiceConfig = field(default_factory=ServiceConfig)
    """The frozen model of --distill.teacher, which is started only with it. It is spread as the reference model is."""

    def check(self) -> None:
        """Check that each service can have the processes that are asked for."""
        if self.trainer.num_replicas > 1:
            raise UserError(
                f"--services.trainer.num_replicas is {self.trainer.num_replicas}, and there is one trainer, whose "
                "processes share the work: set it to 1, and --services.trainer.procs to the number of processes"
            )
        if self.generator.procs > 1 and not self.generator.with_gpus:
            raise UserError(
                f"--services.generator.procs is {self.generator.procs} and it has no GPUs: an engine on CPU is one "
                "process; set it to 1, or --generator.with_gpus true"
            )
        if self.ref_model.with_gpus and self.ref_model.procs == 0:
            raise UserError(
                "--services.ref_model.with_gpus is true and --services.ref_model.procs is 0, which is no reference "
                "model: --ref_model.procs 1"
            )
        if not self.generator.with_gpus and read_engine_args(self.generator.engine).get("speculative_config"):
            raise UserError(
                "--services.generator.engine.speculative_config is refused on a CPU: vLLM's logprobs are then not "
                "those of the sampled tokens; leave it out, or use --generator.with_gpus true"
            )


@dataclass(frozen=True, kw_only=True)
class LauncherConfig(HostSettings):
    """On which machines and GPUs the processes run."""

    gpus_per_host: Annotated[int, Interval(ge=0, le=PROCESSES)] = 0
    """GPUs of each host; 0 is as many as this machine has."""
    gpu_memory_gib: Annotated[float, Interval(ge=0, le=1024)] = 0.0
    """Memory of each GPU, in GiB, that trainer, engine and plan count with; no more than the GPU has. 0 is all of
    it."""
    share_gpus: Literal["auto", "yes", "no"] = "auto"
    """Generator, trainer and reference model use the same GPUs. "auto" shares them if the run is on one machine with
    fewer GPUs than they ask for together. "yes" also puts several engines on one GPU, if the machine has fewer GPUs
    than the engines ask for."""
    restarts: Annotated[int, Ge(0)] = 1
    """How often the run starts again by itself, from its newest checkpoint, after the death of a process that nothing
    replaces, as the trainer's. 0 is never; a run of another `kind` than "local" never does."""

    def check(self) -> None:
        """Check which hosts are named, and whether a run may be on several."""
        super().check()
        if self.share_gpus == "yes" and self.count > 1:
            raise UserError(
                f"--launcher.share_gpus is yes, which is for the GPUs of one machine, and the run has {self.count} "
                "hosts: leave it out"
            )
        if self.kind != "local" and not rows("hosts"):
            raise UserError(
                f"--launcher.kind is {self.kind}, and no part for several hosts is installed: set it to local"
            )


class Deadlines(NamedTuple):
    """In seconds, of operations that move the weights of a model."""

    base: float
    """For what moves few bytes."""
    weights: float
    """For the weights once: to load a model, to publish, pull, keep or export it."""
    checkpoint: float
    """For a checkpoint, and for the previous one, which may still be being written."""


@dataclass(frozen=True, kw_only=True)
class DeadlinesConfig(StallOption):
    """When the run's own parts count as hung; what an episode may take is in `env`. No completion has a deadline."""

    base_seconds: Annotated[float, Gt(0)] = 300.0
    """Deadline for the start of a process, and for publishing, pulling, saving, loading or exporting weights. The time
    that their bytes take is added."""
    least_mib_per_second: Annotated[float, Gt(0)] = 50.0
    """The slowest disk or network that still counts as working."""

    def of(self, parameters: int) -> Deadlines:
        """For a model: its weights have at most 4 bytes a parameter, and 12 with Adam's two moments."""
        second = self.least_mib_per_second * 2**20
        return Deadlines(*(self.base_seconds + size * parameters / second for size in (0, 4, 2 * 12)))
