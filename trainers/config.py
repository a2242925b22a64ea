"""The settings of a training run, put together from sections, the classes that the parts of a run take.

Every field is an option by its dotted name: `--training.learning_rate 1e-4`. The field states everything about the
option: its type with its bounds, its default, whether it may change when a run goes on (`MAY_CHANGE`; on a section, for
all its fields), and below it the text of --help. `OR_BY_CASE` allows -1: the default by what is trained, from the table
of `trainers.setup.options.defaults`. The other defaults are the tiny CPU recipe.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Self

from agents.generator.settings import UpdateOption
from forge_env.core.errors import UserError
from forge_env.runtime.weights.choice import WeightsConfig
from forge_env.utils.settings import MAY_CHANGE, checked_sections
from trainers.checkpoints import CheckpointConfig
from trainers.lora import LoraConfig
from trainers.metrics.settings import EvaluationConfig, MetricsConfig
from trainers.objective.settings import AlgorithmConfig
from trainers.settings.distill import SELF, DistillConfig
from trainers.settings.loop import LoopOptions
from trainers.settings.services import DeadlinesConfig, LauncherConfig, ServicesConfig
from trainers.settings.tasks import AuditConfig, DatasetConfig, EnvConfig, ModelConfig, RendererConfig, WarmupConfig
from trainers.titan.settings import MoEConfig, ParallelismConfig, TrainerSettings, TrainingRate

SHORT_OPTIONS = {
    "env": "env.name",
    "tools": "env.options.tools",
    "command": "env.options.command",
    "model": "model.path",
    "output": "output",
    "steps": "training.steps",
    "seed": "training.seed",
    "tasks": "dataset.tasks",
    "loss": "training.loss",
    "advantages": "training.advantages",
    "reward": "training.reward",
    "group_reward": "env.group_reward",
    "context.compact_at": "env.compact_at",
    "verbose": "metrics.verbose",
    "trainer": "services.trainer",
    "generator": "services.generator",
    "ref_model": "services.ref_model",
    "teacher": "services.teacher",
}
"""Short names of settings and, as in `--trainer.procs 4`, of sections."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(TrainerSettings, UpdateOption, TrainingRate, LoopOptions):
    """The loop and the trainer."""

    def check(self) -> None:
        """Check the schedule, and the staleness bound: between two updates the engine's weights get up to
        sync_interval - 1 steps old."""
        super().check()
        interval, steps, rising = self.sync_interval, self.steps, self.warmup_steps
        if self.most_behind < interval - 1:
            raise UserError(
                f"--training.sync_interval is {interval} and --training.staleness is {self.staleness}: the engine's "
                f"weights are up to {interval - 1} steps old between two updates, so leave it out, or allow that: "
                f"--training.staleness {interval - 1}"
            )
        if self.lr_schedule != "constant" and 0 < steps <= rising:
            raise UserError(
                f"--training.lr_schedule is {self.lr_schedule}, and --training.warmup_steps, {rising}, leaves none of "
                f"the {steps} steps to decay in: make it shorter"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What all algorithms share; each algorithm adds its own section."""

    output: Annotated[str, MAY_CHANGE] = ""
    """Folder of the run; empty makes a new one under outputs/."""
    resume: Annotated[bool, MAY_CHANGE] = False
    """Go on with the run of `output` from its newest checkpoint."""
    dry_run: Annotated[bool, MAY_CHANGE] = False
    """Print what would run, where, and what it needs; start nothing."""
    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    mixture: dict[str, Any] = field(default_factory=dict)
    """Settings in which one of several environments differs, by its label, the last part of its name:
    `--mixture.code_exec.options.level 2`. It may have options, limits and on_fault as in `env`, n_samples,
    reward_scale, distill.teacher, dataset.tasks and the like, and evaluation.n, temperature and top_p."""
    audit: Annotated[AuditConfig, MAY_CHANGE] = field(default_factory=AuditConfig)
    renderer: RendererConfig = field(default_factory=RendererConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    moe: MoEConfig = field(default_factory=MoEConfig)
    services: Annotated[ServicesConfig, MAY_CHANGE] = field(default_factory=ServicesConfig)
    launcher: Annotated[LauncherConfig, MAY_CHANGE] = field(default_factory=LauncherConfig)
    deadlines: Annotated[DeadlinesConfig, MAY_CHANGE] = field(default_factory=DeadlinesConfig)
    parallelism: Annotated[ParallelismConfig, MAY_CHANGE] = field(default_factory=ParallelismConfig)
    weights: Annotated[WeightsConfig, MAY_CHANGE] = field(default_factory=WeightsConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: Annotated[CheckpointConfig, MAY_CHANGE] = field(default_factory=CheckpointConfig)
    metrics: Annotated[MetricsConfig, MAY_CHANGE] = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", os.path.expanduser(self.output))

    def resolved(self) -> Self:
        """The config with what follows from other settings. An algorithm overrides it, and checks what it alone can."""
        return self

    def check(self) -> None:
        """Check each section, and settings of several sections against each other. No setting is -1 by now, but those
        that stay so.
        """
        for section in checked_sections(self):
            section.check()
        training, interval = self.training, self.training.sync_interval
        own = training.loss or training.advantages or training.reward
        if self.algorithm is None and (own or training.entropy_coef):
            raise UserError(
                "--loss, --advantages, --reward and --training.entropy_coef are for policy gradients: supervised "
                "training has its own loss"
            )
        if self.algorithm is None and self.distill.teacher:
            raise UserError(
                f"--distill.teacher is {self.distill.teacher}, and judges what the policy samples, which supervised "
                "training does not do: take python -m trainers.reinforce, or leave it out"
            )
        if self.distill.only and not self.distill.teacher and not self.mixture:  # else each environment is checked
            raise UserError("--distill.only is true and --distill.teacher is empty: name the model that teaches")
        if self.evaluation.interval % interval:
            raise UserError(
                f"--evaluation.interval is {self.evaluation.interval} and --training.sync_interval is {interval}: the "
                f"engines have new weights every {interval} steps only, so evaluate at a multiple of {interval}"
            )
        if self.checkpoint.step and not self.resume:
            raise UserError(
                f"--checkpoint.step is {self.checkpoint.step}, and needs --resume: it is the checkpoint that a run "
                "goes on from; give both, or leave it out"
            )
        if training.seq_len not in (0, self.env.max_tokens):
            raise UserError(
                f"--training.seq_len is {training.seq_len} and --env.max_tokens is {self.env.max_tokens}: both are the "
                "most tokens of an episode; give one of them"
            )
        self._check_ranks()
        if self.lora.is_on:
            self._check_adapters()

    def _check_ranks(self) -> None:
        """Check that the longest row can be cut over the ranks of context parallelism, and that ranks can rank tokens
        for a policy that teaches itself by them."""
        degree, longest = self.parallelism.context_parallel_degree, self.env.max_tokens
        least = 128 if self.services.trainer.with_gpus else 2  # of a rank's part: trainers.titan.context
        if degree > 1 and degree * least > longest:
            name = "training.seq_len" if self.training.seq_len else "env.max_tokens"
            raise UserError(
                f"--parallelism.context_parallel_degree is {degree}, which cuts rows into parts of at least {least} "
                f"tokens, and --{name}, the longest row, is {longest}: set the degree to {max(1, longest // least)} or "
                "less"
            )
        top_k = self.distill.top_k if SELF in self.teachers else 0
        for name in ("tensor_parallel_degree", "context_parallel_degree"):
            if top_k and (degree := getattr(self.parallelism, name)) > 1:
                raise UserError(
                    f"--distill.top_k is {top_k}, --distill.teacher is {SELF} and --parallelism.{name} is {degree}: a "
                    "trainer in such parts does not rank tokens, so set top_k to 0, or the degree to 1"
                )

    def _check_adapters(self) -> None:
        rank, procs = self.lora.rank, self.services.ref_model.procs
        if procs:
            raise UserError(
                f"--services.ref_model.procs is {procs} and --lora.rank is {rank}: a trainer of adapters is its own "
                "reference model, without them: set --services.ref_model.procs to 0"
            )
        if not self.model.path:
            raise UserError(
                f"--lora.rank is {rank}, and there is no --model: adapters beside the random weights of a model made "
                "on the spot learn nothing; name a --model that has learned, or set --lora.rank to 0"
            )

    def check_data(self, model: Path | None) -> Sequence[str]:
        """Check that data which replaces an environment's tasks can be learned from, as far as it is on this machine.

        Args:
            model: its folder; None if it is not here, or not made yet.

        Returns:
            Sentences about the data.
        """
        return ()

    @property
    def teachers(self) -> list[str]:
        """The settings `distill.teacher` of the environments, each once; complete in a plan. "" means no teacher."""
        of_each = [entry.get("distill", {}).get("teacher", "") for entry in self.mixture.values()]
        return [teacher for teacher in dict.fromkeys(of_each or [self.distill.teacher]) if teacher]

    @property
    def algorithm(self) -> AlgorithmConfig | None:
        """The section of the policy-gradient algorithm; None for supervised training."""
        return getattr(self, self.algorithm_name) if self.algorithm_name else None

    @property
    def algorithm_name(self) -> str:
        """The name of that section, such as "grpo"; "" for supervised training."""
        names = (setting.name for setting in fields(self))
        return next((name for name in names if isinstance(getattr(self, name), AlgorithmConfig)), "")
