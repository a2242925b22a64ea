"""Losses against numbers worked by hand, a slow reference, and the properties that training rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from forge_env.core.errors import UserError
from tests.trainers.objective.loss_references import make_batch
from trainers.losses import GRPOLoss, SFTLoss

LN2 = math.log(2.0)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slow_grpo(batch, clip_low, clip_high, beta, aggregation) -> float:
    """GRPO token by token, in the words of the papers."""
    b = {name: value.numpy() for name, value in batch.items()}
    means, every = [], []
    for i in range(len(b["logprobs"])):
        terms = []
        for t in np.flatnonzero(b["loss_mask"][i]):
            ratio = math.exp(b["logprobs"][i, t] - b["generator_logprobs"][i, t])
            advantage = b["advantages"][i, 0]
            clipped = max(1 - clip_low, min(ratio, 1 + clip_high))
            difference = b["reference_logprobs"][i, t] - b["logprobs"][i, t]
            k3 = math.exp(difference) - difference - 1
            terms.append(-min(ratio * advantage, clipped * advantage) + beta * k3)
        every += terms
        means += [sum(terms) / len(terms)] if terms else []
    return sum(means) / len(means) if aggregation == "sequence" else sum(every) / len(every)


def test_grpo_worked_by_hand():
    # Ratios 2, 1/2 and 1, 1; clipped to [0.8, 1.28].
    logprobs = tensor([[-1.0, -1.0], [-1.0, -1.0]])
    generator = tensor([[-1.0 - LN2, -1.0 + LN2], [-1.0, -1.0]])
    mask = torch.tensor([[True, True], [True, False]])
    advantages = tensor([1.0, -2.0])
    # Episode 1: -min(2, 1.28) = -1.28 and -min(0.5, 0.8) = -0.5. Episode 2: -min(-2, -2) = 2.
    sequence = GRPOLoss()(logprobs, generator, advantages, mask)
    assert sequence.item() == pytest.approx(((-1.28 - 0.5) / 2 + 2.0) / 2)
    token = GRPOLoss(aggregation="token")(logprobs, generator, advantages, mask)
    assert token.item() == pytest.approx((-1.28 - 0.5 + 2.0) / 3)
    # A negative advantage is clipped from below: -min(0.5 * -1, 0.8 * -1) = 0.8, and 2 is not clipped from above.
    negative = GRPOLoss(aggregation="token")(logprobs, generator, -tensor([1.0, 0.0]), mask)
    assert negative.item() == pytest.approx((2.0 + 0.8 + 0.0) / 3)


def test_kl_penalty_worked_by_hand():
    logprobs, mask = tensor([[-1.0]]), torch.tensor([[True]])
    loss = GRPOLoss(beta=0.1)(logprobs, logprobs, tensor([0.0]), mask, reference_logprobs=tensor([[-1.0 + LN2]]))
    assert loss.item() == pytest.approx(0.1 * (2.0 - LN2 - 1.0))


def test_sft_worked_by_hand():
    logprobs = tensor([[-1.0, -2.0], [-3.0, -4.0]])
    mask = torch.tensor([[True, True], [True, False]])
    assert SFTLoss()(logprobs, mask).item() == pytest.approx(2.0)
    assert SFTLoss()(logprobs, mask, normalizer=tensor(6.0)).item() == pytest.approx(1.0)


@pytest.mark.parametrize("aggregation", ["sequence", "token"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_grpo_equals_the_slow_reference(aggregation, beta, seed):
    batch = make_batch(seed=seed)
    expected = slow_grpo(batch, 0.2, 0.28, beta, aggregation)
    assert GRPOLoss(beta=beta, aggregation=aggregation)(**batch).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("aggregation", ["sequence", "token"])
def test_advantages_of_every_allowed_shape_agree(aggregation):
    batch = make_batch()
    loss = GRPOLoss(aggregation=aggregation)
    column = loss(**batch)
    flat = loss(**batch | {"advantages": batch["advantages"][:, 0]})
    full = loss(**batch | {"advantages": batch["advantages"].expand_as(batch["logprobs"])})
    assert column == flat == full


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "loss", [GRPOLoss(beta=0.1), GRPOLoss(aggregation="token"), SFTLoss()], ids=("beta", "token", "sft")
)
def test_masked_tokens_have_no_value_and_exactly_no_gradient(loss, bad):
    clean = make_batch()
    mask = clean["loss_mask"]
    dirty = {
        name: value if name in ("loss_mask", "advantages") else torch.where(mask, value, bad)
        for name, value in clean.items()
    }
    gradients, values = [], []
    for batch in (clean, dirty):
        batch = dict(batch)
        logprobs = batch["logprobs"] = batch["logprobs"].clone().requires_grad_()
        names = ("logprobs", "loss_mask") if isinstance(loss, SFTLoss) else tuple(batch)
        value = loss(**{name: batch[name] for name in names})
        value.backward()
        values.append(value.item())
        gradients.append(logprobs.grad)
    assert values[0] == values[1]
    assert torch.equal(gradients[0], gradients[1])
    assert (gradients[1][~mask] == 0).all()
    assert (gradients[1][mask] != 0).any()


@pytest.mark.parametrize(
    "loss", [GRPOLoss(beta=0.1), GRPOLoss(aggregation="token"), SFTLoss()], ids=("beta", "token", "sft")
)
def test_sums_over_a_global_normalizer_add_up_however_the_batch_is_split(loss):
    batch = make_batch(episodes=6)
    if isinstance(loss, SFTLoss):
        batch = {name: batch[name] for name in ("logprobs", "loss_mask")}
    mask = batch["loss_mask"]
    count = mask.any(-1).sum() if loss.normalizer_unit == "episodes" else mask.sum()
    whole = loss(**batch)
    for size in (1, 2, 5, 6):
        parts = [{k: v[i : i + size] for k, v in batch.items()} for i in range(0, 6, size)]
        total = sum(loss(**part, normalizer=count.double()) for part in parts)
        assert total.item() == pytest.approx(whole.item(), abs=1e-14)


def test_the_gradient_at_ratio_one_is_the_policy_gradient():
    batch = make_batch()
    logprobs = batch["logprobs"].requires_grad_()
    batch["generator_logprobs"] = logprobs.detach().clone()
    del batch["reference_logprobs"]
    GRPOLoss(aggregation="token")(**batch).backward()
    expected = -batch["advantages"] * batch["loss_mask"] / batch["loss_mask"].sum()
    torch.testing.assert_close(logprobs.grad, expected)


def test_extreme_ratios_stay_finite():
    logprobs = tensor([[-1000.0, 0.0]]).requires_grad_()
    loss = GRPOLoss(beta=0.1)
    mask = torch.ones(1, 2, dtype=torch.bool)
    value = loss(logprobs, tensor([[0.0, -1000.0]]), tensor([-1.0]), mask, reference_logprobs=tensor([[0.0, -1000.0]]))
    value.backward()
    assert math.isfinite(value.item())
    assert logprobs.grad.isfinite().all()


def test_nothing_valid_gives_zero_and_no_gradient():
    batch = make_batch()
    batch["loss_mask"] = torch.zeros_like(batch["loss_mask"])
    for loss in (GRPOLoss(), GRPOLoss(aggregation="token")):
        logprobs = batch["logprobs"] = batch["logprobs"].detach().requires_grad_()
        loss(**batch).backward()
        assert not logprobs.grad.any()


def test_mistakes_are_refused_with_a_sentence():
    with pytest.raises(UserError, match="clip_low"):
        GRPOLoss(clip_low=1.5)
    with pytest.raises(UserError, match="aggregation"):
        GRPOLoss(aggregation="mean")
    batch = make_batch()
    del batch["reference_logprobs"]
    with pytest.raises(UserError, match="reference_logprobs"):
        GRPOLoss(beta=0.1)(**batch)
