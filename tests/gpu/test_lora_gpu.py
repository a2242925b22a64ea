"""Adapters over a frozen model in bfloat16, on one GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")

from tests.trainers.titan.test_trainer import SETTINGS, make_model, make_samples
from tests.trainers.titan.weights import weights_of
from trainers.lora import Lora
from trainers.losses import SFTLoss
from trainers.titan.trainer import TitanTrainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU")]
LORA = Lora(rank=8, alpha=16.0)
Make = Callable[..., TitanTrainer]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[TitanTrainer] = []
    folder = make_model(tmp_path / "model", tied=True)

    def make(**changes: Any) -> TitanTrainer:
        settings = {"dtype": "bfloat16", "lora": LORA, "learning_rate": 1e-2, **changes}
        made.append(TitanTrainer(folder, dataclasses.replace(SETTINGS, **settings)))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def train(trainer: TitanTrainer, steps: int = 4) -> list[float]:
    return [trainer.train_step(make_samples(seed=step % 2), SFTLoss())["loss"] for step in range(steps)]


@pytest.mark.parametrize(
    "changes",
    [{}, {"attention": "flex", "pack_length": 128}, {"activation_checkpoint": "full"}, {"fp32_head": True}],
    ids=str,
)
def test_adapters_learn_and_the_base_stays(make: Make, changes: dict[str, Any]) -> None:
    trainer = make(**changes)
    before, start = weights_of(trainer), trainer.logprobs(make_samples())
    losses = train(trainer)
    assert losses[-1] < losses[0]
    for ours, expected in zip(trainer.reference_logprobs(make_samples()), start, strict=True):
        assert (ours == expected).all(), "the base, and bit by bit"
    after = weights_of(trainer)
    changed = {name.split(".")[-2] for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == set(LORA.targets)


def test_a_checkpoint_and_a_folder_of_adapters(make: Make, tmp_path: Path) -> None:
    trainer = make()
    train(trainer)
    trainer.save(tmp_path / "checkpoint", 4, {"n": 4}, asynchronous=True)
    trainer.export_adapter(tmp_path / "adapter")
    expected = trainer.logprobs(make_samples())
    trainer.close()  # waits for the checkpoint
    resumed = make()
    assert resumed.load(tmp_path / "checkpoint") == {"n": 4}
    started = make(lora=dataclasses.replace(LORA, adapter=str(tmp_path / "adapter")))
    for other in (resumed, started):
        for ours, theirs in zip(other.logprobs(make_samples()), expected, strict=True):
            assert (ours == theirs).all()


def test_adapters_take_little_beside_the_frozen_weights(make: Make) -> None:
    trainer = make()
    train(trainer)
    parameters = list(trainer.model.module.parameters())
    assert {parameter.dtype for parameter in parameters if not parameter.requires_grad} == {torch.bfloat16}
    assert {parameter.dtype for parameter in parameters if parameter.requires_grad} == {torch.float32}
