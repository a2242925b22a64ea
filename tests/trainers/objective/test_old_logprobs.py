"""Old logprobs of a window, with a real trainer: nothing clips before anything is learned, and later steps do clip.

The engine is played by the trainer itself, with rows packed in another way and noise of the size that was measured
between a bfloat16 engine and the trainer: a mean |difference| of 0.0077 in random models.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torchtitan")

from forge_env.core.episode import Episode, Group
from tests.trainers.episodes import episode, group, turn
from tests.trainers.titan.folders import VOCABULARY, make_folder
from trainers.batching.batch import Sample
from trainers.controller.sample_maker import SampleMaker
from trainers.losses import GSPOLoss
from trainers.objective.advantages import group_relative, has_signal
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import OldLogprobs
from trainers.titan.trainer import RateSettings, TitanSettings, TitanTrainer

GROUPS = 8
PACK = 128
"""Tokens of the sequences that the engine's rows share; the trainer's are padded."""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TitanTrainer]:
    """It computes in bfloat16, so that rows which are packed in another way have other logprobs."""
    folder = make_folder(tmp_path_factory.mktemp("model"), "qwen3", tied=False)
    made = TitanTrainer(folder, TitanSettings(dtype="bfloat16", max_tokens_per_micro_batch=1024, threads=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def rolled_out(trainer: TitanTrainer) -> list[Episode]:
    """Random episodes of 20 to 60 sampled tokens, with the trainer's logprobs of rows that share sequences."""
    rng = random.Random(0)
    blank = [episode(turn(*(rng.randrange(VOCABULARY) for _ in range(rng.randint(20, 60))))) for _ in range(GROUPS * 8)]
    padded = trainer.settings
    trainer.settings = replace(padded, pack_length=PACK)
    packed = trainer.logprobs([Sample(rows=e.rows) for e in blank])
    trainer.settings = padded
    return [with_logprobs(e, values) for e, values in zip(blank, packed, strict=True)]


def with_logprobs(bare: Episode, logprobs: Sequence[float]) -> Episode:
    return replace(bare, turns=(replace(bare.turns[0], logprobs=tuple(logprobs)),))


def noisy(episodes: Sequence[Episode], noise: float) -> list[Group]:
    """Groups of 8, with normal noise of this mean |difference|. One in four has one reward for all its episodes."""
    rng, sigma = random.Random(1), noise * math.sqrt(math.pi / 2)
    members = [
        replace(
            with_logprobs(e, [value + rng.gauss(0, sigma) for value in e.turns[0].logprobs]),
            reward=float(number % 2 if number // 8 % 4 else 1),
        )
        for number, e in enumerate(episodes)
    ]
    return [group(*members[i : i + 8]) for i in range(0, len(members), 8)]


class Window:
    """The steps of one window as a run takes them, without its services."""

    def __init__(self, trainer: TitanTrainer) -> None:
        self.trainer = trainer
        self.objective = Objective(loss=GSPOLoss(), advantages=group_relative, group_size=8)
        self.old = OldLogprobs(objective=self.objective, logprobs=self.ask)
        self.make = SampleMaker(objective=self.objective)
        self.asked: list[int] = []

    async def ask(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        self.asked.append(len(samples))
        return self.trainer.logprobs(samples)

    async def train(self, batches: Sequence[Sequence[Group]], rate: float) -> list[dict[str, float]]:
        self.trainer.begin(RateSettings(learning_rate=rate))
        await self.old.begin_window(batches)
        found = []
        for groups in batches:
            old = self.old.take()
            samples, *_ = await self.make(groups, old)
            found.append(self.trainer.train_step(samples, self.objective.loss, old_is_present=old is None))
        return found


async def test_the_first_step_of_a_window_loses_no_gradient_to_rounding(
    trainer: TitanTrainer, rolled_out: list[Episode]
) -> None:
    noise = 0.0077
    groups, run = noisy(rolled_out, noise), Window(trainer)
    (metrics,) = await run.train([groups], rate=0.0)
    assert metrics["mean_abs_logprob_difference"] == pytest.approx(noise, rel=0.2)
    assert metrics["episodes_without_gradient"] <= 0.01 and metrics["grad_norm"] > 0
    assert metrics["ratio_min"] == metrics["ratio_max"] == 1.0
    against_engine = trainer.train_step((await run.make(groups))[0], GSPOLoss())
    assert against_engine["episodes_without_gradient"] > 0.25, "what a ratio of new / engine loses"


async def test_later_steps_clip_only_by_what_was_learned(trainer: TitanTrainer, rolled_out: list[Episode]) -> None:
    """Their old logprobs are those that the window began with, computed once for each later step, for those samples
    that it computes."""
    groups = noisy(rolled_out, 0.0077)
    batches = [groups[i : i + 2] for i in range(0, len(groups), 2)]
    still, moving = Window(trainer), Window(trainer)
    unmoved = await still.train(batches, rate=0.0)
    assert all(step["episodes_without_gradient"] <= 0.01 for step in unmoved)
    first, *later = await moving.train(batches, rate=1e-3)
    have_advantage = [8 * sum(has_signal(still.objective.task_rewards(g)) for g in groups) for groups in batches[1:]]
    assert still.asked == moving.asked == have_advantage
    assert first["episodes_without_gradient"] <= 0.01 and first["ratio_max"] == 1.0
    assert all(step["episodes_without_gradient"] > 0.05 and step["ratio_max"] > 1.0 for step in later)
