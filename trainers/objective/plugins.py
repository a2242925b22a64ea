"""Parts of the user's own: `--loss module:MyLoss --advantages module:function --reward module:function`.

class MyLoss(torch.nn.Module):
    def forward(self, logprobs, reference_logprobs, advantages, loss_mask):
        ...                                  # (episodes, tokens), advantages (episodes, 1); returns a scalar

def my_advantages(rewards):                  # of the valid episodes of one group
    return [...]                             # one number for each

def my_reward(episode):                      # a forge_env.core.episode.Episode that ended without a fault
    return ...                               # a number, instead of the environment's episode.reward

Each is tried on made-up values before anything starts. With `--grpo.credit turn` the advantage function is called once
for each turn, with the returns of the siblings that took the turn. The reward function replaces the environment's
reward in training, step rewards included, and in the test of dynamic sampling. It is called once for each episode. An
episode is left out and counted if the function raises, or returns None or another thing that is not a number.
What an algorithm adds to a reward, such as DAPO's overlong punishment, is added to its result. Reports show the
environment's reward and success. Both functions are called in threads of the controller, and the reward function for
one episode at a time.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, UserError
from forge_env.core.reward_value import reward_value
from forge_env.utils.targets import is_file, load, split_target
from trainers.objective.loss_call import Loss, LossCall
from trainers.settings.distill import DistillConfig
from trainers.settings.loop import LoopOptions

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.objective.objective import Objective


class NoReward(UserError):
    """The user's reward function returned None: the episode is to be left out."""


class OwnLoss:
    """A loss named by its target. It is sent as this name: the trainer's process imports the user's module itself."""

    def __init__(self, target: str) -> None:
        # The same target for a process that works in another folder.
        source, attribute = split_target(target)
        self.target = f"{Path(source).expanduser().resolve()}:{attribute}" if is_file(source) else target
        self.loss = _callable(target, "--loss")
        self.normalizer_unit: str = getattr(self.loss, "normalizer_unit", "tokens")
        self.unused_tensors: frozenset[str] = frozenset(getattr(self.loss, "unused_tensors", ()))
        self.__signature__ = inspect.signature(getattr(self.loss, "forward", self.loss))

    def __call__(self, **tensors: Tensor) -> Tensor:
        return self.loss(**tensors)

    def __reduce__(self) -> tuple[Callable[[str], OwnLoss], tuple[str]]:
        return _loss_of_target, (self.target,)


@functools.cache
def _loss_of_target(target: str) -> OwnLoss:
    """The loss of a target that was sent to this process. It comes with every step, and is made once."""
    return OwnLoss(target)


def load_loss(target: str) -> Loss:
    """The loss of a target: a function, a callable object, or a class that needs no arguments."""
    loss = OwnLoss(target)
    try:
        names = LossCall(loss).names
    except UserError as error:
        raise UserError(f"--loss {target}: {error}") from None
    if not names & {"logprobs", "entropy"}:
        raise UserError(f"--loss {target}: it takes neither logprobs nor entropy, so it has no gradient")
    return loss


def load_advantages(target: str) -> Callable[[Sequence[float]], list[float]]:
    """The advantage function of a target. It takes the rewards of a group's valid episodes and returns one number for
    each.
    """
    function = _callable(target, "--advantages")
    try:
        inspect.signature(function).bind([0.0, 1.0])
    except TypeError as error:
        raise UserError(f"--advantages {target}: it is called with one list, a group's rewards: {error}") from None

    def advantages(rewards: Sequence[float]) -> list[float]:
        try:
            values = list(function(list(rewards)))
            if text := next((value for value in values if isinstance(value, str)), None):
                raise TypeError(f"{text!r} is no number")
            return [float(value) for value in values]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"--advantages {target} failed on the rewards {list(rewards)}: {reason}") from error

    return advantages


def load_reward(target: str) -> Callable[[Episode], float]:
    """The reward function of a target. It takes a valid episode and returns a number, or None to leave it out."""
    function = _callable(target, "--reward")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise UserError(f"--reward {target}: it is called with one episode: {error}") from None

    one_at_a_time = threading.Lock()  # each group that comes back is judged in a thread of its own

    def reward(episode: Episode) -> float:
        try:
            with one_at_a_time:
                value = function(episode)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"--reward {target} failed on episode {episode.id}: {reason}") from error
        if value is None:
            raise NoReward(f"--reward {target} for episode {episode.id} returned None")
        try:
            return reward_value(value, f"--reward {target} for episode {episode.id} returned")
        except EnvError as error:
            raise UserError(str(error)) from None

    return reward


def resolve(
    objective: Objective, training: LoopOptions, distill: DistillConfig | None, *, has_reference: bool
) -> Objective:
    """The objective of a run: with the user's own parts, and with its teacher and its reference model decided."""
    objective = with_own_parts(objective, training)
    if distill is not None:
        objective = replace(objective, distillation=distill)
        if distill.only:  # no group is dropped, or given up, for its rewards
            objective = replace(objective, needs_signal=False, needs_siblings=False, scale=None)
    if training.old_logprobs == "trainer" and "old_logprobs" not in LossCall(objective.loss).names:
        raise UserError(
            "--training.old_logprobs is trainer, but the loss does not name old_logprobs and would not look at them: "
            "give it that argument, or leave the option out"
        )
    if objective.kl_reference and has_reference:
        return replace(objective, kl_reference="model")
    if objective.reward.kl_penalty is not None:
        raise UserError(
            "a KL penalty in the reward needs a reference model, for against the generator's own logprobs it is always "
            "0: --services.ref_model.procs 1"
        )
    return objective


def with_own_parts(objective: Objective, training: LoopOptions) -> Objective:
    """Replace the algorithm's loss, advantages and reward by the user's own."""
    if training.advantages:
        objective = replace(objective, advantages=load_advantages(training.advantages), scale=None)
        objective = replace(objective, needs_siblings=True, penalty_baseline=None)
    if training.reward:
        objective = replace(objective, reward=replace(objective.reward, user_reward=load_reward(training.reward)))
    if training.loss:
        loss = load_loss(training.loss)
        needs_reference = "reference_logprobs" in LossCall(loss).names or objective.reward.kl_penalty is not None
        objective = replace(objective, loss=loss, kl_reference="generator" if needs_reference else "")
    return objective


def _callable(target: str, option: str) -> Any:
    plugin = load(target, option=option)
    if isinstance(plugin, type):
        try:
            plugin = plugin()
        except TypeError as error:
            raise UserError(f"{option} {target}: {error}; every setting of the class needs a default") from None
    if not callable(plugin):
        raise UserError(f"{option} {target} is {plugin!r}, which cannot be called")
    return plugin
