"""The reward of training: the KL penalty in it, its sum, its turns, and what it is taken off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Identity

from forge_env.core.episode import Episode
from tests.trainers.episodes import episode, group, numbered_episodes, turn
from trainers.algorithm import make_objective
from trainers.dapo import OverlongPunishment
from trainers.grpo import Config, GRPOConfig
from trainers.objective.advantages import Baseline, no_baseline
from trainers.objective.credit import target_logprobs, turn_targets
from trainers.objective.loss_terms import kl_estimate
from trainers.objective.objective import Objective
from trainers.objective.reward import KLPenalty, TrainingReward

ONE = episode(turn(1, 1, logprobs=(-1.0, -2.0)), turn(2, logprobs=(-3.0,)), reward=1.0)
REFERENCE = (-2.0, -1.5, -3.5)  # differences 1, -0.5, 0.5


def test_worked_by_hand() -> None:
    assert KLPenalty(beta=0.1).by_turn(ONE, REFERENCE) == pytest.approx([0.05, 0.05])
    assert KLPenalty(beta=0.1, kind="k2").by_turn(ONE, REFERENCE) == pytest.approx([0.0625, 0.0125])
    k3 = [math.exp(-1) + 1 - 1 + math.exp(0.5) - 0.5 - 1, math.exp(-0.5) + 0.5 - 1]
    assert KLPenalty(beta=0.1, kind="k3").by_turn(ONE, REFERENCE) == pytest.approx([0.1 * value for value in k3])


@given(numbered_episodes(), st.sampled_from(["k1", "k2", "k3"]), st.data())
def test_the_penalty_is_the_estimator_of_the_loss_summed_by_turn(one: Episode, kind: str, data: st.DataObject) -> None:
    """Tokens without a finite logprob count nothing, on any rows."""
    own = target_logprobs(one)
    reference = data.draw(st.lists(st.floats(-9, 0), min_size=len(own), max_size=len(own)))
    found = KLPenalty(beta=0.5, kind=kind).by_turn(one, reference)  # type: ignore[arg-type]
    expected, position = [], 0
    for count in turn_targets(one):
        pairs = list(zip(own, reference, strict=True))[position : position + count]
        d = torch.tensor([a - b for a, b in pairs if math.isfinite(a)], dtype=torch.float64)
        expected.append(0.5 * kl_estimate(d, kind).sum().item())  # type: ignore[arg-type]
        position += count
    assert found == pytest.approx(expected, abs=1e-9)


def test_extreme_differences_stay_finite() -> None:
    for kind in ("k1", "k2", "k3"):
        found = KLPenalty(beta=1.0, kind=kind).by_turn(ONE, (-1e30, 0.0, -math.inf))  # type: ignore[arg-type]
        assert all(map(math.isfinite, found))


# ---- through the objective ----


def made(addition: Callable[[Episode], float] | None = None, **parts: object) -> Objective:
    return Objective(
        loss=lambda logprobs: logprobs,
        advantages=no_baseline,
        group_size=2,
        kl_reference="model",
        reward=TrainingReward(addition=addition, kl_penalty=KLPenalty(beta=0.1)),
        penalty_baseline=no_baseline,
        needs_siblings=False,
        **parts,  # type: ignore[arg-type]
    )


def advantages(objective: Objective, *members: tuple[Episode, Sequence[float]]) -> list[object]:
    samples = objective.samples([group(*(e for e, _ in members))], [values for _, values in members])
    assert [sample.reference_logprobs.tolist() for sample in samples] == [list(map(np.float32, v)) for _, v in members]
    return [sample.advantage for sample in samples]


def test_the_penalty_is_subtracted_from_the_reward_before_the_advantages() -> None:
    same = target_logprobs(ONE)
    assert advantages(made(), (ONE, REFERENCE), (ONE, same)) == pytest.approx([0.9, 1.0])


def test_the_scale_comes_from_shaped_rewards_without_penalties() -> None:
    punishment = OverlongPunishment(length=4, buffer=0.5)  # 3 sampled tokens: half of the penalty
    seen: list[float] = []

    def scale(rewards: Sequence[float]) -> float:
        seen.extend(rewards)
        return 2.0

    assert advantages(made(punishment.of_episode, scale=scale), (ONE, REFERENCE)) == pytest.approx([0.15])
    assert seen == pytest.approx([0.5])


def test_an_advantage_function_of_the_users_own_is_given_the_rewards_less_the_penalties() -> None:
    squares = replace(made(), advantages=lambda rewards: [reward**2 for reward in rewards], penalty_baseline=None)
    assert advantages(squares, (ONE, REFERENCE), (ONE, target_logprobs(ONE))) == pytest.approx([0.81, 1.0])


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 0.5 + 1e-12, 1.0]), st.floats(-3, 3)), min_size=2, max_size=6),
    st.sampled_from(["mean", "leave_one_out", "none"]),
    st.sampled_from(["none", "group", "batch", "mean"]),
    st.sampled_from(["episode", "turn"]),
    st.floats(1e-9, 1.0),
)
def test_advantages_move_in_proportion_to_beta_whatever_the_rewards_are(
    members: list[tuple[float, float]], baseline: Baseline, normalization: str, credit: str, beta: float
) -> None:
    """So a penalty of next to nothing changes next to nothing, in a group whose rewards are all the same too."""
    pairs = [
        (replace(ONE, reward=reward), [v - difference for v in target_logprobs(ONE)]) for reward, difference in members
    ]

    def found(beta: float) -> list[float]:
        section = GRPOConfig(beta=beta, kl_in="reward", normalization=normalization, credit=credit)  # type: ignore[arg-type]
        objective = make_objective(Config(grpo=section), Identity(), baseline=baseline)
        found = advantages(replace(objective, kl_reference="model"), *pairs)
        return [value for values in found for value in np.atleast_1d(values).tolist()]  # type: ignore[call-overload]

    without, whole = found(1e-300), found(beta)
    unit = found(1.0)
    for start, end, one in zip(without, whole, unit, strict=True):
        assert end - start == pytest.approx(beta * (one - start), abs=1e-9 * max(1.0, abs(start)))
        assert abs(end - start) <= beta * 2 * 2 * 3 * 3 + 1e-9 * max(1.0, abs(start))


def test_per_turn_the_penalty_of_a_turns_tokens_counts_up_to_that_turn() -> None:
    """The first turn answers for the penalties of both, the second for its own alone."""
    earned = episode(turn(1, 1, logprobs=(-1, -2), reward=0.25), turn(2, logprobs=(-3.0,)), reward=1.0)
    (found,) = advantages(made(credit="turn"), (earned, REFERENCE))
    assert found == pytest.approx([0.9, 0.9, 1.0 - 0.25 - 0.05])
