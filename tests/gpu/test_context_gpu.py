"""Context parallelism over two GPUs against one: a model as wide as Qwen3-8B with 4 layers, on rows of 32k tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan")
from benchmarks.gpu.context import CASES, run_ranks
from benchmarks.gpu.models import make_random_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")]


@pytest.mark.timeout(1300)
def test_two_gpus_that_share_rows_take_the_steps_of_one(tiny_model: Path, tmp_path: Path) -> None:
    make_random_model("8B", tiny_model, tmp_path / "model", layers=4)
    torch.cuda.empty_cache()
    (alone,) = run_ranks(tmp_path, 1, list(CASES))
    together = run_ranks(tmp_path, 2, list(CASES))
    for case in CASES:
        noise = 1e-3 if case.startswith("float32") else 2e-2
        for found in together:
            assert found[case]["logprobs"] == together[0][case]["logprobs"]
            for ours, expected in zip(found[case]["logprobs"], alone[case]["logprobs"], strict=True):
                difference = sum(abs(one - other) for one, other in zip(ours, expected, strict=True)) / len(expected)
                assert difference < noise
            for step, reference in zip(found[case]["steps"], alone[case]["steps"], strict=True):
                assert step["loss"] == pytest.approx(reference["loss"], rel=noise, abs=noise / 10)
                assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=noise)
                assert step["tokens"] == reference["tokens"] and not step["skipped"]
