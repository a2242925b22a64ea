"""On-policy distillation: the advantages of a teacher, and that their gradient is the reverse KL's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode, Group
from tests.trainers.episodes import episode, group, numbered_episodes, turn
from trainers.batching.batch import Sample
from trainers.controller.sample_maker import SampleMaker
from trainers.losses import GRPOLoss, ReinforceLoss
from trainers.objective.advantages import centred
from trainers.objective.credit import turn_values
from trainers.objective.distillation import taught_advantages, teacher_kl, top_kl
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import OldLogprobs
from trainers.objective.reward import KLPenalty, TrainingReward
from trainers.settings.distill import DistillConfig


def made(**parts: Any) -> Objective:
    return Objective(loss=GRPOLoss(), advantages=centred, group_size=2, **parts)


def slow_advantages(played: Episode, by_turn: Sequence[float], teacher: Sequence[float], coef: float) -> list[float]:
    """Token by token, from the turns and not from the rows; the first token of a row has no context."""
    found, given_teacher = [], iter(teacher)
    for number, taken in enumerate(played.turns):
        for place, logprob in enumerate(taken.logprobs.tolist()):
            if taken.starts_row and len(taken.prompt_ids) == 0 == place:
                continue
            difference = next(given_teacher) - logprob
            difference = max(-20.0, min(20.0, difference)) if np.isfinite(difference) else 0.0
            found.append(by_turn[number] + coef * difference)
    return found


def count(played: Episode) -> int:
    return Sample(rows=played.rows).num_targets


@given(
    st.lists(numbered_episodes(), min_size=2, max_size=2),
    st.sampled_from(["episode", "turn"]),
    st.booleans(),
    st.floats(0.1, 3),
    st.randoms(use_true_random=False),
)
def test_each_token_gets_its_own_divergence(
    played: list[Episode], credit: Any, only: bool, coef: float, rng: Any
) -> None:
    taught = [np.array([rng.uniform(-30, 0) for _ in range(count(each))]) for each in played]
    groups = [group(*played)]
    plain = made(credit=credit).samples(groups)
    found = made(credit=credit, distillation=DistillConfig(coef=coef, only=only)).samples(
        groups, teacher_answers=taught
    )
    for sample, before, each, teacher in zip(found, plain, played, taught, strict=True):
        by_turn = [0.0] * len(each.turns) if only else turn_values(before.advantage, each)
        if credit == "episode" and not only:
            by_turn = [float(before.advantage)] * len(each.turns)
        expected = slow_advantages(each, by_turn, teacher.tolist(), coef)
        assert sample.advantage.tolist() == pytest.approx(expected, abs=1e-9)  # type: ignore[union-attr]


def test_the_gradient_is_that_of_the_reverse_kl() -> None:
    """At one place, summed over the vocabulary with the probabilities that the policy samples by."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, generator=generator).requires_grad_()
    teacher = torch.randn(6, dtype=torch.float64, generator=generator).log_softmax(-1)
    policy = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((policy.exp() * (policy - teacher)).sum(), logits)

    engine = policy.detach()
    advantages = []
    for token in range(6):
        played = episode(turn(token, prompt=1, logprobs=[engine[token].item()]))
        distilled = taught_advantages(0.5, played, 0.0, teacher[token : token + 1].numpy())
        advantages.append(distilled[0])
    mask = torch.ones((6, 1), dtype=torch.bool)
    for loss in (ReinforceLoss(aggregation="token"), GRPOLoss(aggregation="token")):
        total = torch.zeros((), dtype=torch.float64)
        for token in range(6):  # each outcome is a batch of its own, which counts as often as it is sampled
            value = loss(
                logprobs=logits.log_softmax(-1)[token].view(1, 1),
                generator_logprobs=engine[token].view(1, 1),
                advantages=torch.tensor([[advantages[token]]], dtype=torch.float64),
                loss_mask=mask[:1],
            )
            total = total + engine[token].exp() * value
        (found,) = torch.autograd.grad(total, logits)
        torch.testing.assert_close(found, 0.5 * exact)


