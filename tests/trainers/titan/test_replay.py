"""Routing replay: tokens are computed with the experts that they are given, and the step is that of one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("torchtitan")

from forge_env.core.errors import InvariantError
from forge_env.core.routes import Routes
from tests.helpers.forks import run_ranks
from tests.helpers.routed_rows import distinct, random_routes
from tests.trainers.titan.folders import EXPERTS, make_folder
from tests.trainers.titan.layouts import PACKED, cases_of
from tests.trainers.titan.test_context import SETTINGS
from tests.trainers.titan.test_trainer import COUNT, make_samples
from tests.trainers.titan.weights import check_same, weights_of
from trainers.batching.batch import Sample
from trainers.families.family import Experts
from trainers.lora import Lora
from trainers.losses import GRPOLoss, GSPOLoss
from trainers.titan.context import Context, head_tail
from trainers.titan.experts import ReplayedModel, ReplayedMoE, Router, experts_config
from trainers.titan.parallel import init_process_group
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer

SIZES: dict[str, int] = {"layers": 2, "experts": EXPERTS["num_experts"], "active": EXPERTS["num_experts_per_tok"]}
QUICK = "cp=2 ep=2 packed full"
MORE_CASES = cases_of("hsdp=2 ep=2 selective", "tp=2 ep=4 short selective", "cp=2 tp=2")
Make = Callable[..., TitanTrainer]


def routed_samples(count: int, seed: int = 0) -> list[Sample]:
    """Episodes with random experts, which are far from those that a router chooses."""
    rng = np.random.default_rng(seed)
    return [
        dataclasses.replace(sample, rows=tuple(random_routes(row, rng, **SIZES) for row in sample.rows))
        for sample in make_samples(count, seed=seed)
    ]


def take_steps(trainer: TitanTrainer) -> dict[str, Any]:
    samples = routed_samples(COUNT)
    before = trainer.logprobs(samples)
    metrics = [
        trainer.train_step(samples, GRPOLoss(aggregation="token", entropy_coef=0.1), compare_replay=True),
        trainer.train_step(samples, GSPOLoss(clip_low=0.2, clip_high=0.2)),
        trainer.train_step(samples, GSPOLoss(), old_is_present=True),
        trainer.train_step(samples[:1], GRPOLoss()),
    ]
    logprobs = [values.tolist() for values in before + trainer.logprobs(samples)]
    return {"metrics": metrics, "logprobs": logprobs, "weights": weights_of(trainer)}


def be_a_rank(root: Path, cases: dict[str, dict[str, Any]]) -> None:
    init_process_group()
    rank = torch.distributed.get_rank()
    for name, changes in cases.items():
        trainer = TitanTrainer(root / "model", dataclasses.replace(SETTINGS, **changes))
        torch.save(take_steps(trainer), root / f"{name} {rank}.pt")
        trainer.close()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("replay") / "model", "qwen3-moe", tied=False)


@pytest.fixture(scope="module")
def four_ranks(folder: Path) -> Path:
    run_ranks(be_a_rank, folder.parent, MORE_CASES, world=4, seconds=300)
    return folder.parent


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    trainer = TitanTrainer(folder, SETTINGS)
    try:
        return take_steps(trainer)
    finally:
        trainer.close()


# -- one layer ---------------------------------------------------------------------------------------------------


def make_layer(*, normalised: bool) -> ReplayedMoE:
    experts = Experts(count=6, active=3, size=4, normalised=normalised)
    layer = experts_config(8, experts, {"weight": torch.nn.init.normal_, "bias": torch.nn.init.zeros_}).build()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


def plain(layer: ReplayedMoE, x: Tensor, given: Tensor) -> Tensor:
    """The formula, one token and expert at a time."""
    own = layer.routed_experts.inner_experts
    scores = (x @ layer.router.gate.weight.T).softmax(-1)
    ids = torch.where(given >= 0, given, scores.topk(given.shape[-1]).indices)
    outputs = []
    for token, score, chosen in zip(x.flatten(0, 1), scores.flatten(0, 1), ids.flatten(0, 1), strict=True):
        weights = score[chosen]
        if layer.router.route_norm:
            weights = weights / weights.sum()
        parts = [
            weight
            * (
                own.w2_EDF[expert]
                @ (torch.nn.functional.silu(own.w1_EFD[expert] @ token) * (own.w3_EFD[expert] @ token))
            )
            for weight, expert in zip(weights, chosen.tolist(), strict=True)
        ]
        outputs.append(torch.stack(parts).sum(0))
    return torch.stack(outputs).view(x.shape)


@pytest.mark.parametrize("normalised", [True, False])
def test_values_and_gradients_of_given_experts_equal_the_formula(normalised: bool) -> None:
    layer, x = make_layer(normalised=normalised), torch.randn(2, 7, 8, requires_grad=True)
    given = torch.from_numpy(distinct(np.random.default_rng(0), (2, 7), 6, 3).astype(np.int64))
    given[0, 2:4], given[1, 6] = -1, -1
    found = []
    weigh = torch.randn(2, 7, 8)
    for compute in (lambda: layer(x, given), lambda: plain(layer, x, given)):
        output = compute()
        found.append([output, *torch.autograd.grad((output * weigh).sum(), [x, *layer.parameters()])])
    assert any((gradient != 0).any() for gradient in found[0][1:])
    assert (found[0][1 + list(dict(layer.named_parameters())).index("router.gate.weight") + 1] != 0).any()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_only_tokens_with_given_experts_are_counted() -> None:
    layer, x = make_layer(normalised=True), torch.randn(1, 4, 8)
    _, ids, _ = layer.router(x)
    given = ids.flip(-1).clone()
    given[0, 0] = -1
    others = [expert for expert in range(6) if expert not in ids[0, 1].tolist()]
    given[0, 1, 0] = others[0]
    layer(x, given)
    assert layer.router.replay_counts.tolist() == [3, 1]


# -- one model ---------------------------------------------------------------------------------------------------


def own_routes(trainer: TitanTrainer, tokens: Tensor) -> Tensor:
    """(B, L, layers, K): what the routers choose, in another order."""
    chosen: list[Tensor] = []
    routers = [part for part in trainer.model.module.modules() if isinstance(part, Router)]
    hooks = [router.register_forward_hook(lambda _, given, output: chosen.append(output[1])) for router in routers]
    with torch.no_grad():
        trainer.model.logits(tokens, None, torch.arange(1))
    for hook in hooks:
        hook.remove()
    return torch.stack(chosen, 2).flip(-1)


def gradients(trainer: TitanTrainer, tokens: Tensor, routes: Tensor | None) -> list[Tensor]:
    """The logprobs of some targets, and the gradient of each weight by their sum."""
    places = torch.arange(tokens.numel())
    values, _ = trainer.model.logprobs(tokens, None, places, tokens.flatten(), 1.0, routes=routes)
    parameters = list(trainer.model.module.parameters())
    return [values.detach(), *torch.autograd.grad(values.sum(), parameters)]


def test_replay_of_its_own_choice_changes_no_bit(make: Make, folder: Path) -> None:
    trainer, tokens = make(folder), torch.arange(24).view(2, 12)
    routes = own_routes(trainer, tokens)
    without, replayed = (gradients(trainer, tokens, given) for given in (None, routes))
    assert all(torch.equal(*pair) for pair in zip(without, replayed, strict=True))
    assert trainer.model.replay_counts.tolist() == [tokens.numel() * SIZES["layers"], 0]
    none = gradients(trainer, tokens, torch.full_like(routes, -1))
    assert all(torch.equal(*pair) for pair in zip(without, none, strict=True))


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_a_recomputed_block_uses_the_routes_of_its_micro_batch(make: Make, folder: Path, kind: str) -> None:
    """Two passes are in flight: the backward pass of the first one comes after the forward pass of the second."""
    tokens = [torch.arange(24).view(2, 12), torch.arange(30, 54).view(2, 12)]
    rng = np.random.default_rng(0)
    routes = [torch.from_numpy(distinct(rng, (2, 12, 2), 8, 2).astype(np.int16)) for _ in tokens]
    found = []
    for checkpoint in ("none", kind):
        trainer = make(folder, activation_checkpoint=checkpoint)
        places = torch.arange(24)
        sums = [
            trainer.model.logprobs(t, None, places, t.flatten(), 1.0, routes=r)[0].sum()
            for t, r in zip(tokens, routes, strict=True)
        ]
        parameters = list(trainer.model.module.parameters())
        found.append([gradient for value in sums for gradient in torch.autograd.grad(value, parameters)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_each_rank_of_a_sequence_has_the_routes_of_its_tokens() -> None:
    routes = torch.arange(2 * 12 * 3 * 2).view(2, 12, 3, 2)
    order = head_tail(12, 3)
    for rank in range(3):
        assert torch.equal(Context(3, rank).cut(routes), routes[:, order[rank]])


def test_a_step_says_how_far_the_router_is_from_the_routes(make: Make, folder: Path) -> None:
    trainer, samples = make(folder), routed_samples(4)
    plain = [dataclasses.replace(s, rows=tuple(dataclasses.replace(row, routes=()) for row in s.rows)) for s in samples]
    expected = make(folder).train_step(plain, GRPOLoss())
    metrics = trainer.train_step(samples, GRPOLoss(), compare_replay=True)
    assert metrics["replay/difference_without"] == pytest.approx(expected["mean_abs_logprob_difference"], rel=1e-5)
    assert metrics["replay/kl_without"] == pytest.approx(expected["kl"], rel=1e-5)
    assert metrics["mean_abs_logprob_difference"] != pytest.approx(metrics["replay/difference_without"], rel=1e-3)
    assert 0.8 < metrics["replay/experts_differ"] <= 1.0, "2 of 8 experts at random are others 27 times in 28"
    assert 0.0 < metrics["replay/holes"] < 0.2
    assert not [name for name in expected if name.startswith("replay/")]
    again = trainer.train_step(samples, GRPOLoss())
    assert "replay/holes" in again and "replay/kl_without" not in again


def test_without_replay_routes_change_nothing(make: Make, folder: Path) -> None:
    found = [
        make(folder, replay=replay).logprobs(samples)
        for replay, samples in ((False, routed_samples(3)), (True, make_samples(3)))
    ]
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))


def test_the_reference_chooses_its_experts_itself(make: Make, folder: Path) -> None:
    lora = Lora(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))
    expected = make(folder).logprobs(make_samples(3))
    reference = TitanTrainer(folder, TitanSettings(dtype="float32"), is_frozen=True)
    try:
        of_its_own = reference.logprobs(routed_samples(3))
    finally:
        reference.close()
    for found in (of_its_own, make(folder, lora=lora).reference_logprobs(routed_samples(3))):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5)
    replayed = make(folder, lora=lora).logprobs(routed_samples(3))
    assert max(float(np.abs(a - b).max()) for a, b in zip(replayed, expected, strict=True)) > 1e-2


@pytest.mark.parametrize(
    ("experts", "match"),
    [
        (np.zeros((2, 3, 2), dtype=np.uint8), "2 in each of 3 layers, but the model has 8 in each of 2 layers"),
        (np.full((2, 2, 2), 8, dtype=np.uint8), "experts up to 8, .* and 2 of them compute a token"),
    ],
)
def test_routes_of_another_model_are_refused(make: Make, folder: Path, experts: np.ndarray, match: str) -> None:
    (sample,) = make_samples(1)
    routed = dataclasses.replace(sample, rows=(dataclasses.replace(sample.rows[0], routes=(Routes.of(0, experts),)),))
    with pytest.raises(InvariantError, match=match):
        make(folder).logprobs([routed])


def test_a_dense_model_has_no_use_for_routes(make: Make, tmp_path: Path) -> None:
    trainer = make(make_folder(tmp_path / "model", "qwen3", tied=False))
    assert not isinstance(trainer.model.module, ReplayedModel) and trainer.model.experts is None
    found = [trainer.logprobs(samples) for samples in (routed_samples(2), make_samples(2))]
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize(
    "changes",
    [{"activation_checkpoint": "full"}, {**PACKED}, {"max_tokens_per_micro_batch": 48}],
    ids=["full", "packed", "split episodes"],
)
def test_the_step_does_not_depend_on_packing_and_checkpointing(
    make: Make, folder: Path, alone: dict[str, Any], changes: dict[str, Any]
) -> None:
    check_same(take_steps(make(folder, **changes)), alone)


# -- several ranks -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_two_ranks_take_the_steps_of_one(folder: Path, alone: dict[str, Any]) -> None:
    run_ranks(be_a_rank, folder.parent, cases_of(QUICK), world=2, seconds=300)
    for rank in range(2):
        check_same(torch.load(folder.parent / f"{QUICK} {rank}.pt"), alone, rank=rank)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MORE_CASES)
def test_four_ranks_take_the_steps_of_one(four_ranks: Path, alone: dict[str, Any], name: str) -> None:
    check_same(torch.load(four_ranks / f"{name} 0.pt"), alone)
