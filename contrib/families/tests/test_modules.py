"""Transformers' own module as the trainer's model: its steps, its masks, its checkpoints, and what it does not do."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file, save_file

from agents.model_folder import weight_files
from agents.model_weights import places
from contrib.families.tests.folders import MODULES, UNTIED, make_folder
from forge_env.core.errors import UserError
from tests.helpers.forks import run_ranks
from tests.helpers.routed_rows import distinct
from tests.helpers.rows import rows
from tests.trainers.families.test_refusals import check_refusal
from tests.trainers.model.test_model_shape import check_parameters
from tests.trainers.titan.layouts import PACKED
from tests.trainers.titan.test_context import SETTINGS as RANKS
from tests.trainers.titan.test_models import (
    change_config,
    check_blocks,
    check_step,
    logits,
    random_tokens,
    reference_logits,
    some_samples,
)
from tests.trainers.titan.test_replay import be_a_rank, take_steps
from tests.trainers.titan.weights import check_same, weights_of
from trainers.families.table import family_of, known_shapes, read_config, read_shape
from trainers.lora import Lora
from trainers.losses import SFTLoss
from trainers.titan.builder import builder_of
from trainers.titan.trainer import TitanSettings, TitanTrainer

SETTINGS = TitanSettings(dtype="float32", learning_rate=1e-3)
CLOSE = {"atol": 1e-5, "rtol": 0}
LINEAR = {"type": "linear", "factor": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
Make = Callable[..., TitanTrainer]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("modules")
    return {name: make_folder(root / name, name, tied=name not in UNTIED) for name in MODULES}


@pytest.mark.parametrize("name", MODULES)
def test_every_weight_takes_the_step_that_transformers_takes(
    folders: dict[str, Path], make: Make, tmp_path: Path, name: str
) -> None:
    check_step(folders[name], make, tmp_path / "reference")


@pytest.mark.parametrize("mode", ["selective", "attention", "full"])
def test_activation_checkpointing_changes_no_step(
    folders: dict[str, Path], make: Make, tmp_path: Path, mode: str
) -> None:
    kept, again = make(folders["gemma3"]), make(folders["gemma3"], activation_checkpoint=mode)
    again.save(tmp_path / mode, 1, {})
    kept.load(tmp_path / mode)
    steps = [each.train_step(some_samples(), SFTLoss()) | {"seconds": 0} for each in (kept, again)]
    assert steps[0] == steps[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_blocks_take_the_same_step(folders: dict[str, Path], make: Make) -> None:
    compiled, plain = (make(folders["gemma3"], compile=compile, eps=1e-3) for compile in (True, False))
    for _ in range(2):
        ours, expected = (trainer.train_step(some_samples(), SFTLoss()) for trainer in (compiled, plain))
        assert ours | {"seconds": 0} == pytest.approx(expected | {"seconds": 0}, abs=1e-4)


def test_bfloat16_with_a_float32_head_goes_on_from_a_checkpoint(
    folders: dict[str, Path], make: Make, tmp_path: Path
) -> None:
    wide = {"dtype": "bfloat16", "fp32_head": True}
    trainer, plain = make(folders["gemma3"], **wide), make(folders["gemma3"])
    losses = [each.train_step(some_samples(), SFTLoss())["loss"] for each in (trainer, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=3e-2)
    trainer.save(tmp_path / "one", 1, {})
    expected = trainer.train_step(some_samples(), SFTLoss()) | {"seconds": 0}
    other = make(folders["gemma3"], **wide)
    other.load(tmp_path / "one")
    assert other.train_step(some_samples(), SFTLoss()) | {"seconds": 0} == expected


def test_a_reference_in_bfloat16_is_near(folders: dict[str, Path], make: Make) -> None:
    frozen = TitanTrainer(folders["gemma3"], dataclasses.replace(SETTINGS, dtype="bfloat16"), is_frozen=True)
    try:
        assert {weight.dtype for weight in frozen.model.module.parameters()} == {torch.bfloat16}
        found = frozen.logprobs(some_samples())
    finally:
        frozen.close()
    for ours, expected in zip(found, make(folders["gemma3"]).logprobs(some_samples()), strict=True):
        assert ours == pytest.approx(expected, abs=0.2)


def test_the_kernel_of_a_gpu_has_the_same_masks(folders: dict[str, Path], make: Make) -> None:
    config = read_config(folders["gemma3"])
    builder = builder_of(config)(config, attention="varlen", fuse_qkv=True)
    assert (builder.attention, builder.windows) == ("flex", [24, None])
    model = make(folders["gemma3"]).model
    for window in builder.windows:
        check_blocks(model, window)


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("gemma3", {"rope_theta": 5000.0, "rope_local_base_freq": 500.0, "rope_scaling": LINEAR}),
        ("olmo3", {"rope_theta": 500000.0, "rope_scaling": YARN}),
    ],
)
def test_published_folders_have_other_names(
    folders: dict[str, Path], make: Make, tmp_path: Path, name: str, old: dict[str, Any]
) -> None:
    """Of rope settings and of windows; and the type of a model says whether its head is tied."""
    folder = make_folder(tmp_path / name, name, tied=name == "gemma3")
    absent = {"rope_parameters": ..., "layer_types": ..., "tie_word_embeddings": ...}
    pattern = {"sliding_window_pattern": 2} if name == "gemma3" else {}
    change_config(folder, **absent, **old, **pattern)
    windows = builder_of(read_config(folder))(read_config(folder), attention="sdpa", fuse_qkv=False).windows
    assert windows == [24, None]
    tokens = random_tokens()
    expected = reference_logits(folder, tokens)
    assert (expected - reference_logits(folders[name], tokens)).abs().max() > 0.1
    torch.testing.assert_close(logits(make(folder), tokens), expected, **CLOSE)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"tensor_parallel_degree": 2}, "parallelism.tensor_parallel_degree is 2.*transformers' own.*set it to 1"),
        ({"context_parallel_degree": 2}, "parallelism.context_parallel_degree is 2.*set it to 1"),
        ({"expert_parallel_degree": 2}, "expert_parallel_degree is 2, and the model is dense"),
        ({"lora": Lora(rank=4)}, "lora.rank is 4.*set it to 0"),
        ({"attention": "varlen"}, "attention is varlen.*flex or sdpa"),
    ],
)
def test_settings_of_other_models_are_refused(folders: dict[str, Path], settings: dict[str, Any], match: str) -> None:
    config = read_config(folders["smollm3"])
    shape = builder_of(config)(config, attention="sdpa", fuse_qkv=False).family.shape(config)
    TitanSettings().check_model(shape)
    with pytest.raises(UserError, match=match):
        TitanSettings(**settings).check_model(shape)


def test_experts_are_not_spread(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="expert_parallel_degree is 2.*transformers' own.*set it to 1"):
        TitanSettings(expert_parallel_degree=2).check_model(read_shape(folders["glm4-moe"]))


@pytest.mark.parametrize("kind", ["none", "full"])
def test_a_layer_computes_with_the_experts_of_its_micro_batch(folders: dict[str, Path], make: Make, kind: str) -> None:
    """Two passes are in flight, as in test_replay.py; without given experts nothing changes."""
    tokens = [torch.arange(24).view(2, 12), torch.arange(30, 54).view(2, 12)]
    rng, places = np.random.default_rng(0), torch.arange(24)
    routes = [torch.from_numpy(distinct(rng, (2, 12, 3), 12, 3).astype(np.int16)) for _ in tokens]

    def gradients(trainer: TitanTrainer, given: list[Any]) -> list[torch.Tensor]:
        sums = [
            trainer.model.logprobs(t, None, places, t.flatten(), 1.0, routes=r)[0].sum()
            for t, r in zip(tokens, given, strict=True)
        ]
        parameters = list(trainer.model.module.parameters())
        return [each for value in sums for each in torch.autograd.grad(value, parameters)]

    trainer = make(folders["glm4-moe"], activation_checkpoint=kind)
    alone = [
        gradient
        for t, r in zip(tokens, routes, strict=True)
        for gradient in torch.autograd.grad(
            trainer.model.logprobs(t, None, places, t.flatten(), 1.0, routes=r)[0].sum(),
            list(trainer.model.module.parameters()),
        )
    ]
    assert 0 < trainer.model.replay_counts[1] <= trainer.model.replay_counts[0] == 2 * 24, "two layers have experts"
    assert all(map(torch.equal, gradients(trainer, routes), alone))
    none = gradients(trainer, [torch.full_like(each, -1) for each in routes])
    own = gradients(trainer, [None, None])
    assert all(map(torch.equal, none, own)) and not all(map(torch.equal, own, alone))


@pytest.mark.slow  # the quick one is in test_replay.py
def test_two_ranks_with_experts_take_the_steps_of_one(make: Make, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "n_routed_experts": 8, "num_experts_per_tok": 2}
    folder = make_folder(tmp_path / "model", "glm4-moe", tied=False, **sizes)
    case = {**PACKED, "activation_checkpoint": "full"}
    run_ranks(be_a_rank, tmp_path, {"fsdp": case}, world=2, seconds=300)
    alone = take_steps(TitanTrainer(folder, RANKS))
    for rank in range(2):
        check_same(torch.load(tmp_path / f"fsdp {rank}.pt"), alone, rank=rank)


def test_layers_that_predict_further_tokens_are_left_out(folders: dict[str, Path], make: Make, tmp_path: Path) -> None:
    folder = shutil.copytree(folders["glm4-moe"], tmp_path / "model")
    saved, beyond = load_file(folder / "model.safetensors"), "model.layers.3.eh_proj.weight"
    more = {beyond: torch.zeros(64, 128), "model.layers.3.mlp.gate.weight": torch.zeros(12, 64)}
    save_file(saved | more, folder / "model.safetensors")
    assert weights_of(make(folder)).keys() == saved.keys()
    save_file(saved | {"model.layers.3.mlp.gate.weight": torch.zeros(12, 64)}, folder / "model.safetensors")
    with pytest.raises(UserError, match="superfluous weight model.layers.3.mlp.gate.weight"):
        make(folder)


def test_a_folder_that_says_nothing_of_its_head_ties_it(folders: dict[str, Path], tmp_path: Path) -> None:
    config = json.loads((folders["smollm3"] / "config.json").read_text())
    del config["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(tmp_path)["tie_word_embeddings"] is True


def test_the_plan_knows_every_tensor(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        config = read_config(folder)
        held = {name: place.shape for name, place in places(weight_files(folder)).items()}
        assert family_of(config).weights(config) == held


@pytest.mark.parametrize(("name", "changes", "match"), rows(__file__, "refusals.tsv"))
def test_what_cannot_be_trained_is_refused_with_a_sentence(
    folders: dict[str, Path], tmp_path: Path, name: str, changes: str, match: str
) -> None:
    check_refusal(tmp_path, (folders[name] / "config.json").read_text(), changes, match)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("google/gemma-3-270m-it", 268_098_176),
        ("google/gemma-3-1b-it", 999_885_952),
        ("allenai/Olmo-3-7B-Instruct", 7_298_011_136),
        ("HuggingFaceTB/SmolLM3-3B", 3_075_098_624),
        ("zai-org/GLM-4.5-Air", 106_852_245_504),
    ],
)
def test_known_models_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert known_shapes()[name].parameters == parameters


@pytest.mark.parametrize(
    ("kind", "tied"), [*product(["gemma3_text", "olmo3", "smollm3"], [True, False]), ("glm4_moe", False)]
)
def test_parameters_are_those_that_transformers_makes(tmp_path: Path, kind: str, tied: bool) -> None:
    experts = {"n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 2}
    check_parameters(tmp_path, kind, **(experts if kind == "glm4_moe" else {}), tie_word_embeddings=tied)
