"""A step's samples: who is asked for which logprobs, that they come back in place, and errors that surface."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from forge_env.errors import ServiceError
from forge_env.types import Outcome
from tests.trainers.episodes import episode, group, turn
from trainers.advantages import centred
from trainers.batch import Sample
from trainers.kl_reward import KLPenalty
from trainers.losses import GRPOLoss
from trainers.objective import Objective
from trainers.overlong import is_truncated
from trainers.sample_maker import SampleMaker

GROUPS = [
    group(episode(turn(1, 1), reward=1.0), episode(turn(2), reward=0.0, outcome=Outcome.TRUNCATED)),
    group(episode(turn(3, 3, 3), reward=0.0), episode(turn(4), turn(5), reward=1.0)),
]


def made(**parts: object) -> Objective:
    return Objective(loss=lambda logprobs: logprobs, advantages=centred, group_size=2, **parts)  # type: ignore[arg-type]


async def tokens(samples: Sequence[Sample]) -> list[list[float]]:
    """Logprobs that tell which token they are of: minus its id."""
    return [[-float(t) for row in s.rows for t, m in zip(row.token_ids, row.mask, strict=True) if m] for s in samples]


async def halves(samples: Sequence[Sample]) -> list[list[float]]:
    return [[value / 2 for value in values] for values in await tokens(samples)]


async def test_each_sample_gets_its_own_logprobs() -> None:
    make = SampleMaker(objective=made(kl_reference="model"), reference=tokens, old=halves)
    samples, metrics = await make(GROUPS)
    assert [s.ref_logprobs for s in samples] == [(-1, -1), (-2,), (-3, -3, -3), (-4, -5)]
    assert [s.old_logprobs for s in samples] == [(-0.5, -0.5), (-1,), (-1.5,) * 3, (-2, -2.5)]
    assert [s.advantage for s in samples] == [0.5, -0.5, -0.5, 0.5]
    assert set(metrics) == {"seconds/reference", "seconds/old_logprobs"}


async def test_what_is_not_learned_from_keeps_its_part_in_the_penalty() -> None:
    penalty = KLPenalty(beta=0.5)  # generator -1, so differences of 0, 1, 2 and 3, 4
    objective = made(kl_reference="model", skips=is_truncated, kl_penalty=penalty)
    samples, metrics = await SampleMaker(objective=objective, reference=tokens, old=halves)(GROUPS)
    assert [s.old_logprobs for s in samples] == [(-0.5, -0.5), (-1.5,) * 3, (-2, -2.5)]
    assert [s.ref_logprobs for s in samples] == [(-1, -1), (-3, -3, -3), (-4, -5)]
    # Rewards less penalties: 1 and -0.5; -3 and -2.5.
    assert [s.advantage for s in samples] == [0.75, -0.25, 0.25]
    assert metrics["kl_penalty"] == (0 + 0.5 + 3 + 3.5) / 4


async def test_with_nothing_to_ask_for_there_is_nothing_to_measure() -> None:
    samples, metrics = await SampleMaker(objective=made())(GROUPS)
    assert metrics == {} and {(s.ref_logprobs, s.old_logprobs) for s in samples} == {(None, None)}
    generator, _ = await SampleMaker(objective=made(kl_reference="generator"))(GROUPS)
    assert [s.ref_logprobs for s in generator] == [(-1, -1), (-1,), (-1, -1, -1), (-1, -1)]


async def test_both_are_asked_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    async def meet(samples: Sequence[Sample]) -> list[list[float]]:
        await both.wait()
        return await tokens(samples)

    make = SampleMaker(objective=made(kl_reference="model"), reference=meet, old=meet)
    samples, _ = await asyncio.wait_for(make(GROUPS), 10)
    assert len(samples) == 4


async def test_an_error_surfaces_as_itself() -> None:
    async def breaks(samples: Sequence[Sample]) -> list[list[float]]:
        raise ServiceError("the reference process died")

    with pytest.raises(ServiceError, match="the reference process died"):
        await SampleMaker(objective=made(kl_reference="model"), reference=breaks, old=tokens)(GROUPS)


async def test_old_logprobs_are_asked_for_where_there_is_an_advantage_alone() -> None:
    """Where the loss gets nothing of the others; a penalty in the loss needs them all."""
    flat = group(episode(turn(7), reward=1.0), episode(turn(8), reward=1.0))
    for loss, asked in ((GRPOLoss(), [1, 2, 3, 4, 5]), (GRPOLoss(beta=0.1), [7, 8, 1, 2, 3, 4, 5])):
        seen: list[int] = []

        async def old(samples: Sequence[Sample], seen: list[int] = seen) -> list[list[float]]:
            seen += dict.fromkeys(token for s in samples for row in s.rows for token in row.token_ids if token)
            return await halves(samples)

        make = SampleMaker(objective=replace(made(), loss=loss), old=old)
        samples, metrics = await make([flat, *GROUPS])
        assert seen == asked and "seconds/old_logprobs" in metrics
        assert [s.old_logprobs for s in samples][2:] == [(-0.5, -0.5), (-1,), (-1.5,) * 3, (-2, -2.5)]
        assert {s.old_logprobs for s in samples[:2]} == ({None} if len(asked) == 5 else {(-3.5,), (-4.0,)})


async def test_nobody_is_asked_for_the_old_logprobs_of_a_step_without_any_advantage() -> None:
    flat = group(episode(turn(7), reward=1.0), episode(turn(8), reward=1.0))

    async def old(samples: Sequence[Sample]) -> list[list[float]]:
        raise AssertionError("it was asked")

    samples, metrics = await SampleMaker(objective=replace(made(), loss=GRPOLoss()), old=old)([flat])
    assert [s.advantage for s in samples] == [0.0, 0.0] and metrics == {}
