"""How samples are cut into micro-batches, ranks and sequences changes neither the loss nor a gradient.

Every loss runs on a small causal model whose documents see nothing of each other, in float64, through the same `pack`
and `LossCall` as the trainer. A micro-batch holds its logprobs and advantages in float32, as the engine gave them;
they are widened here after packing, so each value is the same number however it was packed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from forge_env.core.episode import Row
from trainers.batching.batch import MicroBatch, Sample, pack
from trainers.losses import (
    CISPOLoss,
    DAPOLoss,
    GRPOLoss,
    GSPOLoss,
    ReinforceLoss,
    SAPOLoss,
    SFTLoss,
    SimpleGRPOLoss,
)
from trainers.objective.loss_call import LossCall

VOCABULARY, WIDTH = 7, 3
POLICY: dict[str, Callable[..., nn.Module]] = {
    "grpo": GRPOLoss,
    "grpo-dual": lambda **given: GRPOLoss(dual_clip=3.0, **given),
    "dapo": DAPOLoss,
    "gspo": GSPOLoss,
    "gspo-wide": lambda **given: GSPOLoss(clip_low=0.2, clip_high=0.2, **given),
    "sapo": SAPOLoss,
    "cispo": CISPOLoss,
    "reinforce": ReinforceLoss,
    "reinforce-clip": lambda **given: ReinforceLoss(clip_ratio=0.2, **given),
    "simple": SimpleGRPOLoss,
}
LOSSES: dict[str, Callable[[], nn.Module]] = {
    f"{name}-{aggregation}": lambda make=make, aggregation=aggregation: make(aggregation=aggregation)
    for name, make in POLICY.items()
    for aggregation in ("token", "sequence", "constant")
} | {
    "sft": SFTLoss,
    "kl": lambda: GRPOLoss(beta=0.3, kl="k3"),
    "entropy": lambda: DAPOLoss(entropy_coef=0.1),
    "sequence mask": lambda: GRPOLoss(correction="sequence_mask", correction_low=0.5, correction_high=2.0),
    "sequence truncate": lambda: DAPOLoss(correction="sequence_truncate", correction_low=0.5, correction_high=2.0),
}
each_loss = pytest.mark.parametrize("name", LOSSES)
few = settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])


class MeanModel(nn.Module):
    """Embeds, averages over what came before in the same document, adds the position, and predicts."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, generator=generator))
        self.head = nn.Parameter(torch.randn(WIDTH, VOCABULARY, dtype=torch.float64, generator=generator))

    def logits(self, tokens: Tensor, positions: Tensor | None, selected: Tensor) -> Tensor:
        """Logits of the selected places, (N, VOCABULARY); arguments as those of the trainer's model."""
        places = torch.arange(tokens.shape[1])
        if positions is None:
            positions = places.expand(tokens.shape)
        starts = places - positions  # (B, L): where each token's document begins
        seen = (places <= places[:, None]) & (places >= starts[..., None])  # (B, L, L)
        mean = seen.double() @ self.embedding[tokens] / (positions + 1)[..., None]
        hidden = torch.tanh(mean + 0.3 * torch.sin(positions.double())[..., None])
        return hidden.flatten(0, 1)[selected] @ self.head


def widen(batch: MicroBatch) -> MicroBatch:
    """The same micro-batch with float64 values."""
    found = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    wide = {k: v.double() for k, v in found.items() if isinstance(v, Tensor) and v.is_floating_point()}
    return replace(batch, **wide)


Result = tuple[float, tuple[Tensor, ...], dict[int, list[float]]]


