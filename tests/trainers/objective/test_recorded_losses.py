"""Every loss and option on one seeded batch, against values and gradients that were recorded once.

recorded_losses.json holds, for each case, the value and three figures of the gradient. To record new cases, delete the
file and run `python -m tests.trainers.objective.test_recorded_losses`; a recorded number changes only when a formula is
meant to change.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.objective.loss_references import make_batch
from trainers.losses import (
    CISPOLoss,
    DAPOLoss,
    GRPOLoss,
    GSPOLoss,
    ReinforceLoss,
    SAPOLoss,
    SFTLoss,
    SimpleGRPOLoss,
)

RECORDED = Path(__file__).with_name("recorded_losses.json")
LOSSES: dict[str, tuple[type[torch.nn.Module], dict[str, Any]]] = {
    "grpo": (GRPOLoss, {}),
    "grpo dual clip": (GRPOLoss, {"clip_low": 0.1, "clip_high": 0.1, "dual_clip": 1.3}),
    "dapo": (DAPOLoss, {}),
    "gspo": (GSPOLoss, {}),
    "gspo wide": (GSPOLoss, {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 1.5}),
    "sapo": (SAPOLoss, {"tau_pos": 0.9, "tau_neg": 1.2}),
    "cispo": (CISPOLoss, {"clip_low": 0.3, "clip_high": 0.4}),
    "reinforce": (ReinforceLoss, {}),
    "reinforce clip": (ReinforceLoss, {"clip_ratio": 0.2}),
    "simple": (SimpleGRPOLoss, {}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "constant": {"aggregation": "constant", "constant": 9.0},
    "token": {"aggregation": "token"},
    "sequence": {"aggregation": "sequence"},
    **{f"kl {kl}": {"beta": 0.3, "kl": kl} for kl in ("k1", "k2", "k3")},
    "kl straight through": {"beta": 0.3, "kl": "k1", "kl_straight_through": True},
    "entropy": {"entropy_coef": 0.1},
    **{
        f"correction {mode}": {"correction": mode, "correction_low": 0.8, "correction_high": 1.25}
        for mode in ("none", "truncate", "mask", "sequence_truncate", "sequence_mask")
    },
}
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def batch_of(dtype: torch.dtype, *, old: bool, normalizer: bool, entropy: bool) -> dict[str, torch.Tensor]:
    batch = make_batch(seed=3)
    noise = torch.Generator().manual_seed(4)
    shape = batch["logprobs"].shape
    if old:
        batch["old_logprobs"] = batch["generator_logprobs"] + 0.3 * torch.randn(
            shape, generator=noise, dtype=torch.float64
        )
    if entropy:
        batch["entropy"] = torch.rand(shape, generator=noise, dtype=torch.float64)
    if normalizer:
        batch["normalizer"] = torch.tensor(11.0)
    batch["generator_logprobs"][1, 2] = float("nan")  # a token without a ratio
    batch["logprobs"][0, 0] = float("inf")  # masked: it may hold anything
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}


def value_and_gradient(
    loss: torch.nn.Module, batch: dict[str, torch.Tensor], names: set[str]
) -> tuple[float, torch.Tensor]:
    logprobs = batch["logprobs"].detach().clone().requires_grad_()
    value = loss(**{name: tensor for name, tensor in (batch | {"logprobs": logprobs}).items() if name in names})
    (gradient,) = torch.autograd.grad(value, logprobs)
    return value.item(), gradient


def cases() -> Iterator[tuple[str, torch.nn.Module, dict[str, torch.Tensor], set[str]]]:
    """Name, loss, batch, and the tensors that it is given."""
    everything = {"logprobs", "reference_logprobs", "advantages", "loss_mask", "normalizer", "entropy"}
    for name, option, dtype, old in itertools.product(LOSSES, OPTIONS, DTYPES, (False, True)):
        if name == "simple" and (old or option.startswith("correction")):
            continue
        make, settings = LOSSES[name]
        batch = batch_of(DTYPES[dtype], old=old, normalizer=old, entropy="entropy" in option)
        names = everything if name == "simple" else everything | {"generator_logprobs", "old_logprobs"}
        if name == "simple":
            batch["loss_mask"][1, 2] = False
        yield f"{name}, {option}, {dtype}{', old' * old}", make(**settings, **OPTIONS[option]), batch, names
    for dtype in DTYPES:
        batch = batch_of(DTYPES[dtype], old=False, normalizer=False, entropy=False)
        yield f"sft, {dtype}", SFTLoss(), batch, {"logprobs", "loss_mask"}


def figures(loss: torch.nn.Module, batch: dict[str, torch.Tensor], names: set[str]) -> list[float]:
    value, gradient = value_and_gradient(loss, batch, names)
    flat = gradient.double().flatten()
    weighted = (flat * torch.arange(1, len(flat) + 1)).sum()
    return [
        float(f"{number:.9g}") for number in (value, flat.sum().item(), weighted.item(), flat.square().sum().item())
    ]


def test_values_and_gradients_are_the_recorded_ones() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    computed = {name: figures(*case) for name, *case in cases()}
    assert computed.keys() == recorded.keys()
    for name, numbers in computed.items():
        tolerance = 1e-4 if "float32" in name else 1e-8
        assert numbers == pytest.approx(recorded[name], rel=tolerance, abs=tolerance / 100), name


if __name__ == "__main__":
    with RECORDED.open("x", encoding="utf-8") as file:
        rows = [f"{json.dumps(name)}: {json.dumps(figures(*case))}" for name, *case in cases()]
        file.write("{\n" + ",\n".join(rows) + "\n}\n")
