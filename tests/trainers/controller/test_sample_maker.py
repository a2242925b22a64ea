"""A step's samples: who is asked for which logprobs, that they come back in place, and errors that surface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from forge_env.core.episode import Episode
from forge_env.core.errors import ServiceError
from forge_env.core.types import Outcome
from tests.trainers.episodes import episode, group, turn
from trainers.batching.batch import Sample
from trainers.controller.sample_maker import SampleMaker
from trainers.dapo import is_truncated
from trainers.losses import GRPOLoss
from trainers.objective.advantages import centred
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import OldLogprobs
from trainers.objective.reward import KLPenalty, TrainingReward

GROUPS = [
    group(episode(turn(1, 1), reward=1.0), episode(turn(2), reward=0.0, outcome=Outcome.TRUNCATED)),
    group(episode(turn(3, 3, 3), reward=0.0), episode(turn(4), turn(5), reward=1.0)),
]


REWARD_METRICS = ("training_reward", "training_reward_std", "group_reward_std", "groups_with_signal")


def made(**parts: object) -> Objective:
    return Objective(loss=lambda logprobs: logprobs, advantages=centred, group_size=2, **parts)  # type: ignore[arg-type]


async def tokens(samples: Sequence[Sample]) -> list[list[float]]:
    """Logprobs that tell which token they are of: minus its id."""
    return [
        [-float(t) for row in s.rows for t, m in zip(row.token_ids, row.loss_mask, strict=True) if m] for s in samples
    ]


async def halves(samples: Sequence[Sample]) -> list[list[float]]:
    return [[value / 2 for value in values] for values in await tokens(samples)]


async def test_each_sample_gets_its_own_logprobs() -> None:
    make = SampleMaker(objective=made(kl_reference="model"), reference=tokens)
    samples, rewards, metrics = await make(GROUPS, await halves([Sample(rows=e.rows) for g in GROUPS for e in g.valid]))
    assert [s.reference_logprobs.tolist() for s in samples] == [[-1, -1], [-2], [-3, -3, -3], [-4, -5]]
    assert [s.old_logprobs.tolist() for s in samples] == [[-0.5, -0.5], [-1], [-1.5] * 3, [-2, -2.5]]
    assert [s.advantage for s in samples] == [0.5, -0.5, -0.5, 0.5]
    assert rewards == [[1.0, 0.0], [0.0, 1.0]] and set(metrics) == {*REWARD_METRICS, "seconds/reference"}


async def test_the_spread_of_rewards_is_measured_in_the_step_and_within_its_groups() -> None:
    alike = [group(*(episode(turn(1), reward=reward) for _ in range(2))) for reward in (0.0, 1.0)]
    for groups, within in ((alike, 0.0), (GROUPS, 0.5)):
        metrics = (await SampleMaker(objective=made())(groups))[2]
        assert (metrics["training_reward_std"], metrics["group_reward_std"]) == (0.5, within)


async def test_skipped_episodes_keep_their_part_in_the_penalty() -> None:
    penalty = KLPenalty(beta=0.5)  # generator -1, so differences of 0, 1, 2 and 3, 4
    objective = made(kl_reference="model", skips=is_truncated, reward=TrainingReward(kl_penalty=penalty))
    old = OldLogprobs(objective=objective, logprobs=halves)
    await old.begin_window([[], GROUPS])
    assert old.take() is None
    samples, _, metrics = await SampleMaker(objective=objective, reference=tokens)(GROUPS, old.take())
    assert [s.old_logprobs.tolist() for s in samples] == [[-0.5, -0.5], [-1.5] * 3, [-2, -2.5]]
    assert [s.reference_logprobs.tolist() for s in samples] == [[-1, -1], [-3, -3, -3], [-4, -5]]
    # Rewards less penalties: 1 and -0.5; -3 and -2.5.
    assert [s.advantage for s in samples] == [0.75, -0.25, 0.25]
    assert metrics["kl_penalty"] == (0 + 0.5 + 3 + 3.5) / 4


async def test_with_nothing_to_ask_for_there_is_nothing_to_measure() -> None:
    samples, _, metrics = await SampleMaker(objective=made())(GROUPS)
    assert set(metrics) == set(REWARD_METRICS) and {(s.reference_logprobs, s.old_logprobs) for s in samples} == {
        (None, None)
    }
    generator, *_ = await SampleMaker(objective=made(kl_reference="generator"))(GROUPS)
    assert [s.reference_logprobs.tolist() for s in generator] == [[-1, -1], [-1], [-1, -1, -1], [-1, -1]]


async def test_what_is_trained_on_is_measured_and_asked_of_the_user_once() -> None:
    asked: list[str] = []

    def mine(e: Episode) -> float:  # the reward of the user's own, in the place of the environment's
        asked.append(e.id)
        return float(len(e.turns))

    objective = made(reward=TrainingReward(user_reward=mine))
    samples, rewards, metrics = await SampleMaker(objective=objective)(GROUPS)
    assert rewards == [[1.0, 1.0], [1.0, 2.0]] and len(asked) == 4
    assert [metrics[name] for name in REWARD_METRICS] == [1.25, pytest.approx(0.4330127), 0.25, 1.0]
    assert [sample.advantage for sample in samples] == [0.0, 0.0, -0.5, 0.5]


async def test_old_logprobs_are_asked_for_once_a_window_and_never_for_its_first_step() -> None:
    asked: list[int] = []

    async def counted(samples: Sequence[Sample]) -> list[list[float]]:
        asked.append(len(samples))
        return await tokens(samples)

    old = OldLogprobs(objective=made(), logprobs=counted)
    assert await old.begin_window([GROUPS]) == {} and old.take() is None and asked == []
    metrics = await old.begin_window([GROUPS, GROUPS[:1], GROUPS[1:]])
    assert set(metrics) == {"seconds/old_logprobs"} and asked == [2, 2]
    assert [old.take() for _ in range(3)] == [None, [[-1, -1], [-2]], [[-3, -3, -3], [-4, -5]]]
    assert asked == [2, 2]


async def test_an_error_surfaces_as_itself() -> None:
    async def breaks(samples: Sequence[Sample]) -> list[list[float]]:
        raise ServiceError("the reference process died")

    with pytest.raises(ServiceError, match="the reference process died"):
        await SampleMaker(objective=made(kl_reference="model"), reference=breaks)(GROUPS)
    with pytest.raises(ServiceError, match="the reference process died"):
        await OldLogprobs(objective=made(), logprobs=breaks).begin_window([GROUPS, GROUPS])


ROWS_ASKED = ((GRPOLoss(), [1, 2, 3, 4, 5]), (GRPOLoss(beta=0.1), [7, 8, 1, 2, 3, 4, 5]))


@pytest.mark.parametrize(("loss", "asked"), ROWS_ASKED)
async def test_old_logprobs_are_computed_only_for_samples_with_an_advantage(loss: GRPOLoss, asked: list[int]) -> None:
    """Where the loss gets nothing of the others; a penalty in the loss needs them all."""
    flat = group(episode(turn(7), reward=1.0), episode(turn(8), reward=1.0))
    seen: list[int] = []

    async def logprobs(samples: Sequence[Sample]) -> list[list[float]]:
        seen.extend(dict.fromkeys(token for s in samples for row in s.rows for token in row.token_ids if token))
        return await halves(samples)

    objective = replace(made(), loss=loss)
    old = OldLogprobs(objective=objective, logprobs=logprobs)
    await old.begin_window([GROUPS, [flat, *GROUPS]])
    assert seen == asked and old.take() is None
    samples, *_ = await SampleMaker(objective=objective)([flat, *GROUPS], old.take())
    assert [s.old_logprobs.tolist() for s in samples[2:]] == [[-0.5, -0.5], [-1], [-1.5] * 3, [-2, -2.5]]
    flat_ones = [s.old_logprobs and s.old_logprobs.tolist() for s in samples[:2]]
    assert flat_ones == ([None] * 2 if len(asked) == 5 else [[-3.5], [-4.0]])


async def test_nobody_is_asked_for_the_old_logprobs_of_a_step_without_any_advantage() -> None:
    flat = group(episode(turn(7), reward=1.0), episode(turn(8), reward=1.0))

    async def logprobs(samples: Sequence[Sample]) -> list[list[float]]:
        raise AssertionError("it was asked")

    old = OldLogprobs(objective=replace(made(), loss=GRPOLoss()), logprobs=logprobs)
    await old.begin_window([[flat], [flat]])
    assert (old.take(), old.take()) == (None, [None, None])
