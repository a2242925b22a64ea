"""RunPlan: everything that follows from the config of a run, derived once.

    config = read_config(Config, options)
    plan = make_plan(config, GRPO)  # trainers/setup/plan.py; starts nothing
    plan = ready(plan)              # that this machine can start
    await run_policy_gradient(plan)

`--dry-run` prints the plan, and a run executes the same object. Its fields are what it is made from, and what
`make_plan` adds: tasks, and the memory of all processes. Its properties follow from the fields; nothing derives such a
fact a second time. The user's own loss, advantages and reward are made once, with the plan; the loss is made a second
time in the trainer's process, which imports it by its target.

A model on the hub may have unknown sizes: `trainers.setup.plan.with_hub` downloads its config.json, and makes the plan
again. What can only be measured while a run starts is not in the plan, with two exceptions that make a new plan from
this one: what a downloaded folder says (`trainers.setup.plan.with_folders`), and the number of steps of supervised
training on data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from agents.generator.engine_args import read_engine_args
from agents.generator.settings import EngineSettings
from forge_env.core.errors import UserError
from forge_env.data.rows import find_file
from forge_env.rollout.factory import EnvFactory
from forge_env.runtime.host_settings import HostSettings
from forge_env.runtime.weights import WeightStore
from forge_env.utils.settings import leaves, values_of
from trainers.algorithm import Algorithm
from trainers.checkpoints import Checkpoint
from trainers.config import RunConfig
from trainers.families.shape import ModelShape
from trainers.lora import Lora
from trainers.model.find import FoundModel
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import choose_old_logprobs
from trainers.settings.services import Deadlines, ServiceConfig
from trainers.setup.card import Card, Processes, cards
from trainers.setup.options.defaults import Default, rising_steps
from trainers.setup.packages import missing_packages
from trainers.setup.placement import Placement, make_placement
from trainers.setup.run_tasks import RunTasks, chat_data
from trainers.titan.settings import ForwardSettings, ParallelismConfig, RateSettings, TitanSettings, TrainerSettings

ADAM_BETAS = (0.9, 0.95)
AT_ONCE = {True: 256, False: 64}
"""Episodes in flight in an evaluation, by whether the engine is on a GPU."""


@dataclass(frozen=True, kw_only=True)
class EnvShare:
    """Example: ``plan.share(episode.env).config.env.max_turns``"""

    label: str = ""
    """Names it in settings, metrics and episodes; "" is the only environment of a run."""
    weight: float = 1.0
    """Its share of the training is this part of the sum of all weights."""
    config: RunConfig
    """The settings of the run as this environment has them."""
    defaults: Mapping[str, Default]
    """By the names of the settings."""
    factory: EnvFactory
    source: str = ""
    """Its data as the user wrote it, for errors; "" for tasks of its own."""
    group_size: int = 0
    """Episodes of a group; 0 in supervised training."""
    tasks: RunTasks | None = None
    """Tasks of a local file, which are read before anything is started; None if the start reads them."""

    def about(self, sentences: Iterable[str]) -> list[str]:
        """Sentences about it, with its label."""
        return [f"{self.label}: {sentence}" if self.label else sentence for sentence in sentences]


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The settings of a run, and what follows from them."""

    user_config: RunConfig
    """The settings as the user gave them: -1 takes a default."""
    config: RunConfig
    """The complete settings."""
    defaults: Mapping[str, Default]
    """The defaults of what is trained, by the names of the settings."""
    algorithm: Algorithm
    model: FoundModel
    teachers: Mapping[str, FoundModel] = field(default_factory=dict)
    """The models of `distill.teacher`, as the environments name them; the policy itself is none of them."""
    objective: Objective | None
    """The loss, and how groups become samples, the user's own plugins among them; None for supervised training."""
    environments: Sequence[EnvShare] = ()
    """None for supervised training on data without an environment. Of several, `config.env` has the largest limits."""
    steps: int = 0
    """Optimizer steps; 0 if they are counted when the data is read."""
    checkpoint: Checkpoint | None = None
    """The checkpoint that the run goes on from; None for a new run."""
    about_data: Sequence[str] = ()
    """Sentences on the data: what was read, how it is divided, and which rows were left out."""
    card: float | None = None
    """Bytes that the run may use of each GPU; None without GPUs, or if that is not known."""

    # ---- the memory of its processes, see `trainers.setup.sizing.fit.with_sizes` ----

    store: WeightStore | None = None
    """Not open yet; None if it depends on the sizes of a model that is not downloaded yet."""
    store_reason: str = ""
    """Which store it is and why, as a sentence."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    about_engine: str = ""
    """A sentence on the engine's cache and sleep; "" for an engine on a CPU that does not sleep."""
    processes: Processes = ()
    """Every process with the estimate of its memory; None if the sizes of the model are not known."""
    problems: Sequence[str] = ()
    """Why this machine cannot start the run, as sentences."""

    def check(self) -> None:
        for problem in self.problems:
            raise UserError(problem)

    @property
    def usual(self) -> dict[str, Any]:
        """The defaults of all settings, by their names."""
        fixed = {setting.name: setting.value for setting in leaves(type(self.config)())}
        return fixed | {name: default.value for name, default in self.defaults.items()}

    @property
    def cards(self) -> list[Card]:
        """What each GPU holds, phase by phase; none if the sizes of the model are not known."""
        return cards(self.processes)

    @property
    def missing(self) -> list[str]:
        placement = self.placement
        missing = [f"{package} is not installed" for package in missing_packages()]
        missing += [model.missing for model in (self.model, *self.teachers.values()) if model.missing]
        if self.shape is None:
            missing.append("the sizes of the model, and so the estimates of its memory")
        for data in (share.config.dataset for share in self.environments):
            if data.path and find_file(data.path, data.split) is None:
                missing.append(
                    f"the data set {data.path} is no local file: the start reads it from the hub, or from its cache"
                )
        if placement.gpus_wanted and self.card is None:
            missing.append(
                "the memory of the GPUs, which --launcher.gpu_memory_gib says: whether the run fits is not known"
            )
        num_gpus = placement.gpus_needed
        available = placement.num_hosts * placement.gpus_per_host if num_gpus else 0
        if num_gpus > available:
            missing.append(f"{num_gpus - available} of {num_gpus} GPUs")
        return missing

    # ---- the environments ----

    @property
    def has_several(self) -> bool:
        return len(self.environments) > 1

    @property
    def views(self) -> Sequence[RunConfig]:
        """The settings as each environment has them."""
        return [share.config for share in self.environments] or [self.config]

    @property
    def compacts(self) -> bool:
        """Whether episodes may have further rows, after summaries."""
        return any(share.config.env.compact_at for share in self.environments)

    def part(self, share: EnvShare) -> float:
        """The part of an environment in the training, by the weights."""
        return share.weight / math.fsum(other.weight for other in self.environments)

    def share(self, label: str) -> EnvShare:
        """The environment of a label, as prompts and groups name it; the only one has any."""
        if not self.has_several:
            return self.environments[0]
        return next(share for share in self.environments if share.label == label)

    # ---- the algorithm ----

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
        section, choice = self.config.algorithm, self.config.training.old_logprobs
        if self.objective is None or section is None:
            return "generator"
        clips_rounding = section.clips_within_rounding and self.precision == "bfloat16"
        return choose_old_logprobs(choice, self.objective.loss, clips_rounding=clips_rounding)

    @property
    def window(self) -> int:
        """Optimizer steps whose old logprobs are of the same weights; their groups are all sampled before the first."""
        return self.config.training.sync_interval if self.old_logprobs == "trainer" else 1

    @property
    def rising_steps(self) -> int:
        return rising_steps(self.config, self.steps)

    @property
    def rate(self) -> RateSettings:
        training = self.config.training
        return RateSettings(
            learning_rate=training.learning_rate, lr_schedule=training.lr_schedule, warmup_steps=self.rising_steps
        )

    @property
    def has_warmup(self) -> bool:
        """Whether the run begins with supervised steps on the expert's demonstrations."""
        is_shown = self.is_supervised or self.config.warmup.steps > 0
        return is_shown and not chat_data(self.config) and not self.config.resume

    # ---- the engine ----

    @cached_property
    def engine_args(self) -> dict[str, Any]:
        """Arguments of vLLM, from `services.generator.engine`."""
        return read_engine_args(self.config.services.generator.engine)

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
        return self.config.lora.resolve(self.engine_dtype, self.shape)

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
        config, training = self.config, self.config.training
        return TitanSettings(
            **values_of(training, TrainerSettings),
            **values_of(config.parallelism, ParallelismConfig),
            **self._sequences,
            betas=ADAM_BETAS,
            replay=config.moe.replay != "off",
            lora=self.lora,
            threads=self.config.services.trainer.threads,
        )

    @property
    def trainer_at_start(self) -> TitanSettings:
        """What the trainer begins with, the run's first phase. An engine that sleeps while the trainer steps is awake
        while it loads: the memory of a step is not there then."""
        warmup, rate = self.config.warmup, self.rate
        if self.has_warmup:  # it rises and then stays
            rate = RateSettings(learning_rate=warmup.learning_rate, warmup_steps=warmup.learning_rate_warmup)
        return replace(
            self.trainer, **values_of(rate, RateSettings), total_steps=self.steps, compile_full=not self.engine.sleep
        )

    def frozen(self, service: ServiceConfig) -> TitanSettings:
        """What a reference model or a teacher takes: it computes logprobs as the trainer does.

        Its attention is the default of its own device, which may be another than the trainer's.
        """
        shared = values_of(self.config.training, ForwardSettings)
        return TitanSettings(**shared, **self._sequences, threads=service.threads)

    @property
    def frozen_models(self) -> dict[str, tuple[str, FoundModel]]:
        """By what each is called: its service of `FROZEN`, and its model. The reference is not started in every run."""
        teachers = enumerate(self.teachers.values(), 1)
        by_name = {f"teacher-{number}" if number > 1 else "teacher": ("teacher", model) for number, model in teachers}
        return {"reference": ("ref_model", self.model)} | by_name

    @property
    def _sequences(self) -> dict[str, Any]:
        training = self.config.training
        pack_length = training.max_tokens_per_micro_batch if training.packing else 0
        return {"pack_length": pack_length, "gpu_memory_gib": self.config.launcher.gpu_memory_gib}

    @property
    def trainer_dtype(self) -> str:
        """What the trainer computes in: "float32" or "bfloat16"."""
        return self.config.training.dtype_on(self.config.services.trainer.with_gpus)

    @property
    def engine_dtype(self) -> Literal["float32", "bfloat16"]:
        """What the engine computes in, and what weights are published in.

        vLLM 0.32 has no float32 kernel of linear attention on a CPU.
        """
        is_linear = self.shape is not None and self.shape.linear is not None
        return "bfloat16" if self.config.services.generator.with_gpus or is_linear else "float32"

    @property
    def precision(self) -> Literal["float32", "bfloat16"]:
        """The coarser of what the trainer and the engine compute in."""
        both = {self.trainer_dtype, self.engine_dtype}
        return "bfloat16" if "bfloat16" in both else "float32"

    # ---- processes ----

    @cached_property
    def placement(self) -> Placement:
        """Where each process is. A reference model is started unless the trainer is its own, without its adapters."""
        needs_reference = self.objective is not None and self.objective.kl_reference == "model"
        has_reference = needs_reference and not self.config.lora.is_on
        return make_placement(
            self.config, has_reference=has_reference, has_engine=self.has_engine, teachers=len(self.teachers)
        )

    @property
    def hosts(self) -> HostSettings | None:
        """How the hosts are reached; None if this machine is the only one."""
        return None if self.config.launcher.kind == "local" else self.config.launcher

    @property
    def restarts(self) -> int:
        """How often the run starts again by itself; somebody else watches a run on several hosts."""
        return 0 if self.hosts else self.config.launcher.restarts

    @property
    def has_engine(self) -> bool:
        """Whether an engine is started: supervised training without an environment has none."""
        return bool(self.config.env.name) or not self.is_supervised

    @property
    def is_offloaded(self) -> bool:
        """Whether a trainer on GPUs keeps its weights in the host's memory."""
        return self.config.training.cpu_offload and self.config.services.trainer.with_gpus

    @property
    def episodes_at_once(self) -> int:
        return AT_ONCE[self.config.services.generator.with_gpus]

    @property
    def deadlines(self) -> Deadlines:
        """Of operations that move the weights of a model, by the largest one."""
        shapes = [model.shape for model in (self.model, *self.teachers.values())]
        return self.config.deadlines.of(max(shape.parameters if shape else 0 for shape in shapes))

    @property
    def patience(self) -> float:
        """Seconds after which a run in which nothing moves has failed: no group returns, no engine computes, no episode
        ends.

        `training.step_seconds`, or more. An episode works longest without the engine when a step ends, is scored and
        closed, and the next attempt is reset. An engine that hangs must be detected before that.
        """
        env, stall = self.config.env, self.config.deadlines.stall_seconds
        legal = max(3 * env.step_seconds + env.scoring_seconds, 1.25 * stall) + 60.0
        return max(self.config.training.step_seconds, legal)
