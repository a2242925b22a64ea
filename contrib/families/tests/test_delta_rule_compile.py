"""The gated delta rule is one operation of torch in compiled blocks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
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

from contrib.families.delta_rule import PackedRows, _fla_backward, delta_rule, fla_rule
from contrib.families.tests.folders import make_folder
from tests.trainers.titan.test_context import SETTINGS  # noqa: F401 (of what `make` makes)
from tests.trainers.titan.test_trainer import make_samples
from trainers.losses import GRPOLoss


@pytest.fixture
def rule_of_a_gpu() -> Iterator[Any]:
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
    yield lambda *parts: fla_rule(*parts[:5], parts[5].borders, parts[5].chunks)
    torch.compiler.reset()


@pytest.mark.slow
def test_blocks_with_the_delta_rule_compile_whole_under_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule_of_a_gpu: Any, make: Any
) -> None:
    """Torch compiles nothing inside a checkpoint that it cannot compile whole."""
    gc.collect()  # vLLM's handlers of an earlier engine cannot be freed while tensors are fakes
    kinds = ["linear_attention", "full_attention"]
    folder = make_folder(tmp_path / "model", "qwen3.5", tied=True, num_hidden_layers=2, layer_types=kinds)
    plain = {"activation_checkpoint": "selective", "pack_length": 120, "max_tokens_per_micro_batch": 120}
    monkeypatch.setattr("contrib.families.qwen3_5_model.delta_rule", rule_of_a_gpu)
    monkeypatch.setattr("contrib.families.qwen3_5_model.device", lambda: torch.device("cuda"))
    monkeypatch.setattr("trainers.titan.model.CompileConfig", partial(CompileConfig, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()
    compiled, same = make(folder, **plain, compile=True), make(folder, **plain)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs and not counters["graph_break"]
    ours, expected = (trainer.train_step(make_samples(21), GRPOLoss()) for trainer in (compiled, same))
    assert ours | {"seconds": 0} == pytest.approx(expected | {"seconds": 0}, abs=1e-4)
    assert counters["stats"]["unique_graphs"] == graphs and not counters["graph_break"]


def test_the_operation_of_the_delta_rule_keeps_the_rules_of_torch(rule_of_a_gpu: Any) -> None:
    rows = PackedRows.of(torch.zeros(1, 75, dtype=torch.int64), torch.tensor([[*range(70), *range(5)]]))
    sizes = ((2, 8), (2, 8), (4, 6), (4,), (4,))
    parts = [torch.randn(75, *size).abs().neg().requires_grad_() for size in sizes]
    torch.library.opcheck(fla_rule, (*parts, rows.borders, rows.chunks))
    found = torch.autograd.grad(rule_of_a_gpu(*parts, rows).sin().sum(), parts)
    torch.testing.assert_close(found, torch.autograd.grad(delta_rule(*parts, rows).sin().sum(), parts))
