"""Observations as data: the model also learns to predict what its environment answers (ECHO, arXiv 2605.24517).

    L = L_policy + observation_coef * L_env,    L_env = mean over episodes i of  1 / |O_i| sum over t in O_i of
                                                        -log p(y_t | y_<t)

O_i are the tokens of an episode that its environment wrote after the model's first turn: results of tools and later
messages, with the marks that the chat template puts around them. The first prompt of a row is none of them, nor is what
an auxiliary turn was asked. Every episode of a step counts alike, as in the paper's code (`sequence_mean`), and one
without such tokens not at all; verl and prime-rl take one mean over all tokens. An advantage plays no part, so that
failed episodes teach as well. The logprobs come from the policy's own forward pass, and are those at the sampling
temperature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge_env.core.episode import Episode
from forge_env.core.tokens import MASK

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.batching.batch import MicroBatch


def observed_tokens(episode: Episode) -> np.ndarray:
    """True on the tokens of O_i: bool, one for each token of the episode's rows, in order."""
    lengths, kinds = [], []
    for turn in episode.turns:
        if turn.kind != "text":
            lengths += [len(turn.prompt_ids), len(turn.token_ids)]
            kinds += [not (turn.starts_row or turn.auxiliary), False]
    return np.repeat(np.array(kinds, dtype=MASK), lengths)


class ObservationLoss:
    """observation_coef * L_env of one optimizer step, called on one micro-batch after the other.

    Args:
        coef: observation_coef.
        episodes: of the step, over all ranks, that have observed tokens.
        zero: a scalar 0 on the device of the batches.
    """

    def __init__(self, coef: float, episodes: int, zero: Tensor) -> None:
        self._coef = coef
        self._episodes = episodes
        self.total = zero.clone()
        """This rank's part of L_env."""

    def __call__(self, batch: MicroBatch, logprobs: Tensor) -> Tensor | None:
        """The micro-batch's part, a scalar with gradient; None without observed tokens.

        Args:
            batch: with rows of whole or of split episodes.
            logprobs: (M,) of its observed tokens, with gradient.
        """
        if not self._coef or not len(logprobs):
            return None
        loss = -(batch.observed * logprobs).sum() / self._episodes
        self.total += loss.detach()
        return self._coef * loss

    def values(self, tokens: int) -> dict[str, float]:
        """The metrics of the step, once `total` is the sum over the ranks; `tokens` is the number of observed ones.

        Nothing where the loss is off, and no loss without a token: a figure of none would be made up.
        """
        if not self._coef:
            return {}
        loss = {"observation_loss": float(self.total)} if tokens else {}
        return {"observation_tokens": float(tokens), **loss}
