"""The metrics against numbers worked by hand, and that they add up over micro-batches."""

from __future__ import annotations

import math

import pytest
import torch

from forge_env.core.episode import Row
from trainers.batching.batch import MicroBatch, Sample, pack
from trainers.losses import CISPOLoss, GRPOLoss, GSPOLoss, ReinforceLoss, SAPOLoss, SFTLoss
from trainers.objective.loss_metrics import LossMetrics

CPU = torch.device("cpu")
GENERATOR = math.log(0.5)


def batch(*advantages: float, tokens: int = 2, generator: float = GENERATOR, old: float | None = None) -> MicroBatch:
    """One row per advantage, of `tokens` sampled tokens after one of prompt."""
    row = Row(
        token_ids=(0,) * (tokens + 1),
        loss_mask=(False,) + (True,) * tokens,
        generator_logprobs=(0.0,) + (generator,) * tokens,
        versions=(-1,) + (0,) * tokens,
    )
    old_logprobs = None if old is None else (old,) * tokens
    samples = [Sample(rows=(row,), advantage=a, old_logprobs=old_logprobs) for a in advantages]
    (made,) = pack(samples, max_tokens=1000, pack_length=0, pad_id=0)
    return made


def metrics(loss: object, *parts: tuple[MicroBatch, list[list[float]]]) -> dict[str, float]:
    """Metrics of micro-batches whose ratios are given."""
    measured = LossMetrics(loss, CPU)
    for one, ratios in parts:
        measured.add(one, torch.tensor(ratios, dtype=torch.float64).log() + GENERATOR, None)
    return measured.values(sum(len(row) for _, ratios in parts for row in ratios))


def test_worked_by_hand() -> None:
    measured = metrics(GRPOLoss(clip_low=0.2, clip_high=0.28), (batch(1.0, -1.0), [[1.0, 2.0], [0.5, 0.5]]))
    ln2 = math.log(2)
    assert measured == pytest.approx(
        {
            "ratio_mean": 1.0,
            "ratio_min": 0.5,
            "ratio_max": 2.0,
            "kl": ((1 - ln2) + 2 * (-0.5 + ln2)) / 4,
            "kl_k1": ln2 / 4,
            "mean_abs_logprob_difference": 3 * ln2 / 4,
            "clipped_low": 0.5,
            "clipped_high": 0.25,
            "episodes_without_gradient": 1.0,  # no gradient was given
            "ess": 16 / 4 / (1 + 4 + 0.25 + 0.25),
        },
        abs=1e-6,
    )


def test_with_old_logprobs_the_ratio_is_against_them_and_the_mismatch_against_the_generator() -> None:
    part = batch(1.0, old=math.log(0.25))
    measured = metrics(GRPOLoss(clip_low=0.2, clip_high=0.28), (part, [[0.5, 1.0]]))  # model / generator
    assert (measured["ratio_min"], measured["ratio_max"], measured["ratio_mean"]) == pytest.approx(
        (1.0, 2.0, 1.5), abs=1e-6
    )
    assert measured["clipped_high"] == 0.5 and measured["ess"] == pytest.approx(9 / 2 / 5, abs=1e-6)
    against_generator = measured["mean_abs_logprob_difference"], measured["kl_k1"]
    assert against_generator == pytest.approx((math.log(2) / 2,) * 2, abs=1e-6)


def test_the_share_of_tokens_that_each_loss_clips() -> None:
    part = batch(1.0, -1.0), [[1.5, 0.5], [1.5, 0.5]]

    def clipped(loss: object) -> tuple[float, float]:
        measured = metrics(loss, part)
        return measured["clipped_low"], measured["clipped_high"]

    assert clipped(GRPOLoss()) == (0.25, 0.25)  # the gradient's own side of each bound only
    assert clipped(CISPOLoss(clip_low=0.2, clip_high=0.2)) == (0.5, 0.5)
    assert clipped(ReinforceLoss(clip_ratio=0.2)) == (0.5, 0.5)
    assert clipped(GSPOLoss(0.2, 0.2)) == (0.0, 0.0)  # the geometric mean of 1.5 and 0.5 is 0.87
    assert clipped(GSPOLoss()) == (0.5, 0.0)
    assert clipped(ReinforceLoss()) == clipped(SAPOLoss()) == clipped(SFTLoss()) == (0.0, 0.0)


def test_micro_batches_add_up() -> None:
    ratios = [[1.0, 2.0], [0.5, 0.7], [1.1, 0.9]]
    whole = metrics(GRPOLoss(), (batch(1.0, -1.0, 1.0), ratios))
    parts = metrics(GRPOLoss(), (batch(1.0, -1.0), ratios[:2]), (batch(1.0), ratios[2:]))
    assert parts == pytest.approx(whole, rel=1e-12)


def test_entropy_is_a_mean_and_without_tokens_there_are_no_metrics() -> None:
    measured = LossMetrics(GRPOLoss(), CPU)
    assert measured.values(0) == {}
    measured.add(batch(1.0), torch.full((1, 2), GENERATOR), torch.tensor([[1.0, 3.0]]))
    assert measured.values(2)["entropy"] == 2.0


def test_extreme_ratios_stay_finite() -> None:
    measured = LossMetrics(GRPOLoss(), CPU)
    measured.add(batch(1.0, generator=-1e4), torch.zeros(1, 2), None)
    assert all(map(math.isfinite, measured.values(2).values()))


def test_episodes_that_have_an_advantage_and_no_gradient() -> None:
    """Three of five have an advantage; one of them has no gradient, and one of the other two has some."""
    measured = LossMetrics(GRPOLoss(), CPU)
    for advantages, gradients in (((1.0, -1.0, 0.0), ((0, 0), (0, 0.5), (0, 0))), ((0.0, 2.0), ((0.1, 0), (1, 1)))):
        one = batch(*advantages)
        measured.add(one, one.generator_logprobs, None, torch.tensor(gradients, dtype=torch.float32))
    assert measured.values(10)["episodes_without_gradient"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("pack_length", [0, 20_000])
def test_the_kl_of_each_depth_of_context(pack_length: int) -> None:
    """A row of 5,000 tokens behind one of 100; the ratios are 2 from the 2,048th token of the row on, 4 from 4,096."""
    samples = []
    for length in (100, 5000):
        row = Row(
            token_ids=(0,) * length,
            loss_mask=(False,) + (True,) * (length - 1),
            generator_logprobs=(GENERATOR,) * length,
            versions=(-1,) + (0,) * (length - 1),
        )
        samples.append(Sample(rows=(row,), advantage=1.0))
    (made,) = pack(samples, max_tokens=20_000, pack_length=pack_length, pad_id=0)
    places = torch.arange(1, made.source.shape[1] + 1).expand(made.source.shape)
    ratios = torch.where(places >= 4096, 4.0, torch.where(places >= 2048, 2.0, 1.0)).double()
    measured = LossMetrics(GRPOLoss(), CPU)
    measured.add(made, ratios.log() + GENERATOR, None)
    found = measured.values(sum(made.units[:1]))
    ln2 = math.log(2)
    by_depth = {name: value for name, value in found.items() if name.startswith("kl_from/")}
    expected = {"kl_from/0": 0.0, "kl_from/2048": 1 - ln2, "kl_from/4096": 3 - 2 * ln2}
    assert by_depth == pytest.approx(expected, abs=1e-6)