async def test_the_teacher_is_asked_for_every_episode_and_its_divergence_is_measured() -> None:
    async def taught(groups: Sequence[Group]) -> list[np.ndarray]:
        return [np.full(count(each), -0.25) for group in groups for each in group.valid]

    groups = [group(episode(turn(1, 1), reward=1.0), episode(turn(2), reward=0.0))]
    for only, first in ((True, 0.0), (False, 0.5)):
        objective = made(distillation=DistillConfig(coef=2.0, only=only))
        samples, _, metrics = await SampleMaker(objective=objective, teacher=taught)(groups)
        # The engine's logprobs are -1: the teacher is more certain of each token by 0.75.
        assert [s.advantage.tolist() for s in samples] == [[first + 1.5] * 2, [-first + 1.5]]  # type: ignore[union-attr]
        assert (metrics["teacher_kl"], metrics["taught"]) == (-0.75, 1.0) and metrics["seconds/teacher"] >= 0
        # Asks for all: advantages are not known yet.
        old = OldLogprobs(objective=objective, logprobs=lambda samples: taught(groups))
        await old.begin_window([[], groups])
        assert [old.take(), len(old.take() or ())] == [None, 2]
    assert teacher_kl([], []) == 0


def test_a_penalty_in_the_reward_stays_without_rewards() -> None:
    penalty = TrainingReward(kl_penalty=KLPenalty(beta=1.0, kind="k1"))
    distilled = DistillConfig(coef=1.0, only=True)
    objective = made(kl_reference="model", reward=penalty, penalty_baseline=centred, distillation=distilled)
    played = group(episode(turn(1), reward=1.0), episode(turn(2), reward=0.0))
    other = [np.array([-2.0]), np.array([-1.0])]
    samples = objective.samples([played], other, teacher_answers=[np.array([-1.0])] * 2)
    assert [sample.advantage.tolist() for sample in samples] == [[-0.5], [0.5]]  # type: ignore[union-attr]


def test_the_kl_over_the_most_likely_tokens_is_at_most_the_kl_and_exact_over_all() -> None:
    generator = torch.Generator().manual_seed(1)
    q, p = (torch.randn(5, 9, dtype=torch.float64, generator=generator).log_softmax(-1) for _ in range(2))
    exact = (q.exp() * (q - p)).sum(-1)
    order = p.argsort(-1, descending=True)
    bounds = [top_kl(q.gather(-1, order[:, :k]), p.gather(-1, order[:, :k])) for k in (1, 3, 8, 9)]
    for lower, higher in zip(bounds, [*bounds[1:], exact], strict=True):
        assert (lower <= higher + 1e-5).all()
    torch.testing.assert_close(bounds[-1], exact, atol=1e-5, rtol=0)
    escaped = torch.full((1, 3), -40.0, dtype=torch.float64)  # no probability for the teacher's tokens
    assert top_kl(escaped, p[:1].gather(-1, order[:1, :3])) > 1


async def test_an_episode_that_no_teacher_judges_is_trained_on_without() -> None:
    async def taught(groups: Sequence[Group]) -> list[Any]:
        return [None, np.array([-0.25])]

    async def top(groups: Sequence[Group]) -> list[Any]:
        return [None, (np.arange(3), np.full(3, -2.0))]

    groups = [group(episode(turn(1, 1), reward=1.0), episode(turn(2), reward=0.0))]
    sampled = SampleMaker(objective=made(distillation=DistillConfig(coef=2.0)), teacher=taught)
    (first, second), _, metrics = await sampled(groups)
    assert first.advantage == 0.5 and second.advantage.tolist() == [1.0]  # type: ignore[union-attr]
    assert (metrics["teacher_kl"], metrics["taught"]) == (-0.75, 0.5)
    over = SampleMaker(objective=made(distillation=DistillConfig(coef=2.0, top_k=3)), teacher=top)
    (first, second), _, metrics = await over(groups)
    assert first.teacher_ids is None and second.teacher_ids is not None and len(second.teacher_ids) == 3
    assert metrics["taught"] == 0.5


async def test_samples_have_the_teachers_tokens_where_the_loss_is_over_them() -> None:
    async def taught(groups: Sequence[Group]) -> list[tuple[np.ndarray, np.ndarray]]:
        counts = [3 * count(each) for group in groups for each in group.valid]
        return [(np.arange(number), np.full(number, -2.0)) for number in counts]

    groups = [group(episode(turn(1, 1), reward=1.0), episode(turn(2), reward=0.0))]
    for only in (True, False):
        objective = made(distillation=DistillConfig(coef=2.0, only=only, top_k=3))
        samples, _, metrics = await SampleMaker(objective=objective, teacher=taught)(groups)
        assert [s.advantage for s in samples] == ([0.0, 0.0] if only else [0.5, -0.5])
        assert [len(s.teacher_ids) for s in samples] == [6, 3] and not any(s.is_idle for s in samples)  # type: ignore[arg-type]
        assert objective.top_coef == 2.0 and "teacher_kl" not in metrics  # the step measures it
