"""Every loss and every setting of it against a slow reference, in value and in gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forge_env.core.errors import UserError
from tests.trainers.objective.loss_references import Reference, make_batch
from trainers.losses import CISPOLoss, DAPOLoss, GRPOLoss, GSPOLoss, ReinforceLoss, SAPOLoss, SimpleGRPOLoss

LOSSES: dict[str, tuple[str, type[torch.nn.Module], dict[str, Any]]] = {
    "grpo": ("grpo", GRPOLoss, {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "sequence"}),
    "grpo-dual": ("grpo", GRPOLoss, {"clip_low": 0.1, "clip_high": 0.1, "dual_clip": 1.3, "aggregation": "token"}),
    "dr-grpo": ("grpo", GRPOLoss, {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "constant", "constant": 9.0}),
    "dapo": ("grpo", DAPOLoss, {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token"}),
    "gspo": ("gspo", GSPOLoss, {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence"}),
    "gspo-wide": ("gspo", GSPOLoss, {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "token"}),
    "sapo": ("sapo", SAPOLoss, {"tau_pos": 1.0, "tau_neg": 1.05, "aggregation": "sequence"}),
    "cispo": ("cispo", CISPOLoss, {"clip_low": 1.0, "clip_high": 4.0, "aggregation": "token"}),
    "cispo-narrow": ("cispo", CISPOLoss, {"clip_low": 0.2, "clip_high": 0.3, "aggregation": "sequence"}),
    "reinforce": ("reinforce", ReinforceLoss, {"clip_ratio": None, "aggregation": "token"}),
    "reinforce-clip": ("reinforce", ReinforceLoss, {"clip_ratio": 0.2, "aggregation": "constant", "constant": 3.0}),
    "simple": ("simple", SimpleGRPOLoss, {"aggregation": "sequence"}),
}
PRESENT = {"grpo", "dapo", "gspo", "sapo", "cispo", "reinforce", "simple"}
"""Those whose settings here are the class's own defaults."""
TENSORS = {"simple": ("logprobs", "reference_logprobs", "advantages", "loss_mask")}
each_loss = pytest.mark.parametrize("name", LOSSES)


