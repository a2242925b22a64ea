"""Settings of the trainer that meet: HSDP, context and tensor parallelism, checkpointing, split episodes, an fp32 head,
compiled blocks.

Each combination takes the steps of one process. Moments of 8 bits are in test_optimizer.py.

Settings of which one needs a GPU are combined in tests/gpu/test_sharding_gpu.py and test_two_gpus.py.
"""

from __future__ import annotations

import dataclasses
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from torch import Tensor

from tests.helpers.forks import run_ranks
from tests.trainers.titan.test_context import PACKED, SETTINGS, take_steps
from tests.trainers.titan.test_trainer import make_model, make_samples
from tests.trainers.titan.weights import check_same, weights_of
from trainers.batching.empty import empty_batch
from trainers.losses import GRPOLoss, GSPOLoss
from trainers.titan.parallel import init_process_group
from trainers.titan.trainer import TitanTrainer

WORLD = 4
SPLIT = {"max_tokens_per_micro_batch": 48}
HSDP_CP = {"data_parallel_replicate_degree": 2, "context_parallel_degree": 2}
QUICK: dict[str, tuple[str, dict[str, Any]]] = {
    "hsdp, cp, split, full": ("untied", {**HSDP_CP, **SPLIT, "activation_checkpoint": "full"}),
}
SLOW: dict[str, tuple[str, dict[str, Any]]] = {
    "cp, tp, split, selective": (
        "tied",
        {"context_parallel_degree": 2, "tensor_parallel_degree": 2, **SPLIT, "activation_checkpoint": "selective"},
    ),
    "hsdp, cp, tied, always": ("tied", {**HSDP_CP, "reshard_after_forward": "always"}),
    "hsdp, cp, packed, selective": ("untied", {**HSDP_CP, **PACKED, "activation_checkpoint": "selective"}),
    "hsdp, tp, split, selective": (
        "untied",
        {
            "data_parallel_replicate_degree": 2,
            "tensor_parallel_degree": 2,
            **SPLIT,
            "activation_checkpoint": "selective",
        },
    ),
    "hsdp, tied, packed, always": (
        "tied",
        {"data_parallel_replicate_degree": 2, **PACKED, "reshard_after_forward": "always"},
    ),
    "replicas, split, never": (
        "untied",
        {"data_parallel_replicate_degree": 4, **SPLIT, "reshard_after_forward": "never"},
    ),
    "cp, split, selective": ("untied", {"context_parallel_degree": 4, **SPLIT, "activation_checkpoint": "selective"}),
    "cp, split, full": ("tied", {"context_parallel_degree": 4, **SPLIT, "activation_checkpoint": "full"}),
    "cp, fsdp, split, full, never": (
        "untied",
        {"context_parallel_degree": 2, **SPLIT, "activation_checkpoint": "full", "reshard_after_forward": "never"},
    ),
}  # fmt: skip
FP32_HEAD = {"dtype": "bfloat16", "fp32_head": True}
QUICK_FP32: dict[str, tuple[str, dict[str, Any]]] = {"fp32 head, hsdp, cp": ("untied", {**HSDP_CP, **SPLIT})}
SLOW_FP32: dict[str, tuple[str, dict[str, Any]]] = {
    "fp32 head, cp, tied": ("tied", {"context_parallel_degree": 4, "reshard_after_forward": "always"}),
    "fp32 head, cp, tp": ("untied", {"context_parallel_degree": 2, "tensor_parallel_degree": 2, **SPLIT}),
    "fp32 head, tp, fsdp, tied, full": ("tied", {"tensor_parallel_degree": 2, "activation_checkpoint": "full"}),
}

COMPILED: dict[str, tuple[str, dict[str, Any]]] = {  # of two ranks; packed sequences have one length to compile for
    "compile, cp": ("untied", {"context_parallel_degree": 2, "compile": True, **PACKED}),
    "compile, tp": ("tied", {"tensor_parallel_degree": 2, "compile": True, **PACKED}),
    "compile, hsdp": ("untied", {"data_parallel_replicate_degree": 2, "compile": True, **PACKED}),
}


def take_two_steps(trainer: TitanTrainer) -> dict[str, Any]:
    """What is compared where rounding to bfloat16 depends on the order of the sums."""
    samples = make_samples(7)
    before = [values.tolist() for values in trainer.logprobs(samples)]
    metrics = [
        trainer.train_step(samples, GRPOLoss(aggregation="token", entropy_coef=0.1)),
        trainer.train_step(samples, GSPOLoss()),
    ]
    part = trainer.model.context.local(empty_batch(4 * WORLD))
    with torch.no_grad():
        dtype = trainer.model.logits(part.tokens, part.positions, part.selected).dtype
    return {"metrics": metrics, "logprobs": before, "weights": weights_of(trainer), "dtype": dtype}


