"""Blocks are compiled before the first step, for packed rows of any length."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from torch._dynamo.utils import counters
from torchtitan.config import CompileConfig

from tests.trainers.titan.test_trainer import make_model, make_samples
from trainers.losses import GRPOLoss


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_no_step_of_packed_rows_compiles_anything(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch, backend: str, dtype: str
) -> None:
    """How often is decided before the backend, of which the quick one writes no machine code.

    While it compiles, torch's limit is as low as if the process had made as many trainers as the limit allows.
    """
    monkeypatch.setattr("trainers.titan.model.CompileConfig", partial(CompileConfig, backend=backend))
    make_model(tmp_path / "model", tied=True)
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    settings = {"compile": True, "dtype": dtype, "pack_length": 120, "max_tokens_per_micro_batch": 120}
    try:
        with torch._dynamo.config.patch(recompile_limit=1):  # monkeypatch would leave the process without the setting
            trainer = make(tmp_path / "model", **settings)
        compiled = counters["stats"]["unique_graphs"]
        assert compiled - before == 2  # for one shape, and for all
        for count in (8, 21, 13, 30):
            trainer.train_step(make_samples(count, seed=count), GRPOLoss())
        assert counters["stats"]["unique_graphs"] == compiled
    finally:
        torch.compiler.reset()
