"""What training rests on, for every loss: splits, padding, order, masks, extreme and missing numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainers.objective.loss_references import make_batch
from trainers.losses import CISPOLoss, DAPOLoss, GRPOLoss, GSPOLoss, ReinforceLoss, SAPOLoss, SFTLoss, SimpleGRPOLoss
from trainers.objective.loss_terms import kl_estimate

NAMED = {
    SimpleGRPOLoss: ("logprobs", "reference_logprobs", "advantages", "loss_mask"),
    SFTLoss: ("logprobs", "loss_mask"),
}
LOSSES: list[Any] = [
    GRPOLoss(beta=0.1, kl="k2"),
    GRPOLoss(aggregation="constant", constant=3.0, correction="truncate", correction_high=1.2, dual_clip=2.0),
    DAPOLoss(beta=0.1),
    GSPOLoss(clip_low=0.1, clip_high=0.1, correction="sequence_mask", correction_high=3.0),
    SAPOLoss(beta=0.1, kl="k1"),
    CISPOLoss(correction="sequence_truncate", correction_high=2.0),
    ReinforceLoss(clip_ratio=0.2),
    SimpleGRPOLoss(beta=0.1),
    SFTLoss(),
]
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
batches = st.builds(make_batch, st.integers(3, 9), st.integers(1, 8), st.integers(0, 10**6), st.floats(0.0, 2.0))


def run(loss: Any, batch: dict[str, torch.Tensor], **more: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Value, and gradient with respect to logprobs."""
    logprobs = batch["logprobs"].detach().clone().requires_grad_()
    names = NAMED.get(type(loss), tuple(batch))
    value = loss(**{name: batch[name] for name in names} | {"logprobs": logprobs} | more)
    (gradient,) = torch.autograd.grad(value, logprobs)
    return value.item(), gradient


def count(loss: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the trainer counts over all ranks and micro-batches before the first backward."""
    mask = batch["loss_mask"]
    return (mask.any(-1).sum() if loss.normalizer_unit == "episodes" else mask.sum()).double()


def assert_same(result: tuple[float, torch.Tensor], expected: tuple[float, torch.Tensor]) -> None:
    assert result[0] == pytest.approx(expected[0], abs=1e-10)
    torch.testing.assert_close(result[1], expected[1], atol=1e-10, rtol=0)


@each_loss
@settings(max_examples=15, deadline=None)
@given(batch=batches, data=st.data())
def test_micro_batches_and_ranks_add_up(loss: Any, batch: dict[str, torch.Tensor], data: st.DataObject) -> None:
    """However the episodes are dealt to ranks, and a rank's to micro-batches, each cut to its longest episode."""
    total = count(loss, batch)
    parts = data.draw(st.lists(st.integers(0, 3), min_size=len(batch["logprobs"]), max_size=len(batch["logprobs"])))
    value, gradient = 0.0, torch.zeros_like(batch["logprobs"])
    for part in set(parts):
        rows = torch.tensor([i for i, part_of_row in enumerate(parts) if part_of_row == part])
        part_value, part_gradient = run(loss, {k: v[rows] for k, v in batch.items()}, normalizer=total)
        value += part_value
        gradient[rows] += part_gradient
    assert_same((value, gradient), run(loss, batch))


@each_loss
@settings(max_examples=10, deadline=None)
@given(
    batch=batches, left=st.integers(0, 3), right=st.integers(0, 3), rubbish=st.sampled_from([math.nan, -math.inf, 7])
)
def test_padding_changes_nothing(
    loss: Any, batch: dict[str, torch.Tensor], left: int, right: int, rubbish: float
) -> None:
    padded = {
        name: value
        if name == "advantages"
        else torch.nn.functional.pad(value, (left, right), value=False if name == "loss_mask" else rubbish)
        for name, value in batch.items()
    }
    value, gradient = run(loss, padded)
    width = batch["logprobs"].shape[1]
    assert_same((value, gradient[:, left : left + width]), run(loss, batch))
    assert not gradient[:, :left].any() and not gradient[:, left + width :].any()


@each_loss
@settings(max_examples=10, deadline=None)
@given(batch=batches, seed=st.integers(0, 99))
def test_episodes_and_groups_have_no_order(loss: Any, batch: dict[str, torch.Tensor], seed: int) -> None:
    order = torch.randperm(len(batch["logprobs"]), generator=torch.Generator().manual_seed(seed))
    value, gradient = run(loss, {name: tensor[order] for name, tensor in batch.items()})
    expected = run(loss, batch)
    assert_same((value, gradient), (expected[0], expected[1][order]))


@each_loss
@settings(max_examples=10, deadline=None)
@given(batch=batches, bad=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_masked_tokens_have_exactly_no_gradient(loss: Any, batch: dict[str, torch.Tensor], bad: float) -> None:
    mask = batch["loss_mask"]
    dirty = {
        name: value if name in ("loss_mask", "advantages") else torch.where(mask, value, bad)
        for name, value in batch.items()
    }
    value, gradient = run(loss, dirty)
    clean = run(loss, batch)
    assert value == clean[0] and torch.equal(gradient, clean[1])
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if type(loss) not in NAMED], ids=lambda x: type(x).__name__)
@settings(max_examples=10, deadline=None)
@given(batch=batches, bad=st.sampled_from([math.nan, math.inf, -math.inf]), place=st.integers(0, 7))
def test_a_token_without_a_generator_logprob_is_not_counted(
    loss: Any, batch: dict[str, torch.Tensor], bad: float, place: int
) -> None:
    place %= batch["logprobs"].shape[1]
    without = batch | {"loss_mask": batch["loss_mask"].clone()}
    without["loss_mask"][:, place] = False
    batch["generator_logprobs"][:, place] = bad
    value, gradient = run(loss, batch)
    expected = run(loss, without)
    assert value == expected[0] and torch.equal(gradient, expected[1])