def be_a_rank(root: Path, names: list[str]) -> None:
    init_process_group()
    rank = torch.distributed.get_rank()
    for name in names:
        kind, changes = {**QUICK, **SLOW, **QUICK_FP32, **SLOW_FP32, **COMPILED}[name]
        wide = name in QUICK_FP32 or name in SLOW_FP32
        torch.compiler.reset()  # all trainers of this process have one limit of compilations
        settings = dataclasses.replace(SETTINGS, **(FP32_HEAD if wide else {}) | changes)
        result = (take_two_steps if wide else take_steps)(TitanTrainer(root / kind, settings))
        torch.save(result, root / f"{name} {rank}.pt")
    torch.distributed.destroy_process_group()


def run(root: Path, names: list[str], *, world: int = WORLD) -> Path:
    for kind in ("untied", "tied"):
        make_model(root / kind, tied=kind == "tied")
    run_ranks(be_a_rank, root, names, world=world, seconds=540)
    return root


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("combinations"), [*QUICK, *QUICK_FP32])


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("more-combinations"), [*SLOW, *SLOW_FP32])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("compiled-combinations"), list(COMPILED), world=2)


def compare(root: Path, name: str, kind: str, make: Any, *, world: int = WORLD) -> None:
    alone = take_steps(make(root / kind))
    for rank in range(world):
        check_same(torch.load(root / f"{name} {rank}.pt"), alone, rank=rank)


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([values[name].flatten() for name in sorted(values)])


def compare_fp32_head(root: Path, name: str, kind: str, make: Any) -> None:
    """Nearly the steps of one process, and no rank computes logits in bfloat16."""
    start = flat(weights_of(make(root / kind)))
    alone = take_two_steps(make(root / kind, **FP32_HEAD))
    moved = (flat(alone["weights"]) - start).norm()
    logprobs = torch.tensor(list(chain(*alone["logprobs"])))
    for rank in range(WORLD):
        found = torch.load(root / f"{name} {rank}.pt")
        assert found["dtype"] == torch.float32
        assert (torch.tensor(list(chain(*found["logprobs"]))) - logprobs).abs().mean() < 0.012
        for step, expected in zip(found["metrics"], alone["metrics"], strict=True):
            assert step["loss"] == pytest.approx(expected["loss"], abs=0.005)
            assert step["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.02)
            assert [step[unit] for unit in ("tokens", "episodes")] == [
                expected[unit] for unit in ("tokens", "episodes")
            ]
        if rank == 0:
            assert (flat(found["weights"]) - flat(alone["weights"])).norm() < 0.06 * moved


@pytest.mark.parametrize("name", QUICK)
def test_a_combination_takes_the_steps_of_one_process(quick: Path, make: Any, name: str) -> None:
    compare(quick, name, QUICK[name][0], make)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SLOW)
def test_more_combinations_take_the_steps_of_one_process(slow: Path, make: Any, name: str) -> None:
    compare(slow, name, SLOW[name][0], make)


@pytest.mark.parametrize("name", QUICK_FP32)
def test_an_fp32_head_on_several_ranks_takes_the_steps_of_one(quick: Path, make: Any, name: str) -> None:
    compare_fp32_head(quick, name, QUICK_FP32[name][0], make)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SLOW_FP32)
def test_an_fp32_head_in_more_combinations(slow: Path, make: Any, name: str) -> None:
    compare_fp32_head(slow, name, SLOW_FP32[name][0], make)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_blocks_on_several_ranks_take_the_steps_of_one_process(compiled: Path, make: Any, name: str) -> None:
    compare(compiled, name, COMPILED[name][0], make, world=2)


def find_inputs_of_blocks(root: Path) -> None:
    """Leave behind what each block is given where the blocks are to be compiled; the compiler is switched off."""
    init_process_group()
    kinds: list[str] = []
    with torch.compiler.set_stance("force_eager"):
        trainer = TitanTrainer(root / "tied", dataclasses.replace(SETTINGS, tensor_parallel_degree=2, compile=True))
        for block in trainer.model.module.layers.values():
            block.register_forward_pre_hook(lambda _, inputs: kinds.append(type(inputs[0]._local_tensor).__name__))
        logprobs = [values.tolist() for values in trainer.logprobs(make_samples(7))]
    torch.save({"kinds": kinds, "logprobs": logprobs}, root / f"inputs {torch.distributed.get_rank()}.pt")
    torch.distributed.destroy_process_group()


def test_blocks_that_share_compiled_code_are_given_tensors_of_one_kind(tmp_path: Path, make: Any) -> None:
    """Of tensor parallelism, whose embedding returns a tensor that is still on its way."""
    alone = make(make_model(tmp_path / "tied", tied=True)).logprobs(make_samples(7))
    run_ranks(find_inputs_of_blocks, tmp_path, world=2, seconds=240)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"inputs {rank}.pt")
        assert set(found["kinds"]) == {"Tensor"}
        for ours, expected in zip(found["logprobs"], alone, strict=True):
            assert ours == pytest.approx(expected, abs=1e-4)
