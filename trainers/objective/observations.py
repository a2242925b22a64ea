"""Observations as data: the model also learns to predict what its environment answers (ECHO, arXiv 2605.24517).

    L = L_policy + observation_coef * L_env,    L_env = mean over episodes i of  1 / |O_i| sum over t in O_i of
                                                        -log p(y_t | y_<t)

O_i are the tokens of an episode that its environment wrote after the model's first turn: results of tools and later
messages, with the marks of the chat template. The first prompt of a row is none of them, nor what an auxiliary turn was
asked. Every episode with such tokens counts alike, as in the paper's code (`sequence_mean`); verl and prime-rl take one
mean over all tokens. An advantage plays no part. The logprobs are those of the policy's own pass, at its temperature.
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


def observation_loss(batch: MicroBatch, logprobs: Tensor) -> Tensor | None:
    """The sum of L_env over the episodes of a micro-batch, a scalar; None without observed tokens.

    `logprobs` (M,) are of its observed tokens, with gradient.
    """
    return -(batch.observed * logprobs).sum() if len(logprobs) else None
