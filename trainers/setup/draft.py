"""Draft: the settings of a run with their defaults, and all that follows from them alone.

Set-up passes it on: placement, estimates of memory and checks take a draft. Each fact is derived here, once. A draft
with other settings is another draft: `replace(draft, config=changed)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from agents.generator.engine_args import read_engine_args
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.types import EpisodeLimits
from forge_env.runtime.host_settings import HostSettings
from forge_env.utils.settings import values_of
from trainers.algorithm import Algorithm, kl_warning
from trainers.checkpoints import CheckpointConfig
from trainers.config import RunConfig, TrainingConfig
from trainers.families.shape import ModelShape
from trainers.lora import Lora
from trainers.metrics.settings import EvaluationConfig, MetricsConfig
from trainers.model.find import FoundModel
from trainers.objective.loss_call import LossCall
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import choose_old_logprobs
from trainers.objective.plugins import resolve
from trainers.objective.trials import try_advantages, try_loss
from trainers.settings.services import ServicesConfig
from trainers.settings.supervised import SFTConfig
from trainers.settings.tasks import EnvConfig, RendererConfig, WarmupConfig
from trainers.setup.deadlines import Deadlines
from trainers.setup.options.defaults import Default
from trainers.setup.placement import Placement, make_placement
from trainers.titan.settings import ForwardSettings, ParallelismConfig, TitanSettings, TrainerSettings

ADAM_BETAS = (0.9, 0.95)
AT_ONCE = {True: 256, False: 64}
"""Episodes in flight in an evaluation, by whether the engine is on a GPU."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The settings of a run, and what follows from them."""

    config: RunConfig
    """The complete settings, for set-up and for the run's record."""
    defaults: Mapping[str, Default]
    """The defaults of what is trained, by the names of the settings."""
    trained_by: Algorithm
    model: FoundModel
    objective: Objective | None
    """The loss, and how groups become samples, the user's own plugins among them; None for supervised training."""
    card: float | None = None
    """Bytes that the run may use of each GPU; None without GPUs, or if that is not known."""

    # ---- the sections that a run reads, and two settings beside them ----

    @property
    def training(self) -> TrainingConfig:
        return self.config.training

    @property
    def env(self) -> EnvConfig:
        return self.config.env

    @property
    def renderer(self) -> RendererConfig:
        return self.config.renderer

    @property
    def warmup(self) -> WarmupConfig:
        return self.config.warmup

    @property
    def services(self) -> ServicesConfig:
        return self.config.services

    @property
    def evaluation(self) -> EvaluationConfig:
        return self.config.evaluation

    @property
    def checkpoint(self) -> CheckpointConfig:
        return self.config.checkpoint

    @property
    def metrics(self) -> MetricsConfig:
        return self.config.metrics

    @property
    def sft(self) -> SFTConfig | None:
        """None for a policy-gradient run."""
        return getattr(self.config, "sft", None)

    @property
    def output(self) -> str:
        """The folder that the user names; "" for a new one."""
        return self.config.output

    @property
    def resume(self) -> bool:
        """Whether the run goes on from a checkpoint in `output`."""
        return self.config.resume

    @property
    def record(self) -> dict[str, Any]:
        """All settings as nested dictionaries, for the run's record and for sinks."""
        return asdict(self.config)

    # ---- the algorithm ----

    @property
    def algorithm(self) -> str:
        """Its name, for example "grpo"."""
        return self.trained_by.name

    @property
    def command(self) -> str:
        """What `python -m` starts, for example "trainers.grpo"."""
        return self.trained_by.command

    @property
    def own_algorithm(self) -> Algorithm | None:
        """An algorithm of the user's, which the trainer's process has to import; None for one of the trainer's."""
        return self.trained_by if self.trained_by.target else None

    @property
    def is_supervised(self) -> bool:
        """Whether the run learns from demonstrations or chats, without rewards."""
        return self.objective is None

    @property
    def temperature(self) -> float:
        """The sampling temperature of training; all logprobs are taken at it."""
        return self.config.algorithm.temperature if self.config.algorithm else 1.0

    @cached_property
    def old_logprobs(self) -> Literal["generator", "trainer"]:
        """The model that gives the denominator of the importance ratio."""
        section = self.config.algorithm
        if self.objective is None or section is None:
            return "generator"
        clips_rounding = section.clips_within_rounding and self.precision == "bfloat16"
        return choose_old_logprobs(self.training.old_logprobs, self.objective.loss, clips_rounding=clips_rounding)

    @property
    def window(self) -> int:
        """Optimizer steps whose old logprobs are of the same weights; their groups are all sampled before the first."""
        return self.training.sync_interval if self.old_logprobs == "trainer" else 1

    @property
    def staleness(self) -> int:
        """Optimizer steps between the weights that sampled a group and the weights that it trains, at most."""
        return self.training.most_behind

    @property
    def kl_warning(self) -> str:
        """A warning on the KL penalty; "" for none."""
        return kl_warning(self.config)

    # ---- the engine ----

    @cached_property
    def engine_args(self) -> dict[str, Any]:
        """Arguments of vLLM, from `services.generator.engine`."""
        return read_engine_args(self.services.generator.engine)

    # ---- the model ----

    @property
    def shape(self) -> ModelShape | None:
        """The sizes of the model; None if they are not known yet."""
        return self.model.shape

    @property
    def sizes(self) -> ModelShape:
        """The sizes of the model, for estimates, which are made only if they are known."""
        assert self.shape is not None
        return self.shape

    @cached_property
    def lora(self) -> Lora | None:
        """The adapters that are trained; None if all weights are."""
        return self.config.lora.resolve(self.services.generator.dtype, self.shape)

    @property
    def replays_routes(self) -> bool:
        """Whether the engine returns the experts that it chose, and the trainer computes with them."""
        has_experts = self.shape is not None and self.shape.num_experts > 0
        return self.config.moe.replay != "off" and not self.is_supervised and has_experts

    def compares_replay(self, step: int) -> bool:
        """Whether a step, from 1, is also measured without replay."""
        interval = self.config.moe.compare_interval
        return self.replays_routes and interval > 0 and (step - 1) % interval == 0

    @cached_property
    def trainer(self) -> TitanSettings:
        """What the trainer takes."""
        config, training = self.config, self.training
        return TitanSettings(
            **values_of(training, TrainerSettings),
            **values_of(config.parallelism, ParallelismConfig),
            **self._sequences,
            betas=ADAM_BETAS,
            replay=config.moe.replay != "off",
            lora=self.lora,
            threads=self.services.trainer.threads,
        )

    @cached_property
    def reference(self) -> TitanSettings:
        """What a reference model takes, if there is one: it computes logprobs as the trainer does.

        Its attention is the default of its own device, which may be another than the trainer's.
        """
        shared = values_of(self.training, ForwardSettings)
        return TitanSettings(**shared, **self._sequences, threads=self.services.ref_model.threads)

    @property
    def _sequences(self) -> dict[str, Any]:
        training = self.training
        pack_length = training.max_tokens_per_micro_batch if training.packing else 0
        return {"pack_length": pack_length, "gpu_memory_gib": self.config.launcher.gpu_memory_gib}

    @property
    def trainer_dtype(self) -> str:
        """What the trainer computes in: "float32" or "bfloat16"."""
        return self.training.dtype_on(self.services.trainer.with_gpus)

    @property
    def precision(self) -> Literal["float32", "bfloat16"]:
        """The coarser of what the trainer and the engine compute in."""
        both = {self.trainer_dtype, self.services.generator.dtype}
        return "bfloat16" if "bfloat16" in both else "float32"

    # ---- processes ----

    @cached_property
    def placement(self) -> Placement:
        """Where each process is. A reference model is started unless the trainer is its own, without its adapters."""
        needs_reference = self.objective is not None and self.objective.kl_reference == "model"
        has_reference = needs_reference and not self.config.lora.is_on
        return make_placement(self.config, has_reference=has_reference, has_engine=self.has_engine)

    @property
    def hosts(self) -> HostSettings | None:
        """How the hosts are reached; None if this machine is the only one."""
        return None if self.config.launcher.kind == "local" else self.config.launcher

    @property
    def has_engine(self) -> bool:
        """Whether an engine is started: supervised training without an environment has none."""
        return bool(self.env.name) or not self.is_supervised

    @property
    def is_offloaded(self) -> bool:
        """Whether a trainer on GPUs keeps its weights in the host's memory."""
        return self.training.cpu_offload and self.services.trainer.with_gpus

    @property
    def episodes_at_once(self) -> int:
        """Episodes in flight in an evaluation."""
        return AT_ONCE[self.services.generator.with_gpus]

    @property
    def limits(self) -> EpisodeLimits:
        """Limits of an episode."""
        return self.env.limits()

    @property
    def deadlines(self) -> Deadlines:
        """Of operations that move the weights of the model."""
        return Deadlines(self.config.deadlines, self.shape.parameters if self.shape else 0)

    @property
    def patience(self) -> float:
        """Seconds after which a run in which nothing moves has failed: no group returns, no engine computes, no episode
        ends.

        `training.step_seconds`, or more. An episode works longest without the engine when a step ends, is scored and
        closed, and the next attempt is reset. An engine that hangs must be detected before that.
        """
        env, stall = self.env, self.config.deadlines.stall_seconds
        legal = max(3 * env.step_seconds + env.scoring_seconds, 1.25 * stall) + 60.0
        return max(self.training.step_seconds, legal)


def plan_objective(config: RunConfig, algorithm: Algorithm) -> Objective | None:
    """The objective that an algorithm makes of a config; None for supervised training."""
    if algorithm.objective is None:
        return None
    try:
        objective = algorithm.make_objective(config)
        LossCall(objective.loss)
    except Exception as error:
        if isinstance(error, ForgeError) or not algorithm.target:
            raise
        raise UserError(f"{algorithm.target}: its objective cannot be made: {type(error).__name__}: {error}") from error
    has_reference = config.services.ref_model.procs > 0 or config.lora.is_on
    objective = resolve(objective, config.training, has_reference=has_reference)
    training = config.training
    if training.loss or algorithm.target:
        try_loss(objective.loss, f"--loss {training.loss}" if training.loss else f"the loss of {algorithm.target}")
    if training.advantages:
        try_advantages(objective.advantages, objective.group_size, f"--advantages {training.advantages}")
    return objective
