"""How a model is trained."""

from __future__ import annotations

from dataclasses import dataclass

from forge_env.core.errors import UserError
from forge_env.utils.settings import check_choices
from trainers.lora import Lora
from trainers.settings.trainer import ParallelismConfig, RateSettings, TrainerSettings


@dataclass(frozen=True, kw_only=True)
class TitanSettings(TrainerSettings, ParallelismConfig, RateSettings):
    """How to train, e.g. `TitanSettings(learning_rate=3e-4, threads=2)`."""

    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    total_steps: int = 0
    """Optimizer steps after which "linear" and "cosine" have reached 0."""
    max_tokens_per_micro_batch: int = 16384
    pack_length: int = 0
    """Pack rows into sequences of this many tokens; 0 pads each row instead."""
    threads: int = 0
    """CPU threads of torch; 0 leaves them as they are."""
    compile_full: bool = False
    """On GPU, with `pack_length`: compile for a full micro-batch, too, before the first step. This takes the memory of
    a step."""
    replay: bool = True
    """In a model with experts: compute tokens with the experts that the engine chose, if rows have `routes`."""
    lora: Lora | None = None
    """Adapters to train instead of all weights, which are then frozen in the dtype in which the model computes."""
    gpu_memory_gib: float = 0.0
    """GPU memory of this process at most, in GiB; 0 is all of it."""

    def __post_init__(self) -> None:
        check_choices(self)
        kind, warmup, total = self.lr_schedule, self.warmup_steps, self.total_steps
        if kind != "constant" and total <= warmup:
            raise UserError(
                f"lr_schedule={kind!r} with total_steps={total} and warmup_steps={warmup} leaves no step to decay in: "
                "set total_steps to the optimizer steps of the whole phase."
            )
