"""Blocks are compiled before the first step, for rows of any length."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan")
from torch._dynamo.utils import counters

from tests.trainers.titan.test_context import SETTINGS
from tests.trainers.titan.test_trainer import make_model, make_samples
from trainers.losses import GRPOLoss
from trainers.titan.trainer import TitanTrainer


@pytest.mark.parametrize("pack_length", [120, pytest.param(0, marks=pytest.mark.slow)], ids=["packed", "padded"])
def test_no_step_compiles_anything(tmp_path: Path, pack_length: int) -> None:
    make_model(tmp_path / "model", tied=True)
    torch.compiler.reset()
    settings = dataclasses.replace(SETTINGS, compile=True, pack_length=pack_length, max_tokens_per_micro_batch=120)
    trainer = TitanTrainer(tmp_path / "model", settings)
    try:
        compiled = counters["stats"]["unique_graphs"]
        assert compiled == 2  # for one shape, and for all
        for count in (8, 21, 13, 30):
            trainer.train_step(make_samples(count, seed=count), GRPOLoss())
        assert counters["stats"]["unique_graphs"] == compiled
    finally:
        trainer.close()
        torch.compiler.reset()
