"""Weights sharded in groups, kept or freed, and an output layer in float32: the steps are those of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file
from torch import Tensor

from forge_env.core.errors import UserError
from tests.trainers.titan.test_trainer import (
    make_models,
    make_samples,
)
from trainers.losses import GRPOLoss
from trainers.titan.trainer import TitanTrainer

Make = Callable[..., TitanTrainer]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"data_parallel_replicate_degree": 2}, "parallelism needs 2 trainer processes, services.trainer.procs is 1"),
        ({"reshard_after_forward": "sometimes"}, "is 'sometimes'; it must be one of: default, always, never"),
        ({"optimizer_state": "4bit"}, "is '4bit'; it must be one of: float32, bfloat16, 8bit"),
        ({"dtype": "float16"}, "float16"),
        ({"attention": "fast"}, "fast"),
    ],
)
def test_settings_that_cannot_work_are_refused(models: Path, make: Make, changes: dict[str, Any], match: str) -> None:
    before = torch.distributed.is_initialized()  # an engine of an earlier test may still live
    with pytest.raises(UserError, match=match):
        make(models / "tied", **changes)
    assert torch.distributed.is_initialized() == before


# -- the output layer in float32 ---------------------------------------------------------------------------------


def hidden_states(trainer: TitanTrainer, tokens: Tensor) -> Tensor:
    """What the output layer gets of one row, (L, D)."""
    found: list[Tensor] = []
    hook = trainer.model.module.norm.register_forward_hook(lambda module, arguments, output: found.append(output))
    trainer.model.logits(tokens[None], None, torch.arange(len(tokens)))
    hook.remove()
    return found[0][0]


@pytest.mark.parametrize("kind", ["untied", "tied"])
@torch.no_grad()
def test_an_fp32_head_is_a_float32_product_of_float32_weights(models: Path, make: Make, kind: str) -> None:
    weights = load_file(models / kind / "model.safetensors")
    weight = weights["model.embed_tokens.weight" if kind == "tied" else "lm_head.weight"]
    tokens = torch.arange(3, 40)
    places = torch.arange(len(tokens))
    plain = make(models / kind, dtype="bfloat16")
    of_plain = plain.model.logits(tokens[None], None, places)
    rounded = hidden_states(plain, tokens)
    wide = make(models / kind, dtype="bfloat16", fp32_head=True)
    hidden = hidden_states(wide, tokens)
    assert hidden.dtype == torch.bfloat16 and torch.equal(hidden, rounded)  # up to the head nothing has changed
    logits = wide.model.logits(tokens[None], None, places)
    exact = hidden.float() @ weight.T
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, atol=1e-5, rtol=1e-5)
    assert (of_plain.float() - exact).abs().mean() > 100 * (logits - exact).abs().mean()
    logprobs, _ = wide.model.logprobs(tokens[None], None, places, tokens, 0.7)
    expected = (exact / 0.7).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_an_fp32_head_trains_and_resumes_bitwise(models: Path, make: Make, tmp_path: Path, kind: str) -> None:
    trainer = make(models / kind, dtype="bfloat16", fp32_head=True)
    first = trainer.train_step(make_samples(seed=1), GRPOLoss())
    plain = make(models / kind).train_step(make_samples(seed=1), GRPOLoss())
    assert first["grad_norm"] == pytest.approx(plain["grad_norm"], rel=0.05)
    trainer.save(tmp_path / "one", 1, {})
    expected = trainer.train_step(make_samples(seed=2), GRPOLoss())
    other = make(models / kind, dtype="bfloat16", fp32_head=True)
    other.load(tmp_path / "one")
    assert other.train_step(make_samples(seed=2), GRPOLoss()) | {"seconds": 0} == expected | {"seconds": 0}


def test_on_cpu_in_float32_an_fp32_head_and_offload_change_nothing(models: Path, make: Make) -> None:
    samples = make_samples()
    steps = [
        make(models / "untied", **changes).train_step(samples, GRPOLoss()) | {"seconds": 0}
        for changes in ({}, {"fp32_head": True, "cpu_offload": True})
    ]
    assert steps[0] == steps[1]
