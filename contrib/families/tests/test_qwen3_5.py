"""Qwen3.5: its two kinds of layers, its experts, folders as they are published, and what is refused.

test_models.py compares it with transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("torchtitan")
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, Qwen3_5Config

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from agents.model_folder import check_engine_packages, has_linear_attention
from contrib.families.delta_rule import PackedRows, delta_rule
from contrib.families.qwen3_5 import Qwen35
from contrib.families.tests.folders import FAMILIES, HYBRID, make_folder
from forge_env.core.errors import UserError
from tests.helpers.family_proof import SETTINGS, random_row, transformers_logprobs, two_steps_of_grpo, with_tokenizer
from tests.helpers.model_folders import change_weights, make_model_folder
from tests.trainers.titan.folders import SIZES
from tests.trainers.titan.weights import weights_of
from trainers.families.table import family_of, read_config
from trainers.grpo import GRPO, Config
from trainers.lora import Lora
from trainers.setup.checks.model_checks import check_folder
from trainers.setup.describe import describe_plan
from trainers.setup.options.read_config import read_config as read_options
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan
from trainers.setup.sizing.engine import check_engine
from trainers.titan.trainer import TitanSettings, TitanTrainer

Make = Callable[..., TitanTrainer]
VISION = {"depth": 1, "num_heads": 2, "num_position_embeddings": 16, "out_hidden_size": 64}
VISION |= {"hidden_size": 32, "intermediate_size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "hybrid", "qwen3.5", tied=True)


@pytest.fixture(scope="module")
def with_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "experts", "qwen3.5-moe", tied=False)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vision, as it is published."""
    folder = tmp_path_factory.mktemp("models") / "seeing"
    text = {**SIZES, **HYBRID, "rope_parameters": dict(HYBRID["rope_parameters"]), "tie_word_embeddings": True}
    marks = {f"{name}_token_id": 90 + place for place, name in enumerate(("image", "video", "vision_start"))}
    config = Qwen3_5Config(text_config=text, vision_config=VISION, tie_word_embeddings=True, **marks)
    torch.manual_seed(1)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    return folder


# -- the delta rule ----------------------------------------------------------------------------------------------


def token_by_token(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor) -> Tensor:
    """The rule's definition for one row and one head, in float64."""
    memory, outputs = torch.zeros(key.shape[-1], value.shape[-1], dtype=torch.float64), []
    for q, k, v, g, b in zip(*(part.double() for part in (query, key, value, decay, rate)), strict=True):
        q, k = (part / (part @ part + 1e-6).sqrt() for part in (q, k))
        memory = memory * g.exp()
        memory = memory + torch.outer(k, b * (v - memory.T @ k))
        outputs.append(memory.T @ q / math.sqrt(len(q)))
    return torch.stack(outputs)


def rows_of(*lengths: int) -> PackedRows:
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return PackedRows.of(torch.zeros_like(positions), positions)


