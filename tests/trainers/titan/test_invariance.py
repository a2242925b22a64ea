"""How samples are cut into micro-batches, ranks and sequences changes neither the loss nor a gradient.

Every loss runs on a small causal model whose documents see nothing of each other, in float64, through the same `pack`,
`StepLoss` and `SplitEpisodes` as the trainer. A micro-batch holds its logprobs and advantages in float32, as the engine
gave them; they are widened here after packing, so each value is the same number however it was packed.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from forge_env.core.episode import Row
from trainers.batching.batch import MicroBatch, Sample, by_sample, pack
from trainers.losses import CISPOLoss, DAPOLoss, GRPOLoss, GSPOLoss, ReinforceLoss, SAPOLoss, SFTLoss, SimpleGRPOLoss
from trainers.objective.loss_call import LossCall
from trainers.objective.loss_metrics import LossMetrics
from trainers.titan.backward import SplitEpisodes, StepLoss

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
    for (name, make), aggregation in zip(POLICY.items(), cycle(("token", "sequence", "constant")), strict=False)
} | {
    "grpo-sequence": lambda: GRPOLoss(aggregation="sequence"),
    "grpo-constant": lambda: GRPOLoss(aggregation="constant"),
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
    results = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    wide = {k: v.double() for k, v in results.items() if isinstance(v, Tensor) and v.is_floating_point()}
    return replace(batch, **wide)


class WideStep(StepLoss):
    def backward(self, batch: MicroBatch, *args: Any, **options: Any) -> None:
        super().backward(widen(batch), *args, **options)


class Result(NamedTuple):
    """What a step gives."""

    loss: float
    gradients: tuple[Tensor, ...]
    """Of the model's parameters."""
    by_token: list[list[float]]
    """Gradients of the sampled logprobs of each sample."""
    metrics: dict[str, float]
    split: set[int]
    """The samples whose rows were in several micro-batches."""


def train(samples: list[Sample], loss: Any, *, ranks: int = 1, old_is_present: bool = False, **packing: Any) -> Result:
    """The step that the trainer takes. Ranks come one after the other; their sums are those of its all-reduce."""
    model, call = MeanModel(), LossCall(loss)
    given_packing = {"max_tokens": 12, "pack_length": 0, "pad_id": 0} | packing
    batches_of = [pack(samples, rank=rank, ranks=ranks, **given_packing) for rank in range(ranks)]
    batches = [batch for of_rank in batches_of for batch in of_rank]
    tokens, episodes = sum(b.units[0] for b in batches), sum(b.units[1] for b in batches)
    normalizer = torch.tensor(float(call.units(tokens, episodes)), dtype=torch.float64)
    metrics = LossMetrics(loss, normalizer.device)

    def forward(batch: MicroBatch) -> tuple[Tensor, Tensor]:
        distribution = model.logits(batch.tokens, batch.positions, batch.selected).log_softmax(-1)
        return distribution.gather(-1, batch.targets[:, None])[:, 0], -(distribution.exp() * distribution).sum(-1)

    values = torch.zeros((2, sum(sample.num_targets for sample in samples)), dtype=torch.float64)
    with torch.no_grad():
        for batch in (batch for batch in batches if batch.is_part):
            values[:, batch.target_index] = torch.stack(forward(batch))
    total = 0.0
    gradients = torch.zeros_like(values[0])
    for of_rank in batches_of:
        step = WideStep(call, normalizer, metrics, old_is_present=old_is_present)
        split = SplitEpisodes(samples, of_rank, step)
        split.call_loss(values)
        for batch in of_rank:
            logprobs, entropies = forward(batch)
            logprobs.retain_grad()
            (split if batch.is_part else step).backward(batch, logprobs, entropies)
            assert logprobs.grad is not None
            gradients[batch.target_index] = logprobs.grad
        total += step.total.item()
    return Result(
        loss=total,
        gradients=tuple(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()),
        by_token=by_sample(samples, gradients),
        metrics=metrics.values(tokens),
        split={index for batch in batches if batch.is_part for index in batch.samples},
    )


