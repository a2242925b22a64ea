"""Adapters: they alone are trained, on any number of ranks, and what is exported and read is what was trained."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoModelForCausalLM

from agents.generator.adapter_folder import CONFIG, WEIGHTS
from forge_env.core.errors import UserError
from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.test_trainer import SETTINGS as TRAINING
from tests.trainers.titan.test_trainer import compare_with_one, make_models, make_samples, reference_logprobs, run_cases
from tests.trainers.titan.weights import weights_of
from trainers.lora import Lora
from trainers.losses import SFTLoss
from trainers.titan.trainer import TitanTrainer

LORA = Lora(rank=4, alpha=8.0)
COMMON: dict[str, Any] = {"lora": LORA, "learning_rate": 1e-2}
SETTINGS = dataclasses.replace(TRAINING, **COMMON)
FEW = Lora(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "down_proj"))
FAMILIES = {"qwen3": True, "llama-3": False, "llama-3.2": True, "qwen2.5": True}  # whether the embedding is tied
Make = Callable[..., TitanTrainer]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: make_folder(root / family, family, tied=tied) for family, tied in FAMILIES.items()}


def train(trainer: TitanTrainer, steps: int = 3) -> list[float]:
    return [trainer.train_step(make_samples(4, seed=step), SFTLoss())["loss"] for step in range(steps)]


def parameters(trainer: TitanTrainer, *, adapters: bool) -> dict[str, Tensor]:
    named = trainer.model.module.named_parameters()
    return {name: value.detach().clone() for name, value in named if ("lora_" in name) == adapters}


def same(ours: Any, theirs: Any) -> bool:
    return all((a == b).all() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_of_an_adapter_is_the_trained_model(
    folders: dict[str, Path], make: Make, tmp_path: Path, family: str
) -> None:
    """By PEFT's names and formula, transformers' own model gives the trainer's logprobs; so does the merged folder."""
    trainer = make(folders[family])
    before = trainer.logprobs(make_samples())
    train(trainer)
    after = trainer.logprobs(make_samples())
    assert max(abs(a - b).max() for a, b in zip(before, after, strict=True) if len(a)) > 0.01
    trainer.export_adapter(tmp_path / "adapter", base="owner/base")
    trainer.export_hf(tmp_path / "merged")
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8.0, "owner/base")
    by_hand = AutoModelForCausalLM.from_pretrained(folders[family])
    halves = load_file(tmp_path / "adapter" / WEIGHTS)
    names = {name.removesuffix(".lora_A.weight") for name in halves if name.endswith(".lora_A.weight")}
    assert len(names) == 2 * len(LORA.targets) and len(halves) == 2 * len(names)
    for name in names:
        weight = by_hand.get_parameter(name.removeprefix("base_model.model.") + ".weight")
        weight.data += 8 / 4 * halves[f"{name}.lora_B.weight"] @ halves[f"{name}.lora_A.weight"]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    for sample, values in zip(make_samples(), after, strict=True):
        assert reference_logprobs(by_hand, sample) == pytest.approx(values, abs=1e-5)
        assert reference_logprobs(merged, sample) == pytest.approx(values, abs=1e-5)
    again = make(folders[family], lora=dataclasses.replace(LORA, adapter=str(tmp_path / "adapter")))
    assert same(again.logprobs(make_samples()), after)


@pytest.mark.parametrize(("dtype", "lora"), [("float32", LORA), ("bfloat16", FEW)], ids=["all", "few"])
def test_only_adapters_are_trained_and_kept(
    folders: dict[str, Path], make: Make, tmp_path: Path, dtype: str, lora: Lora
) -> None:
    """Gradients, moments and checkpoints are of adapters, in float32; the base does not change by a bit."""
    trainer = make(folders["qwen3"], dtype=dtype, lora=lora)
    base, start = parameters(trainer, adapters=False), trainer.logprobs(make_samples())
    untrained = make(folders["qwen3"], dtype=dtype, lora=None, learning_rate=1e-12)
    if dtype == "float32":  # an adapter that adds 0; FSDP computes as one process does
        assert same(start, untrained.logprobs(make_samples()))
    train(trainer)
    assert same(parameters(trainer, adapters=False).values(), base.values())
    assert {value.dtype for value in base.values()} == {getattr(torch, dtype)}
    adapters = parameters(trainer, adapters=True)
    assert {value.dtype for value in adapters.values()} == {torch.float32}
    assert len(adapters) == 2 * 2 * len(lora.targets)
    states = [state for optimizer in trainer._optimizer for state in optimizer.state.values()]
    assert sum(state["exp_avg"].numel() for state in states) == sum(value.numel() for value in adapters.values())
    assert same(trainer.reference_logprobs(make_samples()), start), "the base, and bit by bit"
    now = trainer.logprobs(make_samples())
    assert not same(now, start)
    trainer.save(tmp_path / "checkpoint", 3, {"n": 3})
    (state,) = (tmp_path / "checkpoint" / "state").iterdir()
    saved = FileSystemReader(state).read_metadata().state_dict_metadata
    assert adapters.keys() <= saved.keys() and not base.keys() & saved.keys()
    moments = {name for name in saved if "exp_avg" in name}
    assert moments and all("lora_" in name for name in moments)
    expected = train(trainer)
    resumed = make(folders["qwen3"], dtype=dtype, lora=lora)
    assert resumed.load(tmp_path / "checkpoint") == {"n": 3}
    assert same(resumed.logprobs(make_samples()), now)
    assert train(resumed) == expected


