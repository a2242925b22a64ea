"""Reward vectors against slow references: normalised parts, weights, clips and bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Group
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from tests.trainers.episodes import episode, group, turn
from trainers.config import SHORT_OPTIONS
from trainers.grpo import GRPO, Config
from trainers.objective.objective import Objective
from trainers.objective.reward_parts import Part
from trainers.setup.options.defaults import take_defaults
from trainers.setup.options.parser import parse

EPS = 1e-4


def objective(*options: str) -> Objective:
    config = take_defaults(parse(Config, ["--env", "math", *options], SHORT_OPTIONS), None)[0]
    return GRPO.make_objective(config)


def with_parts(*rewards: dict[str, float]) -> Group:
    one = episode(turn(1, 2))
    return group(*(replace(one, rewards=parts, reward=math.fsum(parts.values())) for parts in rewards))


def advantages(of: Objective, *groups: Group) -> list[float]:
    return [float(sample.advantage) for sample in of.samples(groups)]


def slow(groups: list[np.ndarray], parts: list[Part], *, batch: bool) -> np.ndarray:
    """The formula, with one row for each episode and one column for each part, in float64 and with plain loops."""
    sums = []
    for rewards in groups:
        masked = rewards.copy()
        for i, row in enumerate(rewards):
            for k in range(len(parts)):
                for bound_of, part in enumerate(parts):
                    if bound_of != k and part.at_least is not None and row[bound_of] < part.at_least:
                        masked[i, k] = 0.0
        total = np.zeros(len(rewards))
        for k, part in enumerate(parts):
            column = masked[:, k]
            spread = column.std(ddof=1)
            a = (column - column.mean()) / (spread + EPS) if np.ptp(column) > 0 else np.zeros(len(column))
            total += part.weight * (np.clip(a, -part.clip, part.clip) if part.clip else a)
        sums.append(total)
    flat = np.concatenate(sums)
    return flat / (flat.std(ddof=1) + EPS) if batch and np.ptp(flat) > 1e-9 else flat


NUMBERS = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0, 3.0])
PARTS = st.builds(
    Part,
    weight=st.sampled_from([-0.5, 0.25, 1.0, 2.0]),
    clip=st.sampled_from([0.0, 0.5, 1.0]),
    at_least=st.sampled_from([None, 0.25, 1.0]),
)


@given(
    st.lists(PARTS, min_size=1, max_size=3).flatmap(
        lambda parts: st.tuples(
            st.just(parts),
            st.lists(st.lists(st.tuples(*[NUMBERS] * len(parts)), min_size=2, max_size=5), min_size=1, max_size=3),
        )
    ),
    st.booleans(),
)
def test_advantages_are_the_formula(case: tuple[list[Part], list[Any]], batch: bool) -> None:
    parts, groups = case
    names = [f"p{k}" for k in range(len(parts))]
    options = ["--grpo.normalization", "batch" if batch else "group"]
    for name, part in zip(names, parts, strict=True):
        for field in ("weight", "clip", "at_least"):
            if (value := getattr(part, field)) is not None:
                options.append(f"--grpo.reward_parts.{name}.{field}={value}")
    made = [with_parts(*(dict(zip(names, row, strict=True)) for row in rows)) for rows in groups]
    expected = slow([np.array(rows) for rows in groups], parts, batch=batch)
    if batch and 0 < np.ptp(expected) < 1e-6:
        return  # rounding decides
    assert advantages(objective(*options), *made) == pytest.approx(expected, abs=1e-9)


def test_parts_with_one_sum_are_told_apart() -> None:
    """What a sum hides; and dynamic sampling keeps such a group."""
    played = with_parts({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 0.0})
    assert advantages(objective(), played) == [0.0] * 3
    of = objective("--grpo.reward_parts.a", "2", "--grpo.reward_parts.b", "1")
    assert advantages(of, played) == pytest.approx([0.577, -1.155, 0.577], abs=1e-3)
    assert of.task_rewards(played) == of.rewards([played])[0] != [0.0] * 3


def test_a_limit_leaves_no_part_and_counts_as_0() -> None:
    right, other = with_parts({"a": 1.0}, {"b": 1.0}).episodes
    played = group(right, replace(other, outcome=Outcome.TRUNCATED))
    assert advantages(objective("--grpo.reward_parts.a=1"), played) == pytest.approx([0.707, -0.707], abs=1e-3)


def test_an_episode_without_a_part_that_is_named_is_refused() -> None:
    with pytest.raises(UserError, match=r"the episode 1: its reward has no part 'aa'\. Did you mean a\?"):
        objective("--grpo.reward_parts.aa=1").rewards([with_parts({"aa": 1.0}, {"a": 1.0})])


def test_without_parts_nothing_changes() -> None:
    played = with_parts({"a": 1.0, "b": 0.3}, {"a": 0.0, "b": 0.7})
    of = objective()
    assert of.parts is None and of.rewards([played]) == [[1.3, 0.7]]


def test_weights_are_numbers_and_penalties_are_beside_them() -> None:
    of = objective("--grpo.reward_parts.a.weight=0.5", "--grpo.kl_in=reward", "--grpo.beta=0.1")
    assert of.parts is not None and of.parts.parts == {"a": Part(weight=0.5)} and of.penalty_baseline is not None