def assert_same(result: Result, expected: Result) -> None:
    assert result.loss == pytest.approx(expected.loss, rel=1e-10, abs=1e-12)
    for one, other in zip(result.gradients, expected.gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)  # torch.testing takes seconds to import
    assert result.metrics == pytest.approx(expected.metrics, rel=1e-10, abs=1e-12)


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
    results = []
    for _ in range(draw(st.integers(1, 6))):
        source = draw(st.sampled_from([logprobs, logprobs, logprobs, st.just(math.nan)]))
        sample = Sample(rows=tuple(draw(st.lists(rows(source), min_size=1, max_size=3))))
        count = len(sampled_targets(sample))
        some = st.floats(-2, 2)
        per_token = draw(st.booleans()) and draw(st.booleans())
        advantage: Any = tuple(draw(some) for _ in range(count)) if per_token else draw(some)
        ref = tuple(draw(HONEST) for _ in range(count))
        results.append(replace(sample, advantage=advantage, reference_logprobs=ref))
    return results


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


class Coupled:
    """A user's loss that only whole episodes can give: each token's term depends on the others, and on the entropy."""

    normalizer_unit = "episodes"

    def __call__(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        entropy: Tensor,
        normalizer: Tensor,
    ) -> Tensor:
        ratio = torch.where(loss_mask, logprobs - old_logprobs, 0.0).exp()
        uncertainty = torch.where(loss_mask, entropy, 0.0).cumsum(-1)
        following = torch.where(loss_mask, logprobs, 0.0).flip(-1).cumsum(-1).flip(-1)
        per_episode = (ratio * uncertainty * torch.tanh(following) * advantages * loss_mask).sum(-1)
        return (per_episode**2).sum() / normalizer


def long_samples() -> list[Sample]:
    """Episodes of one to four rows, each longer than the one before; some with an advantage for each token."""
    generator = random.Random(0)
    results = []
    for episode in range(4):
        given_rows = []
        for number in range(1, 2 + episode):
            mask = tuple(place > 0 and generator.random() < 0.7 for place in range(3 * number))
            given_rows.append(
                Row(
                    token_ids=tuple(generator.randrange(VOCABULARY) for _ in mask),
                    loss_mask=mask,
                    generator_logprobs=tuple(generator.gauss(-2.0, 0.3) if sampled else 0.0 for sampled in mask),
                    versions=(0,) * len(mask),
                )
            )
        sample = Sample(rows=tuple(given_rows))
        count = sample.num_targets
        results.append(
            replace(
                sample,
                advantage=tuple(generator.gauss(0, 1) for _ in range(count)) if episode % 2 else 1.5,
                reference_logprobs=tuple(generator.gauss(-2.0, 0.3) for _ in range(count)),
            )
        )
    return results


@pytest.mark.parametrize("old_is_present", [False, True])
@pytest.mark.parametrize("name", [*LOSSES, "coupled"])
def test_split_episodes_give_the_step_of_whole_ones(name, old_is_present):
    """The loss, every gradient and every metric, on one rank and on three."""
    given_samples = give_old(long_samples(), not old_is_present)
    loss = Coupled() if name == "coupled" else LOSSES[name]()
    whole = train(given_samples, loss, max_tokens=10_000, old_is_present=old_is_present)
    learns = any(bool((gradient != 0).any()) for gradient in whole.gradients)
    assert not whole.split and (learns or name == "sequence mask")
    for packing in ({"pack_length": 0}, {"pack_length": 0, "ranks": 3}, {"pack_length": 12, "ranks": 2}):
        result = train(given_samples, loss, max_tokens=12, old_is_present=old_is_present, **packing)
        assert result.split >= {2, 3}
        assert_same(result, whole)
        if old_is_present:
            assert (result.metrics["ratio_min"], result.metrics["ratio_max"]) == (1.0, 1.0)


def test_the_split_is_a_real_one():
    """Otherwise the tests above would compare a batch with itself."""
    row = Row(
        token_ids=(1, 2, 3, 4),
        loss_mask=(False, True, True, True),
        generator_logprobs=(0.0, -1.0, -2.0, -1.5),
        versions=(-1, 0, 0, 0),
    )
    given_samples = [Sample(rows=(row, row), advantage=float(n)) for n in range(4)]
    limits = {"max_tokens": 6, "pad_id": 0, "ranks": 2}  # an episode each
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