def train(samples: list[Sample], loss: Any, *, ranks: int = 1, **packing: Any) -> Result:
    """The step that the trainer takes: the loss, the gradients of the model, and those of each sampled logprob.

    Ranks come one after the other; their sums are what the all-reduce of the trainer gives.
    """
    model, call = MeanModel(), LossCall(loss)
    given_packing = {"max_tokens": 12, "pack_length": 0, "pad_id": 0} | packing
    batches = [widen(b) for rank in range(ranks) for b in pack(samples, rank=rank, ranks=ranks, **given_packing)]
    tokens, episodes = sum(b.units[0] for b in batches), sum(b.units[1] for b in batches)
    normalizer = torch.tensor(float(call.units(tokens, episodes)), dtype=torch.float64)
    total = 0.0
    by_token: dict[int, list[float]] = {}
    for batch in batches:
        if not (units := call.units(*batch.units)):
            continue
        distribution = model.logits(batch.tokens, batch.positions, batch.selected).log_softmax(-1)
        picked = distribution.gather(-1, batch.targets[:, None])[:, 0]
        picked.retain_grad()
        entropy = batch.scatter(-(distribution.exp() * distribution).sum(-1)) if "entropy" in call.names else None
        value = call(batch, batch.scatter(picked), entropy, units=units, normalizer=normalizer)
        value.backward()
        total += value.item()
        assert picked.grad is not None
        by_token |= zip(batch.samples, batch.split(picked.grad), strict=True)
    gradients = tuple(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return total, gradients, by_token


def assert_same(found: Result, expected: Result) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-10, abs=1e-12)
    for one, other in zip(found[1], expected[1], strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)  # torch.testing takes seconds to import


@st.composite
def rows(draw: st.DrawFn, logprobs: st.SearchStrategy[float]) -> Row:
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=7))
    mask = [draw(st.booleans()) for _ in tokens] if draw(st.integers(0, 4)) else [False] * len(tokens)
    return Row(
        token_ids=tuple(tokens),
        loss_mask=tuple(mask),
        generator_logprobs=tuple(draw(logprobs) if sampled else 0.0 for sampled in mask),
        versions=tuple(0 if sampled else -1 for sampled in mask),
    )


def sampled_targets(sample: Sample) -> list[float]:
    """Generator logprobs of an episode's sampled targets."""
    return [
        value
        for row in sample.rows
        for value, m in zip(row.generator_logprobs[1:], row.loss_mask[1:], strict=True)
        if m
    ]


HONEST = st.floats(-3.5, -0.5)
BROKEN = st.one_of(HONEST, HONEST, HONEST, st.sampled_from([math.nan, math.inf, -math.inf]))


@st.composite
def samples(draw: st.DrawFn, logprobs: st.SearchStrategy[float] = BROKEN) -> list[Sample]:
    """A step's episodes: ragged, some with nothing sampled, some with nothing but broken logprobs, all with a KL."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        source = draw(st.sampled_from([logprobs, logprobs, logprobs, st.just(math.nan)]))
        sample = Sample(rows=tuple(draw(st.lists(rows(source), min_size=1, max_size=3))))
        count = len(sampled_targets(sample))
        some = st.floats(-2, 2)
        per_token = draw(st.booleans()) and draw(st.booleans())
        advantage: Any = tuple(draw(some) for _ in range(count)) if per_token else draw(some)
        ref = tuple(draw(HONEST) for _ in range(count))
        found.append(replace(sample, advantage=advantage, reference_logprobs=ref))
    return found


with_old = st.booleans()


def give_old(given: list[Sample], wanted: bool) -> list[Sample]:
    """The same samples with the trainer's own logprobs of the weights that sampled, when wanted."""
    if not wanted:
        return given
    return [
        replace(s, old_logprobs=tuple(v + 0.1 if math.isfinite(v) else -1.0 for v in sampled_targets(s))) for s in given
    ]


@each_loss
@few
@given(samples(), with_old, st.integers(1, 40), st.integers(1, 40), st.randoms(use_true_random=False))
def test_splits_packing_and_order_change_nothing(name, given_samples, old, max_tokens, pack_length, shuffler):
    given_samples, loss = give_old(given_samples, old), LOSSES[name]()
    whole = train(given_samples, loss, max_tokens=10_000)
    others = {
        "micro-batches": train(given_samples, loss, max_tokens=max_tokens),
        "ranks": train(given_samples, loss, max_tokens=max_tokens, ranks=3),
        "packing": train(given_samples, loss, max_tokens=10_000, pack_length=10_000),
        "packing into micro-batches": train(given_samples, loss, max_tokens=max_tokens, pack_length=pack_length),
        "packing, ranks and a multiple": train(
            given_samples, loss, max_tokens=max_tokens, pack_length=pack_length, ranks=2, multiple=4
        ),
        "order": train(shuffler.sample(given_samples, len(given_samples)), loss, max_tokens=max_tokens),
    }
    for other in others.values():
        assert_same(other, whole)