def test_an_engine_is_given_weights_merged_in_float32(folders: dict[str, Path], make: Make) -> None:
    """Rounded once: an adapter too small for one bfloat16 addition after the other still counts in their sum."""
    trainer = make(folders["qwen3"])
    before = weights_of(trainer)
    train(trainer)
    exact, rounded = weights_of(trainer), weights_of(trainer, torch.bfloat16)
    assert exact.keys() == before.keys() == rounded.keys()
    changed = {name for name in exact if not torch.equal(exact[name], before[name])}
    assert {name.split(".")[-2] for name in changed} == set(LORA.targets)
    assert all(torch.equal(rounded[name], exact[name].bfloat16()) for name in exact)


def test_the_reference_has_the_weights_of_the_start(folders: dict[str, Path], make: Make, tmp_path: Path) -> None:
    trainer = make(folders["qwen3"])
    base = trainer.logprobs(make_samples())
    train(trainer)
    warm = trainer.logprobs(make_samples())
    assert same(trainer.reference_logprobs(make_samples()), base)
    trainer.keep_reference(tmp_path / "reference")  # after a warm-up
    train(trainer)
    now = trainer.logprobs(make_samples())
    assert same(trainer.reference_logprobs(make_samples()), warm)
    assert same(trainer.logprobs(make_samples()), now), "the adapters in training are back"
    resumed = make(folders["qwen3"])
    resumed.keep_reference(tmp_path / "reference", is_written=True)
    assert same(resumed.reference_logprobs(make_samples()), warm)
    assert same(resumed.logprobs(make_samples()), base)
    started = make(folders["qwen3"], lora=dataclasses.replace(LORA, adapter=str(tmp_path / "reference")))
    train(started)
    assert same(started.reference_logprobs(make_samples()), warm)


def test_initial_values_depend_on_the_seed_alone(folders: dict[str, Path], make: Make) -> None:
    one, two, other = (parameters(make(folders["qwen3"], seed=seed), adapters=True) for seed in (0, 0, 1))
    assert same(one.values(), two.values()) and not same(one.values(), other.values())
    of_a = [value for name, value in one.items() if ".lora_a." in name]
    assert len({tuple(value.flatten()[:4].tolist()) for value in of_a}) == len(of_a), "no two are alike"
    assert all(value.abs().max() <= value.shape[1] ** -0.5 for value in of_a)


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_checkpoint": "full"},
        {"activation_checkpoint": "selective", "pack_length": 128},
        {"fp32_head": True},
    ],
    ids=str,
)
def test_how_it_is_computed_does_not_matter(folders: dict[str, Path], make: Make, changes: dict[str, Any]) -> None:
    dtype = "bfloat16" if "fp32_head" in changes else "float32"
    usual, trainer = make(folders["qwen3"], dtype=dtype), make(folders["qwen3"], dtype=dtype, **changes)
    expected = train(usual)
    assert expected[-1] < expected[0]
    assert train(trainer) == pytest.approx(expected, abs=1e-2 if dtype == "bfloat16" else 1e-5)
    before = make(folders["qwen3"], dtype=dtype, **changes).logprobs(make_samples())
    assert same(trainer.reference_logprobs(make_samples()), before)


CASES = {
    "fsdp": ("untied", {"data_parallel_shard_degree": 2}),
    "tp": ("tied", {"tensor_parallel_degree": 2}),
    "replicas": ("tied", {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1}),
}


@pytest.mark.slow  # the quick test of adapters on two ranks is in test_checkpoint_model.py
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_take_the_steps_of_one(tmp_path: Path, make: Make, case: str) -> None:
    """Losses, logprobs, the merged folder, and a checkpoint that one process goes on from."""
    kind, changes = CASES[case]
    ranks = run_cases(make_models(tmp_path), {case: (kind, COMMON | changes)})
    compare_with_one(ranks / kind, ranks / case, make)


@pytest.fixture
def adapter(folders: dict[str, Path], make: Make, tmp_path: Path) -> Path:
    make(folders["qwen3"], lora=FEW).export_adapter(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_of_other_targets_or_another_model_is_refused(
    folders: dict[str, Path], make: Make, adapter: Path, tmp_path: Path
) -> None:
    started = dataclasses.replace(LORA, adapter=str(adapter))
    with pytest.raises(UserError, match=r"lacks base_model.*gate_proj.*set lora.targets to the target_modules"):
        make(folders["qwen3"], lora=started)
    halves = load_file(adapter / WEIGHTS)
    other = shutil.copytree(adapter, tmp_path / "other")
    save_file({name: value[..., :1].contiguous() for name, value in halves.items()}, other / WEIGHTS)
    with pytest.raises(UserError, match="is not of this model.*shape"):
        make(folders["qwen3"], lora=dataclasses.replace(FEW, adapter=str(other)))


def test_a_checkpoint_of_other_adapters_is_refused(folders: dict[str, Path], make: Make, tmp_path: Path) -> None:
    make(folders["qwen3"]).save(tmp_path / "checkpoint", 0, {})
    with pytest.raises(UserError, match="was saved with the adapters .*give the lora settings"):
        make(folders["qwen3"], lora=FEW).load(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"optimizer_state": "8bit"}, "not kept in 8 bits"), ({"cpu_offload": True}, "stay on the GPU")],
)
def test_settings_that_do_not_work_with_adapters_are_refused(
    folders: dict[str, Path], make: Make, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(UserError, match=match):
        make(folders["qwen3"], **changes)


def test_a_trainer_of_all_weights_has_no_adapter(folders: dict[str, Path], make: Make, tmp_path: Path) -> None:
    trainer = make(folders["qwen3"], lora=None)
    for call in (lambda: trainer.reference_logprobs([]), lambda: trainer.export_adapter(tmp_path)):
        with pytest.raises(UserError, match="has no adapters"):
            call()
