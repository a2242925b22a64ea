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
from tests.trainers.titan.layouts import WORDS, settings_of
from tests.trainers.titan.test_context import SETTINGS, take_steps
from tests.trainers.titan.test_trainer import make_model, make_samples
from tests.trainers.titan.weights import check_same, weights_of
from trainers.batching.empty import empty_batch
from trainers.losses import GRPOLoss, GSPOLoss
from trainers.titan.parallel import init_process_group
from trainers.titan.trainer import TitanTrainer

WORLD = 4
# The first word of each is its model.
QUICK = "untied hsdp=2 cp=2 split full"
SLOW = (
    "untied hsdp=2 cp=2 split wide",
    "tied cp=2 tp=2 split selective",
    "tied hsdp=2 cp=2 always",
    "untied hsdp=2 cp=2 packed selective",
    "untied hsdp=2 tp=2 split selective",
    "tied hsdp=2 packed always",
    "untied hsdp=4 split never",
    "untied cp=4 split selective",
    "tied cp=4 split full",
    "untied cp=2 split full never",
    "tied cp=4 always wide",
    "untied cp=2 tp=2 split wide",
    "tied tp=2 full wide",
)
COMPILED = ("untied cp=2 compiled", "tied tp=2 compiled", "untied hsdp=2 compiled")
"""Of two ranks; packed sequences have one length to compile for."""


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


def be_a_rank(root: Path, names: tuple[str, ...]) -> None:
    init_process_group()
    rank = torch.distributed.get_rank()
    for name in names:
        kind, _, words = name.partition(" ")
        torch.compiler.reset()  # all trainers of this process have one limit of compilations
        trainer = TitanTrainer(root / kind, dataclasses.replace(SETTINGS, **settings_of(words)))
        torch.save((take_two_steps if "wide" in words else take_steps)(trainer), root / f"{name} {rank}.pt")
    torch.distributed.destroy_process_group()


def run(root: Path, names: tuple[str, ...], *, world: int = WORLD) -> Path:
    for kind in ("untied", "tied"):
        make_model(root / kind, tied=kind == "tied")
    run_ranks(be_a_rank, root, names, world=world, seconds=540)
    return root


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("more-combinations"), SLOW)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("compiled-combinations"), COMPILED, world=2)


def compare(root: Path, name: str, make: Any, *, world: int = WORLD) -> None:
    kind = root / name.partition(" ")[0]
    if "wide" in name:
        compare_fp32_head(root, name, kind, make)
        return
    alone = take_steps(make(kind))
    for rank in range(world):
        check_same(torch.load(root / f"{name} {rank}.pt"), alone, rank=rank)


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([values[name].flatten() for name in sorted(values)])


def compare_fp32_head(root: Path, name: str, kind: Path, make: Any) -> None:
    """Nearly the steps of one process, and no rank computes logits in bfloat16."""
    start = flat(weights_of(make(kind)))
    alone = take_two_steps(make(kind, **WORDS["wide"]))
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


def test_a_combination_takes_the_steps_of_one_process(tmp_path: Path, make: Any) -> None:
    compare(run(tmp_path, (QUICK,)), QUICK, make)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SLOW)
def test_more_combinations_take_the_steps_of_one_process(slow: Path, make: Any, name: str) -> None:
    compare(slow, name, make)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_blocks_on_several_ranks_take_the_steps_of_one_process(compiled: Path, make: Any, name: str) -> None:
    compare(compiled, name, make, world=2)


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