def value_and_gradient(loss: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    logprobs = batch["logprobs"].detach().clone().requires_grad_()
    value = loss(**batch | {"logprobs": logprobs})
    (gradient,) = torch.autograd.grad(value, logprobs)
    return value.item(), gradient


def check(name: str, batch: dict[str, torch.Tensor], **settings: Any) -> None:
    kind, make, defaults = LOSSES[name]
    reference = Reference(kind, batch, **defaults, **settings)
    given = {key: value for key, value in batch.items() if key in TENSORS.get(kind, batch)}
    value, gradient = value_and_gradient(make(**defaults, **settings), given)
    assert value == pytest.approx(reference.value(reference.frozen), abs=1e-12)
    torch.testing.assert_close(gradient, torch.from_numpy(reference.gradient()), atol=2e-8, rtol=0)


@each_loss
@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient_equal_the_slow_reference(name: str, seed: int) -> None:
    check(name, make_batch(seed=seed))


@each_loss
def test_advantages_of_every_token(name: str) -> None:
    batch = make_batch()
    batch["advantages"] = torch.randn(batch["logprobs"].shape, dtype=torch.float64, generator=torch.manual_seed(1))
    if LOSSES[name][0] != "gspo":  # its reference is one ratio for a whole episode
        check(name, batch)


@each_loss
@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_kl_penalties(name: str, kl: str) -> None:
    check(name, make_batch(), beta=0.3, kl=kl)


@pytest.mark.parametrize("mode", ["truncate", "mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "simple"])
def test_corrections_with_two_policies(name: str, mode: str) -> None:
    check(name, make_batch(), correction=mode, correction_low=0.8, correction_high=1.25)


@pytest.mark.parametrize("mode", ["none", "truncate", "mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "simple"])
def test_corrections_with_three_policies(name: str, mode: str) -> None:
    batch = make_batch()
    noise = torch.randn(batch["logprobs"].shape, dtype=torch.float64, generator=torch.manual_seed(2))
    batch["old_logprobs"] = batch["generator_logprobs"] + 0.3 * noise
    check(name, batch, correction=mode, correction_low=0.8, correction_high=1.25)


@pytest.mark.parametrize("mode", ["none", "mask", "sequence_truncate"])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "simple"])
def test_in_the_first_step_of_a_window_nothing_is_clipped(name: str, mode: str) -> None:
    """The old logprobs are the present ones: the gradient is the policy gradient, weighted by old / engine."""
    batch = make_batch(spread=0.05)
    batch["old_logprobs"] = batch["logprobs"].clone()
    check(name, batch, correction=mode, correction_low=0.8, correction_high=1.25)
    _, make, defaults = LOSSES[name]
    loss = make(**defaults, correction="none")
    gradient = value_and_gradient(loss, batch)[1]
    valid = batch["loss_mask"]
    assert bool((gradient[valid] != 0).all())
    against_engine = {key: value for key, value in batch.items() if key != "old_logprobs"}
    lost = (value_and_gradient(loss, against_engine)[1] == 0) & valid
    assert bool(lost.any()) == (name == "gspo"), "of these clip ranges, only GSPO's is narrower than the noise"


@each_loss
def test_the_classes_own_defaults_are_the_papers(name: str) -> None:
    kind, make, defaults = LOSSES[name]
    batch = make_batch()
    given = {key: value for key, value in batch.items() if key in TENSORS.get(kind, batch)}
    if name in PRESENT:
        assert make()(**given) == make(**defaults, beta=0.0)(**given)


@each_loss
def test_the_entropy_bonus_has_a_gradient_and_is_aggregated_as_the_loss(name: str) -> None:
    kind, make, defaults = LOSSES[name]
    batch = make_batch()
    given = {key: value for key, value in batch.items() if key in TENSORS.get(kind, batch)}
    entropy = torch.rand(batch["logprobs"].shape, dtype=torch.float64).requires_grad_()
    loss = make(**defaults, entropy_coef=0.1)
    loss(**given, entropy=entropy).backward()
    mask = batch["loss_mask"].double()
    per_token = {
        "token": 1 / mask.sum(),
        "sequence": 1 / mask.sum(-1, keepdim=True).clamp(min=1) / (mask.sum(-1) > 0).sum(),
        "constant": 1 / defaults.get("constant", 1.0) / (mask.sum(-1) > 0).sum(),
    }[defaults["aggregation"]]
    torch.testing.assert_close(entropy.grad, -0.1 * per_token * mask)
    assert loss.unused_tensors == set() and make().unused_tensors == {"entropy"}
    with pytest.raises(UserError, match="entropy"):
        loss(**given)


def test_straight_through_has_the_estimators_value_and_the_gradient_of_k2() -> None:
    batch = make_batch() | {"advantages": torch.zeros(5, 1, dtype=torch.float64)}
    results = {kl: value_and_gradient(GRPOLoss(beta=1.0, kl=kl), batch) for kl in ("k1", "k2", "k3")}
    for kl in ("k1", "k2", "k3"):
        value, gradient = value_and_gradient(GRPOLoss(beta=1.0, kl=kl, kl_straight_through=True), batch)
        assert value == pytest.approx(results[kl][0], abs=1e-14)
        torch.testing.assert_close(gradient, results["k2"][1])


def test_the_default_correction_masks_only_extreme_ratios() -> None:
    batch = make_batch(spread=1.0)
    unbounded = value_and_gradient(GRPOLoss(correction="none"), batch)
    kept = value_and_gradient(GRPOLoss(), batch)
    assert kept[0] == unbounded[0] and torch.equal(kept[1], unbounded[1])
    batch["generator_logprobs"][1, 0] = batch["logprobs"][1, 0] - 5  # the trainer says 148 times the engine
    batch["advantages"][1] = -1.0
    assert value_and_gradient(GRPOLoss(correction="none"), batch)[1][1, 0] != 0
    assert value_and_gradient(GRPOLoss(), batch)[1][1, 0] == 0


@each_loss
def test_only_a_loss_of_advantages_alone_leaves_idle_samples_out(name: str) -> None:
    _, make, defaults = LOSSES[name]
    assert make(**defaults).skips_idle
    assert not make(**defaults, beta=0.1).skips_idle
    assert not make(**defaults, entropy_coef=-0.1).skips_idle


@pytest.mark.parametrize(
    ("make", "settings", "word"),
    [
        (GRPOLoss, {"beta": -1.0}, "beta"),
        (GRPOLoss, {"clip_high": -0.1}, "clip_high"),
        (GRPOLoss, {"dual_clip": 1.1}, "dual_clip"),
        (GRPOLoss, {"kl": "abs"}, "Available: k1, k2, k3"),
        (DAPOLoss, {"aggregation": "tokens"}, "Did you mean token"),
        (GSPOLoss, {"correction": "icepop"}, "correction"),
        (CISPOLoss, {"correction_high": 0.5}, "correction_high"),
        (CISPOLoss, {"clip_low": 2.0}, "clip_low"),
        (SAPOLoss, {"tau_pos": 0.0}, "tau_pos"),
        (ReinforceLoss, {"clip_ratio": 0.0}, "clip_ratio"),
        (SimpleGRPOLoss, {"constant": 0.0}, "constant"),
        (GRPOLoss, {"beta": float("nan")}, "beta"),
    ],
)
def test_settings_out_of_range(make: type[torch.nn.Module], settings: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        make(**settings)
