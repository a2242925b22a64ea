"""Context parallelism over two GPUs against one: a model as wide as Qwen3-8B with 4 layers, on rows of 32k tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan")
from benchmarks.gpu.context import CASES, run_ranks
from benchmarks.gpu.models import make_random_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")]


@pytest.fixture(scope="module")
def root(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("context")
    make_random_model("8B", tiny_model, root / "model", layers=4)
    torch.cuda.empty_cache()
    return root


@pytest.mark.timeout(600)  # each rank takes 20 s and more to choose each of flex's kernels
@pytest.mark.parametrize("case", CASES)
def test_two_gpus_that_share_rows_take_the_steps_of_one(case: str, root: Path) -> None:
    alone = run_ranks(root, 1, [case])[0][case]
    noise = 1e-3 if case.startswith("float32") else 2e-2
    together = [found[case] for found in run_ranks(root, 2, [case])]
    for found in together:
        assert found["logprobs"] == together[0]["logprobs"]
        for ours, expected in zip(found["logprobs"], alone["logprobs"], strict=True):
            difference = sum(abs(one - other) for one, other in zip(ours, expected, strict=True)) / len(expected)
            assert difference < noise
        for step, reference in zip(found["steps"], alone["steps"], strict=True):
            assert step["loss"] == pytest.approx(reference["loss"], rel=noise, abs=noise / 10)
            assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=noise)
            assert step["tokens"] == reference["tokens"] and not step["skipped"]
