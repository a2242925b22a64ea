"""Credit: which of an episode's tokens answer for which part of its reward.

Per episode, every sampled token gets the advantage of the whole reward. Per turn, the tokens of turn k get that of the
return from there on, G_k = R - (r_0 + ... + r_{k-1}), with r_j the step reward of turn j: what was earned before a turn
is not its merit. The group's advantage function is applied to the G_k of those siblings that took a turn k.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from forge_env.core.episode import Episode
from trainers.batching.batch import Numbers

Credit = Literal["episode", "turn"]


def turn_targets(episode: Episode) -> list[int]:
    """How many sampled targets each turn of the work of an episode has, in the order of its rows.

    All of its tokens that were sampled freely, and none that were inserted or constrained, but for one that is the
    first of its row: nothing comes before it that could predict it.
    """
    return [
        turn.num_trained - (turn.starts_row and not turn.num_prompt and bool(turn.num_tokens)) for turn in episode.work
    ]


def target_logprobs(episode: Episode) -> np.ndarray:
    """The generator's logprobs of the sampled targets, in row order: float64."""
    rows = [row.arrays for row in episode.rows]
    return np.concatenate([np.zeros(0), *(row.generator_logprobs[1:][row.loss_mask[1:]] for row in rows)])


def returns_to_go(reward: float, step_rewards: Sequence[float]) -> list[float]:
    """The return from each turn on: the whole reward less the step rewards of the turns before.

    >>> returns_to_go(3.0, [1.0, 0.5, 0.0])
    [3.0, 2.0, 1.5]
    """
    return [math.fsum((reward, *(-r for r in step_rewards[:turn]))) for turn in range(len(step_rewards))]


def turn_advantages(
    returns: Sequence[Sequence[float]],
    advantages: Callable[[Sequence[float]], list[float]],
    *,
    needs_siblings: bool = True,
) -> list[list[float]]:
    """Apply a group's advantage function to the returns of each turn.

    Args:
        returns: of each valid sibling, its returns, one for each of its turns.
        advantages: of the returns of those siblings that took a turn, in order.
        needs_siblings: a turn that one sibling alone took gets 0, there being nothing to compare it with; False hands
            it to `advantages` like every other.

    Returns:
        As `returns`.

    >>> turn_advantages([[1.0, 4.0], [0.0]], lambda values: [v - sum(values) / len(values) for v in values])
    [[0.5, 0.0], [-0.5]]
    """
    result: list[list[float]] = [[] for _ in returns]
    for turn in range(max(map(len, returns), default=0)):
        took = [sibling for sibling, of_turns in enumerate(returns) if len(of_turns) > turn]
        column = [returns[sibling][turn] for sibling in took]
        values = [0.0] if needs_siblings and len(took) < 2 else advantages(column)
        for sibling, value in zip(took, values, strict=True):
            result[sibling].append(value)
    return result


def per_target(values: Sequence[float], episode: Episode) -> np.ndarray:
    """Spread one value for each turn of the work over that turn's sampled targets, in row order: float64."""
    return np.repeat(np.asarray(values, dtype=np.float64), turn_targets(episode))


def by_turn(values: Numbers, episode: Episode) -> Iterator[Numbers]:
    """Cut values of the sampled targets, in row order, into those of each turn of the work."""
    ends = itertools.accumulate(turn_targets(episode), initial=0)
    return (values[start:end] for start, end in itertools.pairwise(ends))


def turn_values(values: float | Numbers, episode: Episode) -> list[float]:
    """One value for each turn: the one that all have, or that of the turn's targets; a turn without targets has 0."""
    if isinstance(values, int | float):
        of_work = iter([float(values)] * len(episode.work))
    else:
        of_work = iter([float(of_turn[0]) if len(of_turn) else 0.0 for of_turn in by_turn(values, episode)])
    return [0.0 if turn.auxiliary else next(of_work) for turn in episode.turns]