@pytest.mark.parametrize("lengths", [(1, 2, 63), (64, 65, 130), (70, 70)])
def test_the_rule_is_its_definition_and_each_row_begins_empty(lengths: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    size, heads = sum(lengths), 4
    query, key = (torch.randn(size, heads // 2, 8, generator=generator) for _ in range(2))
    value = torch.randn(size, heads, 6, generator=generator)
    decay, rate = -torch.rand(size, heads, generator=generator), torch.rand(size, heads, generator=generator)
    found = delta_rule(query, key, value, decay, rate, rows_of(*lengths))
    for head in range(heads):
        parts = (query[:, head // 2], key[:, head // 2], value[:, head], decay[:, head], rate[:, head])
        rows = zip(*(part.split(lengths) for part in parts), strict=True)
        expected = torch.cat([token_by_token(*row) for row in rows])
        torch.testing.assert_close(found[:, head].double(), expected, atol=1e-5, rtol=0)


def test_a_strong_decay_forgets_without_overflow() -> None:
    ones = torch.ones(200, 1, 4)
    decay = torch.full((200, 1), -50.0).requires_grad_()
    found = delta_rule(ones, ones, ones, decay, torch.full((200, 1), 0.5), rows_of(200))
    found.sum().backward()
    torch.testing.assert_close(found, torch.full_like(found, 0.25), atol=1e-5, rtol=0)
    assert decay.grad is not None and decay.grad.isfinite().all()


def test_rows_begin_where_positions_do_and_with_each_sequence() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    rows = PackedRows.of(tokens, None)
    assert rows.borders.tolist() == [0, 5, 10] and rows.place.tolist() == [0, 1, 2, 3, 4] * 2
    rows = PackedRows.of(tokens, torch.tensor([[0, 1, 0, 1, 2], [3, 4, 5, 0, 1]]))
    assert rows.borders.tolist() == [0, 2, 5, 8, 10]
    assert rows.place.tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 0, 1]
    assert rows.chunks.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert rows_of(64, 130, 1).chunks.tolist() == [[0, 0], [1, 0], [1, 1], [1, 2], [2, 0]]


# -- folders -----------------------------------------------------------------------------------------------------


def test_a_folder_with_vision_is_refused_and_says_how_its_text_is_taken_out(
    seeing: Path, tmp_path: Path, make: Make
) -> None:
    with pytest.raises(UserError, match=r"Qwen3_5ForConditionalGeneration, which also reads images.*save_pretrained"):
        read_config(seeing)
    AutoModelForCausalLM.from_pretrained(seeing).save_pretrained(tmp_path / "text")
    names = load_file(tmp_path / "text" / "model.safetensors").keys()
    assert all(name.startswith("model.language_model.") for name in names), "transformers keeps the names"
    trainer, ids = make(tmp_path / "text"), random_row(tmp_path / "text", 40)
    ours = trainer.score(ids)
    trainer.export_hf(tmp_path / "out")
    assert weights_of(trainer).keys() == load_file(tmp_path / "out" / "model.safetensors").keys()
    for folder in ("text", "out"):
        np.testing.assert_allclose(ours, transformers_logprobs(tmp_path / folder, ids), atol=3e-5)


def published(folder: Path, out: Path) -> Path:
    """A folder with the names, the stacks of experts and the weights of further tokens of published ones."""
    weights = load_file(folder / "model.safetensors")
    stacks = dict[str, list[Tensor]]()
    for name in [name for name in weights if ".mlp.experts." in name]:
        layer, _, matrix = name.partition(".mlp.experts.")
        number, _, matrix = matrix.partition(".")
        if matrix == "gate_proj.weight":
            both = [weights.pop(f"{layer}.mlp.experts.{number}.{part}_proj.weight") for part in ("gate", "up")]
            stacks.setdefault(f"{layer}.mlp.experts.gate_up_proj", []).append(torch.cat(both))
        elif matrix == "down_proj.weight":
            stacks.setdefault(f"{layer}.mlp.experts.down_proj", []).append(weights.pop(name))
    weights |= {name: torch.stack(parts) for name, parts in stacks.items()}
    weights = {name.replace("model.", "model.language_model."): weight for name, weight in weights.items()}
    weights |= {"mtp.fc.weight": torch.ones(64, 128), "mtp.layers.0.mlp.experts.gate_up_proj": torch.ones(8, 64, 64)}
    out.mkdir()
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    mtp = {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    (out / "config.json").write_text(json.dumps(config | mtp))
    return out


@pytest.mark.parametrize("name", ["folder", "with_experts"])
def test_a_published_folder_is_read_and_an_export_promises_no_further_tokens(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, make: Make
) -> None:
    plain = request.getfixturevalue(name)
    trainer = make(published(plain, tmp_path / "published"))
    read = weights_of(trainer)
    trainer.export_hf(tmp_path / "out")
    ids = random_row(plain, 40)
    ours = trainer.score(ids)
    expected = load_file(plain / "model.safetensors")
    assert read.keys() == expected.keys() and all(torch.equal(read[name], expected[name]) for name in read)
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == expected.keys()
    assert not [name for name in json.loads((tmp_path / "out" / "config.json").read_text()) if "mtp" in name]
    for where in ("published", "out"):
        np.testing.assert_allclose(ours, transformers_logprobs(tmp_path / where, ids), atol=3e-5)


def test_a_stack_of_other_sizes_is_refused(with_experts: Path, tmp_path: Path) -> None:
    odd = published(with_experts, tmp_path / "odd")
    change_weights(odd, model__language_model__layers__1__mlp__experts__gate_up_proj=torch.ones(8, 65, 64))
    with pytest.raises(UserError, match=r"weight model\.layers\.1\.mlp\.experts"):
        TitanTrainer(odd, SETTINGS)


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("with_experts", {"norm_topk_prob": False}, "norm_topk_prob False instead of True"),
        ("with_experts", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size = 0"),
        ("with_experts", {"num_experts_per_tok": 9}, "num_experts_per_tok=9.* cannot be more than num_experts=8"),
        ("with_experts", {"mlp_only_layers": [1]}, r"mlp_only_layers \[1\]"),
        ("folder", {"attn_output_gate": False}, "attn_output_gate False instead of True"),
        ("folder", {"layer_scale": True}, "layer_scale True instead of False"),
        (
            "folder",
            {"layer_types": ["linear_attention"] * 3},
            "layer_types .* of one full_attention or linear_attention",
        ),
        ("folder", {"layer_types": ["full_attention"] * 2}, "layer_types"),
        ("folder", {"layer_types": ["full_attention", "linear_attention", "sliding_attention"]}, "sliding_attention"),
        ("folder", {"linear_num_key_heads": 3}, "key_heads=3, which must divide linear_num_value_heads=4"),
        ("folder", {"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim = 0"),
        ("folder", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.1}}, "factor 0.1 of heads"),
        ("folder", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 2.0}}, "rotary_factor 2.0"),
        ("folder", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.01}}, "rotary_factor 0.01"),
        ("folder", {"rope_parameters": "yarn"}, "rope_parameters 'yarn', which is no object"),
        ("folder", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
    ],
)
def test_what_is_not_computed_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, changes: dict[str, Any], match: str
) -> None:
    config = json.loads((request.getfixturevalue(name) / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=match):
        read_config(tmp_path)


@pytest.mark.parametrize(("name", "billions"), [("qwen3.5", None), ("qwen3.5-moe", 34.7)])
def test_what_a_config_leaves_out_is_as_transformers_has_it(name: str, billions: float | None) -> None:
    kind, _ = FAMILIES[name]
    full = kind().to_dict()
    family, left_out = (
        family_of(full),
        {name: full[name] for name in SIZES if name in full} | {"model_type": full["model_type"]},
    )
    assert isinstance(family, Qwen35)
    del left_out["rope_parameters"]
    assert family.layer_types(left_out) == full["layer_types"]
    assert family.rope(left_out)["partial_rotary_factor"] == full["rope_parameters"]["partial_rotary_factor"]
    assert family.shape(left_out) == family.shape(full)
    assert family.weights(left_out) == family.weights(full)
    assert family.shape(full).parameters == sum(map(math.prod, family.weights(full).values()))
    if billions:  # transformers' own values are those of Qwen3.5-35B-A3B
        assert family.shape(full).parameters == pytest.approx(billions * 1e9, rel=2e-3)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"tensor_parallel_degree": 2}, "tensor_parallel_degree is 2, .*linear attention.*set it to 1"),
        ({"context_parallel_degree": 2}, "context_parallel_degree is 2, .*linear attention"),
        ({"lora": Lora(rank=4)}, "lora.rank is 4, .*linear attention"),
    ],
)
def test_settings_that_it_has_not_are_refused(folder: Path, settings: dict[str, Any], match: str) -> None:
    config = read_config(folder)
    with pytest.raises(UserError, match=match):
        TitanSettings(**settings).check_model(family_of(config).shape(config))


