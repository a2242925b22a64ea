"""An episode of growing rows, cut into several micro-batches on a GPU: the steps are those of whole episodes.

In bfloat16, at the shape of Qwen3-0.6B, with the kernels of varlen and flex attention, also compiled.
"""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from forge_env.core.episode import Row
from trainers.batching.batch import Sample
from trainers.losses import DAPOLoss, GRPOLoss, GSPOLoss
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU"),
]
VOCABULARY = 151_936
ROUND = 1024  # tokens by which a row is longer than the one before it
SETTINGS = TitanSettings(learning_rate=1e-5, eps=1e-6)


def growing(rows: int, advantage: float, rng: random.Random, *, vocabulary: int, length: int) -> Sample:
    """An episode whose rows each begin with all of the row before; the last half of each row's own part is sampled."""
    tokens: tuple[int, ...] = ()
    made = []
    for _ in range(rows):
        before = len(tokens)
        tokens += tuple(rng.randrange(vocabulary) for _ in range(length))
        mask = tuple(place >= before + length // 2 for place in range(len(tokens)))
        made.append(
            Row(
                token_ids=tokens,
                loss_mask=mask,
                generator_logprobs=(0.0,) * len(tokens),
                versions=tuple(0 if sampled else -1 for sampled in mask),
            )
        )
    return Sample(rows=tuple(made), advantage=advantage)


def make_samples(*, vocabulary: int = VOCABULARY, length: int = ROUND) -> list[Sample]:
    """Episodes of four growing rows, and of one; the longest row is four times `length`."""
    rng = random.Random(0)
    pairs = ((4, 1.0), (4, -0.7), (1, 0.4), (2, -0.5))
    return [growing(rows, advantage, rng, vocabulary=vocabulary, length=length) for rows, advantage in pairs]


def with_logprobs(samples: list[Sample], logprobs: list[list[float]]) -> list[Sample]:
    """The samples as an engine with these logprobs would have given them, so that ratios are near 1."""
    found = []
    for sample, values in zip(samples, logprobs, strict=True):
        left = iter(values)
        rows = tuple(
            replace(row, generator_logprobs=tuple(next(left) if sampled else 0.0 for sampled in row.loss_mask))
            for row in sample.rows
        )
        found.append(replace(sample, rows=rows))
    return found


def take_steps(model: Path, samples: list[Sample], settings: TitanSettings) -> tuple[list[dict[str, float]], Any]:
    """A step with each loss, and what `logprobs` says before them; loudly, how much memory they took."""
    trainer = TitanTrainer(model, settings)
    try:
        logprobs = trainer.logprobs(samples)
        samples = with_logprobs(samples, logprobs)
        splits = [batch.is_part for batch in trainer._batches.of(samples)]
        losses = (GRPOLoss(), GSPOLoss(clip_low=0.2, clip_high=0.2), DAPOLoss(entropy_coef=0.01))
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        found = [trainer.train_step(samples, loss) for loss in losses]
        gib = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        print(f"{sum(splits)} of {len(splits)} micro-batches have rows of split episodes: {gib:.1f} GiB")
        return found, (logprobs, sum(splits), gib)
    finally:
        trainer.close()
        del trainer
        gc.collect()
        torch.cuda.empty_cache()


@pytest.mark.parametrize("pack", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("attention", ["varlen", "flex"])
def test_split_episodes_take_the_steps_of_whole_ones(qwen3: Path, attention: str, compile: bool, pack: bool) -> None:
    samples = make_samples()
    longest = 4 * ROUND
    settings = replace(SETTINGS, attention=attention, compile=compile)
    all_tokens = sum(len(row.token_ids) for sample in samples for row in sample.rows)

    def of(tokens: int) -> TitanSettings:
        return replace(settings, max_tokens_per_micro_batch=tokens, pack_length=tokens if pack else 0)

    whole, (expected, none, most) = take_steps(qwen3, samples, of(2 * all_tokens))
    split, (logprobs, parts, less) = take_steps(qwen3, samples, of(longest))
    assert none == 0 and parts >= 4 and less < most
    for ours, theirs in zip(logprobs, expected, strict=True):
        difference = sum(abs(one - other) for one, other in zip(ours, theirs, strict=True)) / len(theirs)
        assert difference < 0.02
    for one, other in zip(split, whole, strict=True):
        assert one["tokens"] == other["tokens"] and one["episodes"] == other["episodes"] and not one["skipped"]
        assert one["loss"] == pytest.approx(other["loss"], abs=5e-3)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.03)
