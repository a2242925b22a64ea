"""Models with experts: several ranks take the steps of one, expert parallelism among them, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file

from forge_env.core.errors import UserError
from tests.helpers.forks import run_ranks
from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.layouts import cases_of
from tests.trainers.titan.test_context import SETTINGS, take_steps
from tests.trainers.titan.test_trainer import make_samples
from tests.trainers.titan.weights import check_same, weights_of
from trainers.families.table import read_shape
from trainers.lora import Lora
from trainers.losses import GRPOLoss
from trainers.titan.experts import WEIGHTS, SameDtypeExperts
from trainers.titan.parallel import init_process_group
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer

OF_FOUR = cases_of("fsdp=4", "tp=2 packed", "hsdp=2 ep=2 selective", "tp=2 ep=4")
"""Experts over two ranks are in test_replay.py, those of fsdp in test_module.py."""
Make = Callable[..., TitanTrainer]


def make_model(folder: Path) -> Path:
    return make_folder(folder, "qwen3-moe", tied=False)


def be_a_rank(root: Path, cases: dict[str, dict[str, Any]]) -> None:
    init_process_group()
    rank = torch.distributed.get_rank()
    for name, changes in cases.items():
        trainer = TitanTrainer(root / "model", dataclasses.replace(SETTINGS, **changes))
        torch.save(take_steps(trainer), root / f"{name} {rank}.pt")
        trainer.save(root / name, 1, {})
        parts = [_held(part) for part in trainer.model.module.modules() if isinstance(part, SameDtypeExperts)]
        torch.save(parts, root / f"{name} {rank} parts.pt")
        trainer.close()
    torch.distributed.destroy_process_group()


def _held(part: SameDtypeExperts) -> list[torch.Size]:
    """What a rank holds of the experts of a layer between two steps."""
    return [getattr(part, name).to_local().shape for name in WEIGHTS]


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("more-experts")
    make_model(root / "model")
    run_ranks(be_a_rank, root, OF_FOUR, world=4, seconds=300)
    return root


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The steps of one process, and its next one."""
    trainer = TitanTrainer(make_model(tmp_path_factory.mktemp("alone") / "model"), SETTINGS)
    yield take_steps(trainer) | {"next": next_step(trainer)}
    trainer.close()


def next_step(trainer: TitanTrainer) -> dict[str, float]:
    return trainer.train_step(make_samples(7, seed=9), GRPOLoss()) | {"seconds": 0}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OF_FOUR)
def test_four_ranks_take_the_steps_of_one(four_ranks: Path, make: Make, alone: dict[str, Any], name: str) -> None:
    """All ranks have the metrics and logprobs of one process, the first its weights; one goes on from their files."""
    for rank in range(4):
        check_same(torch.load(four_ranks / f"{name} {rank}.pt"), alone, rank=rank)
        if name == "hsdp=2 ep=2 selective":
            for gate, down, up in torch.load(four_ranks / f"{name} {rank} parts.pt", weights_only=False):
                assert gate == up == (4, 32, 64) and down == (4, 64, 32), "half of the experts"
    another = make(four_ranks / "model")
    another.load(four_ranks / name)
    assert next_step(another) == pytest.approx(alone["next"], abs=1e-5, rel=1e-4)


def test_experts_and_router_compute_in_the_dtype_of_the_model(make: Make, tmp_path: Path) -> None:
    trainer = make(make_model(tmp_path / "model"), dtype="bfloat16")
    found: list[torch.dtype] = []
    for part in trainer.model.module.modules():
        if isinstance(part, SameDtypeExperts):
            part.register_forward_hook(lambda module, given, output: found.append(output.dtype))
    trainer.train_step(make_samples(2), GRPOLoss())
    assert set(found) == {torch.bfloat16}
    assert not [name for name, _ in trainer.model.module.named_buffers() if "expert_bias" in name]


def test_adapters_of_attention_leave_the_experts_as_they_are(make: Make, tmp_path: Path) -> None:
    lora = Lora(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))
    trainer = make(make_model(tmp_path / "model"), lora=lora)
    before = weights_of(trainer)
    for _ in range(2):  # the first leaves A as it is
        trainer.train_step(make_samples(4), GRPOLoss())
    changed = {
        name.split(".")[-2] for name, value in weights_of(trainer).items() if not torch.equal(value, before[name])
    }
    assert changed == {"q_proj", "v_proj"}


def test_a_degree_that_does_not_divide_the_ranks_is_refused(make: Make, tmp_path: Path) -> None:
    sentence = "degree is 2, which does not divide the number of trainer processes that hold the weights together, 1"
    with pytest.raises(UserError, match=sentence):
        make(make_model(tmp_path / "model"), expert_parallel_degree=2)


@pytest.mark.parametrize(
    ("family", "settings", "match"),
    [
        ("qwen3", {"expert_parallel_degree": 2}, "the model is dense, and has no experts to spread"),
        ("qwen3-moe", {"expert_parallel_degree": 2}, "does not divide the model's experts, 3"),
        ("qwen3-moe", {"tensor_parallel_degree": 2}, "does not divide the model's moe_intermediate_size, 33"),
        ("qwen3-moe", {"lora": Lora(rank=4, alpha=8.0)}, "whose matrices gate_proj, up_proj, down_proj get no adapter"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, family: str, settings: dict[str, Any], match: str
) -> None:
    odd = {"num_experts": 3, "moe_intermediate_size": 33} if family == "qwen3-moe" else {}
    shape = read_shape(make_folder(tmp_path / "model", family, tied=False, **odd))
    with pytest.raises(UserError, match=match):
        TitanSettings(**settings).check_model(shape)


def test_experts_are_exported_one_by_one(tmp_path: Path, make: Make) -> None:
    saved = load_file(make_model(tmp_path / "model") / "model.safetensors")
    assert saved["model.layers.1.mlp.experts.7.down_proj.weight"].shape == (64, 32)
    layout = make(tmp_path / "model").model.weights.layout(torch.float32)
    assert {name: tensor.shape for name, tensor in layout.items()} == {
        name: value.shape for name, value in saved.items()
    }
