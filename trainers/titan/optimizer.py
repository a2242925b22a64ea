"""AdamW with its moments in float32, in bfloat16 or in 8 bits.

- "float32": torch's AdamW, 8 bytes a parameter.
- "bfloat16": TorchTitan's AdamW with a fused kernel, on GPUs only: 4 bytes a parameter.
- "8bit": torchao's, with moments quantized in blocks of 256 numbers: 2 bytes a parameter. The first step compiles a
  kernel for each shape of a weight, on a CPU with a C++ compiler. Moments stay in float32 if a shard has fewer than
  4,096 numbers, or a number that 256 does not divide. The embedding's moments stay in float32 too, as in "8-bit
  Optimizers via Block-wise Quantization" (arXiv 2110.02861): most of its rows have no gradient in a step. If the second
  moment of such a row is rounded to 0 and the first is not, AdamW divides by epsilon.

The weights are float32 in any case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor, nn

from trainers.titan.device import device  # isort: skip
from torch.optim import Optimizer
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, default_adamw
from torchtitan.components.optimizer.optimizer import ParamGroupConfig

from trainers.titan.settings import TitanSettings


class _Optimizers(OptimizersContainer):
    """TorchTitan's container, with torchao's AdamW added."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., Optimizer]:
        if name != "AdamW8bit":
            return OptimizersContainer._resolve_optimizer_factory(name)
        from torchao.optim import AdamW8bit

        return AdamW8bit


def build_adamw(module: nn.Module, hyperparameters: Mapping[str, Any], *, state: str) -> OptimizersContainer:
    """AdamW for all weights of a model.

    Args:
        state: `TrainerSettings.optimizer_state`, after `check_state`.
    """
    config: OptimizersContainer.Config = default_adamw(**hyperparameters)
    if state == "8bit":
        names = {"tok_embeddings|embed_tokens": "AdamW", ".*": "AdamW8bit"}  # patterns; the first that matches counts
        groups = [
            ParamGroupConfig(pattern=pattern, optimizer_name=name, optimizer_kwargs=dict(hyperparameters))
            for pattern, name in names.items()
        ]
        config = _Optimizers.Config(param_groups=groups)
    # With offloaded weights the optimizer runs on the CPU, and the fused kernel is the fastest there, too.
    config.implementation = "foreach" if device().type == "cpu" else "fused"
    if state == "bfloat16":
        config.implementation = "fused_opt_states_bf16"
    return config.build(model_parts=[module])


def take_step(optimizers: OptimizersContainer, state: str) -> None:
    """One step with the gradients that there are; `state` is `TrainerSettings.optimizer_state`.

    torchao compiles the step of a weight. On disk torch keeps one such code for CPU and GPU, so that the one device
    would get the code of the other.
    """
    with torch._functorch.config.patch(enable_autograd_cache=False) if state == "8bit" else nullcontext():
        optimizers.step()


def go_on(
    optimizers: OptimizersContainer, schedulers: LRSchedulersContainer, settings: TitanSettings, steps: int
) -> None:
    """Go on from a loaded state, after this number of steps, with the hyperparameters of the settings."""
    set_rate(schedulers, settings)
    restore_state_dtype(optimizers, settings.optimizer_state)
    forget_empty_moments(optimizers, steps)


def set_rate(schedulers: LRSchedulersContainer, settings: TitanSettings) -> None:
    """Take the hyperparameters of the settings, and the learning rate of the schedule."""
    for scheduler in schedulers:
        for group, lr in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            set_hyperparameters(group, settings.hyperparameters, lr)


def set_hyperparameters(group: dict[str, Any], hyperparameters: Mapping[str, Any], lr: float) -> None:
    """Set the hyperparameters of a parameter group, with learning rate `lr`; torchao keeps it as a tensor."""
    old_lr = group["lr"]
    group.update(hyperparameters, lr=old_lr.fill_(lr) if isinstance(old_lr, Tensor) else lr)


def forget_moments(optimizers: OptimizersContainer) -> None:
    for optimizer in optimizers.optimizers:
        optimizer.state.clear()


def set_first_rate(optimizers: OptimizersContainer, hyperparameters: Mapping[str, Any]) -> None:
    """Forget the schedule, and take these hyperparameters."""
    for optimizer in optimizers.optimizers:
        for group in optimizer.param_groups:
            set_hyperparameters(group, hyperparameters, hyperparameters["lr"])
            group.pop("initial_lr", None)  # otherwise a new schedule would take the last one's value


def forget_empty_moments(optimizers: OptimizersContainer, steps: int) -> None:
    """Undo what saving and loading do to an optimizer that has taken no step.

    To create the moments torch takes a step without gradients. AdamW's bias correction would then count the first real
    step as the second.
    """
    if steps == 0:
        forget_moments(optimizers)


def restore_state_dtype(optimizers: OptimizersContainer, state: str) -> None:
    """Bring loaded moments back to bfloat16: torch's optimizers load them in the dtype of their weights."""
    if state != "bfloat16":
        return
    for optimizer in optimizers:
        for moments in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                if name in moments:
                    moments[name] = moments[name].to(torch.bfloat16)  # exact: it was written from bfloat16


def build_schedule(
    optimizers: OptimizersContainer, kind: str, *, warmup_steps: int, total_steps: int
) -> LRSchedulersContainer:
    """TorchTitan's schedule for a phase of `total_steps`, which "constant" does not need.

    With W steps of warm-up and N in all, step s (from 0) has (s + 1) / W of the learning rate during the warm-up. From
    then on, with x = (s - W) / (N - W), it has 1 - x ("linear") or (1 + cos(pi x)) / 2 ("cosine"). So the step after
    the last one, and every further one, would have 0.
    """
    decays = kind != "constant"
    config = LRSchedulersContainer.Config(
        warmup_steps=warmup_steps, decay_ratio=None if decays else 0.0, decay_type=kind if decays else "linear"
    )
    schedule = config.build(optimizers=optimizers, training_steps=total_steps if decays else sys.maxsize)
    if decays:  # beyond the end TorchTitan's formulas go on: a linear rate below 0, a cosine up again
        for scheduler in schedule:
            scheduler.lr_lambdas = [_hold(share, total_steps) for share in scheduler.lr_lambdas]
    return schedule


def _hold(share: Callable[[int], float], last: int) -> Callable[[int], float]:
    return lambda step: share(min(step, last))
