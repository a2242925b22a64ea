"""A loss and an advantage function of the user's own: `--loss module:MyLoss --advantages module:function`.

class MyLoss(torch.nn.Module):
    def forward(self, logprobs, ref_logprobs, advantages, padding_mask):
        ...                                  # (episodes, tokens), advantages (episodes, 1); returns a scalar

def my_advantages(rewards):                  # of the valid episodes of one group
    return [...]                             # one number for each
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from forge_env.errors import UserError
from forge_env.targets import is_file, load, split_target
from trainers.loss_call import Loss, LossCall

if TYPE_CHECKING:
    from trainers.config import TrainingConfig
    from trainers.objective import Objective


class OwnLoss:
    """A loss named by its target. It travels by name: the trainer's process imports the user's module itself.

    Raises:
        UserError: when the target cannot be imported, or is nothing that can be called as a loss.
    """

    def __init__(self, target: str) -> None:
        self.target = _absolute(target)
        self.loss = _callable(target, "--loss")
        self.normalizer_unit: str = getattr(self.loss, "normalizer_unit", "tokens")
        self.unused_tensors: frozenset[str] = frozenset(getattr(self.loss, "unused_tensors", ()))
        self.__signature__ = inspect.signature(self.loss.forward if isinstance(self.loss, nn.Module) else self.loss)

    def __call__(self, **tensors: Tensor) -> Tensor:
        return self.loss(**tensors)

    def __reduce__(self) -> tuple[type[OwnLoss], tuple[str]]:
        return OwnLoss, (self.target,)


def load_loss(target: str) -> Loss:
    """Return the loss of a target: a function, an object that can be called, or a class that is made without arguments.

    Raises:
        UserError: when there is none, or it asks for tensors that no trainer has.
    """
    loss = OwnLoss(target)
    try:
        names = LossCall(loss).names
    except UserError as error:
        raise UserError(f"--loss {target}: {error}") from None
    if not names & {"logprobs", "entropy"}:
        raise UserError(f"--loss {target}: it takes neither logprobs nor entropy, so it has no gradient")
    return loss


def load_advantages(target: str) -> Callable[[Sequence[float]], list[float]]:
    """Return the advantage function of a target: rewards of a group's valid episodes to one number for each.

    Raises:
        UserError: when there is none, or it cannot be called with one list.
    """
    function = _callable(target, "--advantages")
    try:
        inspect.signature(function).bind([0.0, 1.0])
    except TypeError as error:
        raise UserError(f"--advantages {target}: it is called with one list, a group's rewards: {error}") from None
    return function


def with_own_parts(objective: Objective, training: TrainingConfig) -> Objective:
    """Put the user's own loss and advantages in the place of the algorithm's.

    Raises:
        UserError: when one of them cannot be used.
    """
    if training.advantages:
        objective = replace(objective, advantages=load_advantages(training.advantages), scale=None)
    if training.loss:
        loss = load_loss(training.loss)
        reference = "generator" if "ref_logprobs" in LossCall(loss).names else ""
        objective = replace(objective, loss=loss, kl_reference=reference)
    return objective


def _absolute(target: str) -> str:
    """The same target for a process that works in another folder."""
    source, attribute = split_target(target)
    return f"{Path(source).expanduser().resolve()}:{attribute}" if is_file(source) else target


def _callable(target: str, option: str) -> Any:
    found = load(target)
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as error:
            raise UserError(f"{option} {target}: {error}; every setting of the class needs a default") from None
    if not callable(found):
        raise UserError(f"{option} {target} is {found!r}, which cannot be called")
    return found
