"""The reward of a training step, from the environment's reward to the number that advantages are taken of.

1. The task's reward: the environment's `episode.reward`, or the number of the user's function (`--reward`). Dynamic
   sampling judges a group by it. The function is called once for each episode: a model that judges may change its mind.
2. Plus what the algorithm adds: DAPO's overlong punishment. Times `env.reward_scale`. Advantages are taken of this.
3. Less the KL penalty, with `kl_in reward`: beta times the KL estimate of each sampled token.

If number 2 is standardised, it does not contain the KL penalty. `Objective` subtracts the penalty from the advantages,
less its own baseline and not divided by a deviation. Otherwise a group with one reward for all its episodes would have
advantages of size 1 however small beta is. So beta weighs a nat alike in every group, as in the loss, and the
advantages are linear in beta. verl divides the sum of both by its deviation, and so has this jump at beta 0. An
advantage function of the user's own is given the rewards less the penalties.

What a run reports as reward and success is always the environment's.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from forge_env.core.episode import Episode
from forge_env.core.plain_value import own_copy
from trainers.objective.credit import by_turn, log_ratios
from trainers.objective.loss_terms import MAX_K3


@dataclass(frozen=True, slots=True, kw_only=True)
class KLPenalty:
    """The KL penalty of a reward: beta times the sum of an estimate over the sampled tokens.

    The estimators are defined in `trainers.objective.loss_terms.kl_estimate`, with d = generator logprob - reference
    logprob. The sum of k1 is the episode's log-ratio, as in TRL's RLOO (arXiv 2402.14740, equation 1). The generator
    sampled the tokens, so this is the generator's own divergence, and no gradient goes through it.
    """

    beta: float
    kind: Literal["k1", "k2", "k3"] = "k1"

    def by_turn(self, episode: Episode, reference_logprobs: np.ndarray) -> list[float]:
        """The penalty of each turn's tokens.

        Args:
            reference_logprobs: of the episode's sampled targets by the reference model, in row order.

        Returns:
            One number for each turn. A token without a finite logprob on either side counts nothing.
        """
        d = log_ratios(episode, reference_logprobs)
        values = d if self.kind == "k1" else d * d / 2 if self.kind == "k2" else np.minimum(np.expm1(-d) + d, MAX_K3)
        return [self.beta * math.fsum(of_turn) for of_turn in by_turn(values, episode)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReward:
    """The reward of a valid episode in training; this file's docstring has its steps.

    Example: ``TrainingReward(addition=OverlongPunishment(length=100).of_episode)(episode)``
    """

    user_reward: Callable[[Episode], float] | None = None
    """The user's function instead of the environment's reward (`--reward`)."""
    addition: Callable[[Episode], float] | None = None
    """What the algorithm adds to it."""
    scale: Callable[[Episode], float] | None = None
    """What both are multiplied with, by the episode's environment."""
    kl_penalty: KLPenalty | None = None
    """What is subtracted, if the KL penalty is not a term of the loss."""
    _cache: dict[int, tuple[weakref.ref[Episode], float]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The user's rewards of the episodes that still live, by `id`."""
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, init=False, compare=False, repr=False)
    """Of the user's function: with dynamic sampling several threads ask for rewards."""

    def of_task(self, episode: Episode) -> float:
        """Step 1: the environment's reward, or the user's instead."""
        assert episode.reward is not None, "a valid episode has a reward"
        if self.user_reward is None:
            return episode.reward
        number = id(episode)
        with self._one_at_a_time:
            if number not in self._cache:
                value = self.user_reward(own_copy(episode))
                self._cache[number] = weakref.ref(episode, lambda _: self._cache.pop(number, None)), value
            return self._cache[number][1]

    def __call__(self, episode: Episode) -> float:
        """Steps 1 and 2: the number that advantages are taken of."""
        reward = self.of_task(episode)
        reward = reward if self.addition is None else reward + self.addition(episode)
        return reward if self.scale is None else reward * self.scale(episode)

    def kl_by_turn(self, episode: Episode, reference_logprobs: np.ndarray | None) -> list[float]:
        """Step 3: the penalty of each turn's tokens; zeros without a penalty or a reference model."""
        if self.kl_penalty is None or reference_logprobs is None:
            return [0.0] * len(episode.work)
        return self.kl_penalty.by_turn(episode, reference_logprobs)
