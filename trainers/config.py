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
from typing import Annotated, Self

from agents.generator.settings import UpdateOption
from forge_env.runtime.weights.choice import WeightsConfig
from forge_env.utils.settings import MAY_CHANGE
from trainers.checkpoints import CheckpointConfig
from trainers.lora import LoraConfig
from trainers.metrics.settings import EvaluationConfig, MetricsConfig
from trainers.objective.settings import AlgorithmConfig
from trainers.settings.loop import LoopOptions
from trainers.settings.services import DeadlinesConfig, LauncherConfig, ServicesConfig
from trainers.settings.tasks import DatasetConfig, EnvConfig, ModelConfig, RendererConfig, WarmupConfig
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
    "verbose": "metrics.verbose",
    "trainer": "services.trainer",
    "generator": "services.generator",
    "ref_model": "services.ref_model",
}
"""Short names of settings and, as in `--trainer.procs 4`, of sections."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(TrainerSettings, UpdateOption, TrainingRate, LoopOptions):
    """The loop and the trainer."""


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
    renderer: RendererConfig = field(default_factory=RendererConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
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
        """The config with what follows from other settings; checks what only the algorithm can, which overrides this.

        Raises:
            UserError: settings contradict each other.
        """
        return self

    def describe_data(self) -> Sequence[str]:
        """Sentences about data that replaces an environment's tasks, as far as it is on this machine.

        Raises:
            UserError: the data cannot be read.
        """
        return ()

    def check_data(self, model: Path | None) -> None:
        """Check that such data can be learned from, as far as it is on this machine.

        Args:
            model: its folder; None if it is not here, or not made yet.

        Raises:
            UserError: no row of it can be used.
        """

    @property
    def algorithm(self) -> AlgorithmConfig | None:
        """The section of the policy-gradient algorithm; None for supervised training."""
        return getattr(self, self.algorithm_name) if self.algorithm_name else None

    @property
    def algorithm_name(self) -> str:
        """The name of that section, such as "grpo"; "" for supervised training."""
        names = (setting.name for setting in fields(self))
        return next((name for name in names if isinstance(getattr(self, name), AlgorithmConfig)), "")
