"""Settings of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Self

from forge_env.core.errors import UserError
from forge_env.data.rows import find_file
from forge_env.utils.settings import BY_CASE, OR_BY_CASE, with_values
from trainers.algorithm import Algorithm
from trainers.config import RunConfig, TrainingConfig
from trainers.settings.supervised import SFTConfig
from trainers.settings.tasks import EnvConfig, WarmupConfig

DEMONSTRATION_STEPS = 150
INSTEAD = {
    "batch_size": "batch_size",
    "learning_rate": "learning_rate",
    "warmup_steps": "learning_rate_warmup",
    "lr_schedule": "",
    "gradient_accumulation_steps": "",
}
"""Settings of `training` that are for data, and the settings of `warmup` that demonstrations have instead."""


@dataclass(frozen=True, kw_only=True)
class SFTTrainingConfig(TrainingConfig):
    steps: Annotated[int, OR_BY_CASE] = BY_CASE
    max_tokens_per_micro_batch: int = 4096  # on any card: the size of a step follows it


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: EnvConfig = field(default_factory=lambda: EnvConfig(name=""))
    """Without a name it is code_exec; with sft.data there is no environment."""
    training: SFTTrainingConfig = field(default_factory=SFTTrainingConfig)
    """steps -1 is 150 on demonstrations, and on data as many as its epochs have. Data is always packed on a GPU."""
    warmup: WarmupConfig = field(default_factory=lambda: WarmupConfig(until_success=1.0, balance="none"))
    sft: SFTConfig = field(default_factory=SFTConfig)

    def resolved(self) -> Self:
        """The config with what follows from the source of the conversations; checks the settings."""
        training = self.training
        if self.sft.data:
            self._check_data()
            # On a CPU attention is dense, and short rows in long sequences cost twice the time that padding does.
            return with_values(self, {"training.packing": training.packing or self.services.trainer.with_gpus})
        self._refuse_settings_of_data()
        if self.resume or self.checkpoint.interval or self.evaluation.interval:
            raise UserError(
                "--resume, --checkpoint.interval and --evaluation.interval need --sft.data: on demonstrations "
                "trainers.sft saves one checkpoint, and evaluates, after its last step"
            )
        # Data without an environment is refused later.
        name = self.env.name or ("" if self.dataset.path else "code_exec")
        steps = DEMONSTRATION_STEPS if training.steps == BY_CASE else training.steps
        return with_values(self, {"env.name": name, "training.steps": steps})

    def check_data(self, model: Path | None) -> Sequence[str]:
        if not self.sft.data or find_file(self.sft.data) is None:
            return ()
        from trainers.sft.data import SFTData

        data = SFTData(
            self.sft, training=self.training, env=self.env, model_size=self.model.size, tools=self.renderer.tools
        )
        return data.check(model, renders_all=self.dry_run)

    def _refuse_settings_of_data(self) -> None:
        for name, instead in INSTEAD.items():
            usual_values = (getattr(TrainingConfig(), name), getattr(self.warmup, instead, None))
            if getattr(self.training, name) not in usual_values:  # the config of an earlier run has both
                remedy = f"set --warmup.{instead}" if instead else "it needs --sft.data"
                raise UserError(f"--training.{name} has no effect on demonstrations: {remedy}")
        for setting in fields(SFTConfig):
            if getattr(self.sft, setting.name) != setting.default:
                raise UserError(f"--sft.{setting.name} needs --sft.data: leave it out on demonstrations")

    def _check_data(self) -> None:
        sft = self.sft
        if self.training.batch_size != TrainingConfig().batch_size:
            raise UserError(
                f"--training.batch_size is {self.training.batch_size}, and with --sft.data a step is measured in "
                "tokens: set --sft.tokens_per_step instead"
            )
        if self.evaluation.interval and not self.env.name:
            raise UserError("--evaluation.interval needs an environment to measure success in: name it with --env")
        if sft.streaming and self.training.steps == BY_CASE:
            raise UserError("with --sft.streaming the length of the data is not known: say with --steps when to end")


SFT = Algorithm(name="sft", config=Config)