# -- runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path, tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunPlan]:
    """Makes plans of runs on a CPU, of models with other sizes."""
    monkeypatch.setattr("trainers.setup.checks.model_checks.check_engine_packages", lambda folder: None)

    def plan(**changes: int) -> RunPlan:
        config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 4096} | changes
        model = make_model_folder(tmp_path / "model", tiny_model, **config)
        options = ["--env=math", f"--model={model}", "--trainer.with_gpus=false", "--generator.with_gpus=false"]
        return make_plan(read_options(Config, options), GRPO)

    return plan


def test_an_engine_on_a_cpu_computes_in_bfloat16(plan: Callable[..., RunPlan]) -> None:
    made = plan(linear_key_head_dim=64, linear_value_head_dim=64)
    check_engine(made)
    assert made.engine_dtype == "bfloat16" == made.engine.dtype == made.precision
    assert made.trainer_dtype == "float32"
    assert made.model.folder is not None and has_linear_attention(made.model.folder)


def test_the_plan_says_what_of_a_folder_is_left_out(plan: Callable[..., RunPlan]) -> None:
    made = plan(linear_key_head_dim=64, linear_value_head_dim=64)
    assert made.model.folder is not None and "left out" not in dict(describe_plan(made))["model"]
    weights = load_file(made.model.folder / "model.safetensors")
    save_file(weights | {"mtp.fc.weight": torch.ones(2)}, made.model.folder / "model.safetensors")
    again = check_folder(made, made.model.folder)
    assert "1 mtp.* weights, which guess further tokens" in dict(describe_plan(replace(made, model=again)))["model"]


