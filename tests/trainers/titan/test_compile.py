"""Blocks are compiled before the first step, for packed rows of any length."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan")
from torch._dynamo.utils import counters
from torchtitan.config import CompileConfig

from tests.trainers.titan.test_context import SETTINGS
from tests.trainers.titan.test_trainer import make_model, make_samples
from trainers.losses import GRPOLoss
from trainers.titan.trainer import TitanTrainer


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_no_step_of_packed_rows_compiles_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, dtype: str
) -> None:
    """How often is decided before the backend, of which the quick one writes no machine code."""
    monkeypatch.setattr("trainers.titan.model.CompileConfig", partial(CompileConfig, backend=backend))
    make_model(tmp_path / "model", tied=True)
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    settings = dataclasses.replace(SETTINGS, compile=True, dtype=dtype, pack_length=120, max_tokens_per_micro_batch=120)
    trainer = TitanTrainer(tmp_path / "model", settings)
    try:
        compiled = counters["stats"]["unique_graphs"]
        assert compiled - before == 2  # for one shape, and for all
        for count in (8, 21, 13, 30):
            trainer.train_step(make_samples(count, seed=count), GRPOLoss())
        assert counters["stats"]["unique_graphs"] == compiled
    finally:
        trainer.close()
        torch.compiler.reset()


def test_each_trainer_of_a_process_may_compile_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's limit is as low here as if as many trainers had been made as it allows."""
    monkeypatch.setattr("trainers.titan.model.CompileConfig", partial(CompileConfig, backend="aot_eager"))
    make_model(tmp_path / "model", tied=True)
    torch.compiler.reset()
    settings = dataclasses.replace(SETTINGS, compile=True, pack_length=120, max_tokens_per_micro_batch=120)
    try:
        with torch._dynamo.config.patch(recompile_limit=1):  # monkeypatch would leave the process without the setting
            TitanTrainer(tmp_path / "model", settings).close()
    finally:
        torch.compiler.reset()
