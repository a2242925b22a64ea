"""Blocks are compiled before the first step, for packed rows of any length; the delta rule is one operation in them."""

from __future__ import annotations

import dataclasses
import gc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchtitan")
from torch._dynamo.utils import counters
from torchtitan.config import CompileConfig

from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.test_context import SETTINGS
from tests.trainers.titan.test_trainer import make_model, make_samples
from trainers.losses import GRPOLoss
from trainers.titan.delta_rule import PackedRows, _fla_backward, delta_rule, fla_rule
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


# -- the delta rule ----------------------------------------------------------------------------------------------


@pytest.fixture
def rule_of_a_gpu() -> Any:
    """`delta_rule` as on a GPU: one operation, here with the reference as its kernels."""

    def forward(*parts: Tensor) -> Tensor:
        *parts, borders, chunks = parts
        return delta_rule(*parts, PackedRows(borders, borders, chunks)).contiguous()

    def gradients(gradient: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        inputs = [part.detach().requires_grad_() for part in parts[:5]]
        found = torch.autograd.grad(forward(*inputs, *parts[5:]), inputs, gradient)
        return tuple(part.contiguous() for part in found)

    def backward(*parts: Tensor) -> tuple[Tensor, ...]:
        with ThreadPoolExecutor(1) as other:  # in this thread torch records nothing while it is in an operation
            return other.submit(gradients, *parts).result()

    fla_rule.register_kernel("cpu")(forward)
    _fla_backward.register_kernel("cpu")(backward)
    return lambda *parts: fla_rule(*parts[:5], parts[5].borders, parts[5].chunks)


def test_blocks_with_the_delta_rule_compile_whole_under_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule_of_a_gpu: Any
) -> None:
    """Torch compiles nothing inside a checkpoint that it cannot compile whole."""
    gc.collect()  # vLLM's handlers of an earlier engine cannot be freed while tensors are fakes
    folder = make_folder(tmp_path / "model", "qwen3.5", tied=True)
    plain = dataclasses.replace(
        SETTINGS, activation_checkpoint="selective", pack_length=120, max_tokens_per_micro_batch=120
    )
    monkeypatch.setattr("trainers.titan.qwen3_5.delta_rule", rule_of_a_gpu)
    monkeypatch.setattr("trainers.titan.qwen3_5.device", lambda: torch.device("cuda"))
    monkeypatch.setattr("trainers.titan.model.CompileConfig", partial(CompileConfig, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()
    compiled, same = TitanTrainer(folder, dataclasses.replace(plain, compile=True)), TitanTrainer(folder, plain)
    try:
        graphs = counters["stats"]["unique_graphs"]
        assert graphs and not counters["graph_break"]
        ours, expected = (trainer.train_step(make_samples(21), GRPOLoss()) for trainer in (compiled, same))
        assert ours | {"seconds": 0} == pytest.approx(expected | {"seconds": 0}, abs=1e-4)
        assert counters["stats"]["unique_graphs"] == graphs and not counters["graph_break"]
    finally:
        compiled.close()
        same.close()
        torch.compiler.reset()


def test_the_operation_of_the_delta_rule_keeps_the_rules_of_torch(rule_of_a_gpu: Any) -> None:
    rows = PackedRows.of(torch.zeros(1, 75, dtype=torch.int64), torch.tensor([[*range(70), *range(5)]]))
    sizes = ((2, 8), (2, 8), (4, 6), (4,), (4,))
    parts = [torch.randn(75, *size).abs().neg().requires_grad_() for size in sizes]
    torch.library.opcheck(fla_rule, (*parts, rows.borders, rows.chunks))
    found = torch.autograd.grad(rule_of_a_gpu(*parts, rows).sin().sum(), parts)
    torch.testing.assert_close(found, torch.autograd.grad(delta_rule(*parts, rows).sin().sum(), parts))