def test_an_engine_on_a_cpu_has_kernels_for_some_sizes(plan: Callable[..., RunPlan]) -> None:
    with pytest.raises(UserError, match="linear_key_head_dim 16 and linear_value_head_dim 24.* heads of 64 or 128"):
        check_engine(plan())


def test_a_package_that_vllm_needs_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    monkeypatch.setattr("agents.model_folder.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="torchvision is not installed, and vLLM needs it"):
        check_engine_packages(folder)
    check_engine_packages(tiny_model)


HEADS = {"linear_key_head_dim": 64, "linear_value_head_dim": 64, "head_dim": 64, "hidden_size": 128}
"""Sizes that vLLM has kernels for on a CPU."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe"])
async def test_the_engine_follows_the_trainer_as_closely_as_bfloat16_does(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torchvision")
    folder = make_folder(tmp_path / "plain", name, tied=True, **HEADS)
    folder, ids = published(folder, tmp_path / "model"), random_row(folder, 120)
    engine = VLLMEngine(str(folder), EngineSettings(max_model_len=121, max_requests=4, dtype="bfloat16"))
    await engine.start()
    try:
        trainer, rounded = TitanTrainer(folder, SETTINGS), TitanTrainer(folder, TitanSettings(dtype="bfloat16"))
        exact = np.asarray(trainer.score(ids))
        noise = np.abs(np.asarray(rounded.score(ids)) - exact).mean()
        assert np.abs(np.asarray(await engine.score(ids, "prompt")) - exact).mean() < 2 * noise
        with torch.no_grad():
            for parameter in trainer.model.module.parameters():
                parameter.mul_(1.3)
        moved = np.asarray(trainer.score(ids))
        apart = np.abs(moved - exact).mean()
        assert apart > 3 * noise
        with trainer.model.weights.stream(torch.float32) as tensors:
            await engine.update_weights(1, {name: tensor.clone() for name, tensor in tensors})
        assert np.abs(np.asarray(await engine.score(ids, "swap")) - moved).mean() < apart / 3
        rounded.close()
        trainer.close()
    finally:
        await engine.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe"])
def test_two_steps_of_grpo_train_it(tmp_path: Path, tiny_model: Path, name: str) -> None:
    pytest.importorskip("torchvision")
    vocabulary = Tokenizer.from_file(str(tiny_model / "tokenizer.json")).get_vocab_size()
    sizes = {"vocab_size": vocabulary, "max_position_embeddings": 4096}
    folder = make_folder(tmp_path / "model", name, tied=True, **HEADS, **sizes)
    # Transformers gives the form with experts a tokenizer of its own, whatever class the folder names.
    AutoTokenizer.from_pretrained(with_tokenizer(folder, tiny_model)).save_pretrained(folder)
    for step in two_steps_of_grpo(folder, tmp_path):
        assert step["mean_abs_logprob_difference"] < 0.05 and step["grad_norm"] > 0
        assert step.get("replay/holes", 0.0) < 0.2 and ("replay/holes" in step) == (name == "qwen3.5-moe")
