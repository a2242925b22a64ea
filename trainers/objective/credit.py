"""Credit: the part of its episode's reward that a token answers for.

By episode, every sampled token gets the advantage of the whole reward. By turn, the tokens of turn k get the advantage
of the return from turn k on, G_k = R - (r_0 + ... + r_{k-1}). r_j is the step reward of turn j: a turn did not earn
what came before it. The group's advantage function is applied to the G_k of the siblings that took a turn k.
A summary in the place of old turns has no step of its own: it counts as a part of the turn after it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from forge_env.core.episode import Episode
from forge_env.core.reward_value import ROUNDING
from trainers.objective.loss_terms import MAX_LOG_RATIO

Credit = Literal["episode", "turn"]


def turn_targets(episode: Episode) -> list[int]:
    """The number of sampled targets of each turn of an episode's work, in the order of its rows.

    Counts freely sampled tokens. Skips inserted and constrained tokens, and a row's first token, which has no context.
    """
    return [
        turn.num_trained - (turn.starts_row and len(turn.prompt_ids) == 0 < len(turn.token_ids))
        for turn in episode.work
    ]


def target_logprobs(episode: Episode) -> np.ndarray:
    """The generator's logprobs of the sampled targets, in row order: float64."""
    sampled = (row.generator_logprobs[1:][row.loss_mask[1:]] for row in episode.rows)
    return np.concatenate([np.zeros(0), *sampled])


def log_ratios(episode: Episode, logprobs: np.ndarray) -> np.ndarray:
    """log(p_engine / p) of the sampled targets, in row order, within +-MAX_LOG_RATIO: float64.

    `logprobs` are p's, of another model. A target without a finite logprob on either side has 0.
    """
    with np.errstate(invalid="ignore"):
        d = target_logprobs(episode) - np.asarray(logprobs, dtype=np.float64)
    return np.where(np.isfinite(d), d, 0.0).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def returns_to_go(reward: float, step_rewards: Sequence[float]) -> list[float]:
    """The return from each turn on: the whole reward less the step rewards of the turns before.

    The reward is a rounded sum of them, so what it has beside them may be rounding: that is 0.

    >>> returns_to_go(3.0, [1.0, 0.5, 0.0]), returns_to_go(0.1 + 0.7, [0.1, 0.7, 0.0])[-1]
    ([3.0, 2.0, 1.5], 0.0)
    """
    beside = math.fsum((reward, *(-step for step in step_rewards)))
    if abs(beside) <= ROUNDING * max(1.0, *map(abs, (reward, *step_rewards))):
        beside = 0.0
    rest = (math.fsum((beside, *step_rewards[turn:])) for turn in range(1, len(step_rewards)))
    return [reward, *rest][: len(step_rewards)]


def turn_advantages(
    returns: Sequence[Sequence[float]],
    advantages: Callable[[Sequence[float]], list[float]],
    *,
    needs_siblings: bool = True,
) -> list[list[float]]:
    """Apply a group's advantage function to the returns of each turn.

    Args:
        returns: one list for each valid sibling, with one return for each of its turns.
        advantages: makes one advantage for each return that it is given: the returns of the siblings that took a turn,
            in order.
        needs_siblings: if only one sibling took a turn, the turn gets 0, because there is nothing to compare it with.
            False calls `advantages` for it as for every other.

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


def _steps_of(episode: Episode) -> np.ndarray:
    """The number of the step that each turn of the work belongs to: int64. A summary belongs to the step after it."""
    is_step = [not turn.is_summary for turn in episode.work]
    return np.cumsum([0, *is_step])[:-1]


def by_step(values: Sequence[float], episode: Episode) -> list[float]:
    """Add one value for each turn of the work up to one for each step: a turn, with the summary before it."""
    return np.bincount(_steps_of(episode), weights=values).tolist()


def per_target(values: Sequence[float], episode: Episode) -> np.ndarray:
    """Spread one value for each step of the work over the sampled targets of its turns, in row order: float64."""
    return np.repeat(np.asarray(values, dtype=np.float64)[_steps_of(episode)], turn_targets(episode))


def by_turn(values: np.ndarray, episode: Episode) -> Iterator[np.ndarray]:
    """Cut values of the sampled targets, in row order, into one array for each turn of the work."""
    ends = itertools.accumulate(turn_targets(episode), initial=0)
    return (values[start:end] for start, end in itertools.pairwise(ends))


def turn_values(values: float | np.ndarray, episode: Episode) -> list[float]:
    """One value for each turn: the value that all turns share, or the mean of its targets. A turn without targets has
    0."""
    if isinstance(values, int | float):
        of_work = iter([float(values)] * len(episode.work))
    else:
        # Differences from the first one: the mean of equal values is then exactly that value.
        means = (
            of_turn[0] + (of_turn - of_turn[0]).mean() if len(of_turn) else 0.0 for of_turn in by_turn(values, episode)
        )
        of_work = iter([float(mean) for mean in means])
    return [0.0 if turn.auxiliary else next(of_work) for turn in episode.turns]