@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [50.0, 1e4])
def test_extreme_ratios_stay_finite(loss: Any, dtype: torch.dtype, apart: float) -> None:
    batch = {
        "logprobs": torch.tensor([[-apart, -1e-3], [-apart, -1e-3]], dtype=dtype),
        "generator_logprobs": torch.tensor([[-1e-3, -apart], [-1e-3, -apart]], dtype=dtype),
        "reference_logprobs": torch.tensor([[-1e-3, -apart], [-apart, -1e-3]], dtype=dtype),
        "advantages": torch.tensor([[1.0], [-1.0]], dtype=dtype),
        "loss_mask": torch.ones(2, 2, dtype=torch.bool),
    }
    value, gradient = run(loss, batch)
    assert math.isfinite(value) and gradient.isfinite().all()


@each_loss
def test_nothing_valid_is_zero_without_gradient(loss: Any) -> None:
    batch = make_batch()
    batch["loss_mask"] = torch.zeros_like(batch["loss_mask"])
    value, gradient = run(loss, batch)
    assert value == 0 and not gradient.any()


@each_loss
def test_advantages_of_every_shape_and_masks_of_numbers_agree(loss: Any) -> None:
    batch = make_batch()
    expected = run(loss, batch)
    for changed in (
        {"advantages": batch["advantages"][:, 0]},
        {"advantages": batch["advantages"].expand_as(batch["logprobs"])},
        {"loss_mask": batch["loss_mask"].long()},
        {"loss_mask": batch["loss_mask"].float()},
    ):
        result = run(loss, batch | changed)
        assert result[0] == expected[0] and torch.equal(result[1], expected[1])


@settings(max_examples=15, deadline=None)
@given(batch=batches, aggregation=st.sampled_from(["token", "sequence", "constant"]))
def test_on_policy_every_loss_has_the_gradient_of_reinforce(batch: dict[str, torch.Tensor], aggregation: Any) -> None:
    batch["generator_logprobs"] = batch["logprobs"].clone()
    expected = run(ReinforceLoss(aggregation=aggregation), batch)[1]
    for make in (GRPOLoss, DAPOLoss, SAPOLoss, CISPOLoss, SimpleGRPOLoss):
        result = run(make(aggregation=aggregation), batch)[1]
        torch.testing.assert_close(result, expected, atol=1e-12, rtol=0)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_gspo_is_grpo_for_episodes_of_one_token(seed: int) -> None:
    batch = make_batch(episodes=6, tokens=1, seed=seed)
    assert_same(run(GSPOLoss(0.2, 0.28, beta=0.1), batch), run(GRPOLoss(0.2, 0.28, beta=0.1), batch))


def test_reinforce_without_generator_logprobs_takes_the_reference() -> None:
    batch = make_batch()
    given_tensors = {name: value for name, value in batch.items() if name != "generator_logprobs"}
    swapped = given_tensors | {"generator_logprobs": batch["reference_logprobs"]}
    assert run(ReinforceLoss(clip_ratio=0.2), given_tensors)[0] == run(ReinforceLoss(clip_ratio=0.2), swapped)[0]


def test_k3_of_one_token_is_bounded_and_has_no_gradient_beyond_the_bound() -> None:
    d = torch.tensor([-20.0, -5.0, -2.5, 0.0, 5.0, 20.0], dtype=torch.float64, requires_grad=True)
    value = kl_estimate(d, "k3")
    value.sum().backward()
    inside = [math.exp(2.5) - 2.5 - 1, 0.0, math.exp(-5) + 5 - 1]
    assert value.tolist() == pytest.approx([10.0, 10.0, *inside, 10.0])
    own_gradient = [0.0, 0.0, 1 - math.exp(2.5), 0.0, 1 - math.exp(-5), 0.0]
    assert d.grad is not None and d.grad.tolist() == pytest.approx(own_gradient)