@few
@given(samples(), with_old, st.sampled_from([0, 9]))
def test_only_tokens_that_count_have_a_gradient(given_samples, old, pack_length):
    given_samples = give_old(given_samples, old)
    for name, make in LOSSES.items():
        note(name)
        _, _, by_token = train(given_samples, make(), pack_length=pack_length)
        for index, gradients in by_token.items():
            for generator, gradient in zip(sampled_targets(given_samples[index]), gradients, strict=True):
                assert math.isfinite(gradient)
                assert math.isfinite(generator) or gradient == 0.0


@few
@given(samples(), with_old)
def test_a_token_without_a_finite_generator_logprob_is_as_if_it_had_not_been_sampled(given_samples, old):
    given_samples = give_old(given_samples, old)
    without = [without_broken(sample) for sample in given_samples]
    for name, make in LOSSES.items():
        note(name)
        assert_same(train(given_samples, make()), train(without, make()))


def without_broken(sample: Sample) -> Sample:
    """The same episode with its broken tokens given, not sampled."""
    finite = [math.isfinite(value) for value in sampled_targets(sample)]
    changed = {}
    for field in ("advantage", "reference_logprobs", "old_logprobs"):
        value = getattr(sample, field)
        if isinstance(value, tuple):
            changed[field] = tuple(v for v, fine in zip(value, finite, strict=True) if fine)
    kept = tuple(
        replace(
            row,
            loss_mask=tuple(
                m and math.isfinite(value) for m, value in zip(row.loss_mask, row.generator_logprobs, strict=True)
            ),
            generator_logprobs=tuple(value if math.isfinite(value) else 0.0 for value in row.generator_logprobs),
        )
        for row in sample.rows
    )
    return replace(sample, rows=kept, **changed)


EXTREME = st.sampled_from([-1e30, -1e3, -1.0, 0.0, 1e3, 1e30])


@few
@given(samples(EXTREME), st.booleans(), st.data())
def test_extreme_ratios_give_finite_losses_and_gradients(given_samples, old, data):
    if old:
        given_samples = [
            replace(s, old_logprobs=tuple(data.draw(EXTREME) for _ in sampled_targets(s))) for s in given_samples
        ]
    given_samples = [
        replace(s, reference_logprobs=tuple(data.draw(EXTREME) for _ in s.reference_logprobs)) for s in given_samples
    ]
    for name, make in LOSSES.items():
        note(name)
        value, gradients, by_token = train(given_samples, make())
        assert math.isfinite(value)
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert all(math.isfinite(gradient) for found in by_token.values() for gradient in found)


class MyLoss:
    """What a user may write: four arguments, and the mean over the tokens that it was given."""

    def __call__(self, logprobs: Tensor, reference_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
        per_token = -(logprobs - logprobs.detach()).exp() * advantages + 0.1 * (logprobs - reference_logprobs) ** 2
        return (per_token * loss_mask).sum() / loss_mask.sum()


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(samples(HONEST), st.integers(1, 30), st.sampled_from([0, 7]))
def test_a_users_local_mean_becomes_the_mean_over_everything(given_samples, max_tokens, pack_length):
    whole = train(given_samples, MyLoss(), max_tokens=10_000)
    split = train(given_samples, MyLoss(), max_tokens=max_tokens, pack_length=pack_length, ranks=2)
    assert_same(split, whole)


def test_the_split_is_a_real_one():
    """Otherwise the tests above would compare a batch with itself."""
    row = Row(
        token_ids=(1, 2, 3, 4),
        loss_mask=(False, True, True, True),
        generator_logprobs=(0.0, -1.0, -2.0, -1.5),
        versions=(-1, 0, 0, 0),
    )
    given_samples = [Sample(rows=(row, row), advantage=float(n)) for n in range(4)]
    limits = {"max_tokens": 6, "pad_id": 0, "ranks": 2}
    for pack_length in (0, 6):
        parts = [pack(given_samples, pack_length=pack_length, rank=rank, **limits) for rank in range(2)]
        assert [len(part) for part in parts] == [2, 2]
        assert sorted(index for part in parts for batch in part for index in batch.samples) == [0, 1, 2, 3]
    model = MeanModel()
    (batch,) = pack(given_samples[:1], max_tokens=6, pack_length=6, pad_id=0)
    assert batch.positions is not None
    apart = model.logits(batch.tokens, batch.positions, batch.selected)
    together = model.logits(batch.tokens, None, batch.selected)
    assert not torch.allclose(apart, together), "the model must see where a document begins"
