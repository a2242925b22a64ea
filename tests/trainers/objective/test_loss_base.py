"""Every loss and every setting of it against a slow reference, in value and in gradient, and numbers worked by hand."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import pytest
import torch

from forge_env.core.errors import UserError
from tests.trainers.objective.loss_references import Reference, make_batch
from trainers import grpo
from trainers.losses import CISPOLoss, DAPOLoss, GRPOLoss, GSPOLoss, ReinforceLoss, SAPOLoss, SFTLoss, SimpleGRPOLoss
from trainers.objective.advantages import group_relative
from trainers.objective.loss_terms import aggregate, correction_weight, kl_estimate, log_ratio, sequence_mean

LOSSES: dict[str, tuple[str, type[torch.nn.Module], dict[str, Any]]] = {
    "grpo": ("grpo", GRPOLoss, {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "sequence"}),
    "grpo-dual": ("grpo", GRPOLoss, {"clip_low": 0.1, "clip_high": 0.1, "dual_clip": 1.3, "aggregation": "token"}),
    "dr-grpo": ("grpo", GRPOLoss, {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "constant", "constant": 9.0}),
    "dapo": ("grpo", DAPOLoss, {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token"}),
    "gspo": ("gspo", GSPOLoss, {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence"}),
    "gspo-wide": ("gspo", GSPOLoss, {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "token"}),
    "gspo-dual": ("gspo", GSPOLoss, {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 1.25, "aggregation": "sequence"}),
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
        (GRPOLoss, {"clip_low": 1.5}, "clip_low"),
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


# ---- worked by hand ----

LN2 = math.log(2.0)


def tensor(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_grpo_worked_by_hand() -> None:
    # Ratios 2, 1/2 and 1, 1; clipped to [0.8, 1.28].
    logprobs = tensor([[-1.0, -1.0], [-1.0, -1.0]])
    generator = tensor([[-1.0 - LN2, -1.0 + LN2], [-1.0, -1.0]])
    mask = torch.tensor([[True, True], [True, False]])
    advantages = tensor([1.0, -2.0])
    # Episode 1: -min(2, 1.28) = -1.28 and -min(0.5, 0.8) = -0.5. Episode 2: -min(-2, -2) = 2.
    sequence = GRPOLoss()(logprobs, generator, advantages, mask)
    assert sequence.item() == pytest.approx(((-1.28 - 0.5) / 2 + 2.0) / 2)
    token = GRPOLoss(aggregation="token")(logprobs, generator, advantages, mask)
    assert token.item() == pytest.approx((-1.28 - 0.5 + 2.0) / 3)
    # A negative advantage is clipped from below: -min(0.5 * -1, 0.8 * -1) = 0.8, and 2 is not clipped from above.
    negative = GRPOLoss(aggregation="token")(logprobs, generator, -tensor([1.0, 0.0]), mask)
    assert negative.item() == pytest.approx((2.0 + 0.8 + 0.0) / 3)


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_step_in_the_docstring_of_grpo_is_the_class(beta: float) -> None:
    """Over two groups of a step, with ratios on both sides of the clip, and its gradient."""
    block = textwrap.dedent("    import torch" + (grpo.__doc__ or "").partition("    import torch")[2])
    assert 20 < len(block.splitlines()) <= 35
    by_hand: dict[str, Any] = {}
    exec(block, by_hand)
    batches = [make_batch(episodes=4, seed=seed) for seed in (1, 2)]
    rewards = [tensor([1.0, 0.0, 0.0, 1.0]), tensor([0.5, 0.0, 1.0, 0.25])]
    names = ("logprobs", "generator_logprobs", "reference_logprobs")
    leaves = [batch["logprobs"].requires_grad_() for batch in batches]
    groups = [(r, b["loss_mask"], *(b[n] for n in names)) for r, b in zip(rewards, batches, strict=True)]
    value = by_hand["grpo"](groups, beta=beta)
    gradients = torch.autograd.grad(value, leaves)

    joined = {name: torch.cat([batch[name] for batch in batches]) for name in (*names, "loss_mask")}
    advantages = [advantage for of_group in rewards for advantage in group_relative(of_group.tolist())]
    expected = GRPOLoss(beta=beta, aggregation="token")(**joined, advantages=tensor(advantages))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, leaves))
    before = [leaf.detach().clone() for leaf in leaves]
    by_hand["step"](torch.optim.SGD(leaves, lr=0.1), groups)
    moved = [leaf.detach() for leaf in leaves]
    assert not torch.equal(before[0], moved[0]) and not torch.equal(before[1], moved[1])


def test_the_kl_penalty_and_sft_worked_by_hand() -> None:
    one, mask = tensor([[-1.0]]), torch.tensor([[True]])
    loss = GRPOLoss(beta=0.1)(one, one, tensor([0.0]), mask, reference_logprobs=tensor([[-1.0 + LN2]]))
    assert loss.item() == pytest.approx(0.1 * (2.0 - LN2 - 1.0))
    with pytest.raises(UserError, match="reference_logprobs"):
        GRPOLoss(beta=0.1)(one, one, tensor([0.0]), mask)
    logprobs, mask = tensor([[-1.0, -2.0], [-3.0, -4.0]]), torch.tensor([[True, True], [True, False]])
    assert SFTLoss()(logprobs, mask).item() == pytest.approx(2.0)
    assert SFTLoss()(logprobs, mask, normalizer=tensor([6.0])).item() == pytest.approx(1.0)


def test_terms_at_their_bounds_worked_by_hand() -> None:
    far, mask = tensor([[-90.0, 0.0, math.nan], [-30.0, -30.0, 0.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    assert log_ratio(far, tensor([[0.0, -90.0, 0.0], [-31.5, 0.0, 0.0]]), mask).tolist() == [[-20, 20, 0], [1.5, 0, 0]]
    assert sequence_mean(far, mask).tolist() == [[-45.0], [-30.0]]
    assert sequence_mean(far, ~mask)[1].tolist() == [-15.0] and sequence_mean(far, mask & False).tolist() == [[0], [0]]
    d = tensor([LN2, -LN2])
    assert kl_estimate(d, "k1").tolist() == [LN2, -LN2]
    assert kl_estimate(d, "k2").tolist() == pytest.approx([LN2**2 / 2] * 2)
    assert kl_estimate(d, "k3").tolist() == pytest.approx([LN2 - 0.5, 1 - LN2])
    # The bounds of rho belong to it. The product of an episode's ratios is within exp(-20) and exp(20).
    rho = tensor([[LN2, -LN2, 0.0, 2 * LN2]])
    assert correction_weight(rho, "mask", 0.5, 2.0).tolist() == [pytest.approx([2.0, 0.5, 1.0, 0.0])]
    assert correction_weight(rho, "truncate", 0.5, 2.0).tolist() == [pytest.approx([2.0, 0.5, 1.0, 2.0])]
    wide = [correction_weight(tensor([row]), "sequence_mask", 0.0, 1e9).item() for row in ([30.0, 9.0], [-30.0, -9.0])]
    assert wide == pytest.approx([math.exp(20.0), math.exp(-20.0)], rel=1e-9)
    # An episode without a token counts nothing, and one that has one counts as one of three.
    values, mask = tensor([[4.0, 2.0], [3.0, 0.0], [0.0, 0.0]]), torch.tensor([[1, 1], [1, 0], [0, 0]])
    found = {kind: aggregate(values, mask, kind, constant=4.0).item() for kind in ("token", "sequence", "constant")}  # type: ignore[arg-type]
    assert found == {"token": 3.0, "sequence": 3.0, "constant": 9 / 4 / 2}
    assert aggregate(values, mask, "sequence", normalizer=tensor([4.0])).item() == 1.5
