"""The sizes of a model from its config.json: parameters as published, and as the tiny model has them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from forge_env.core.errors import UserError
from trainers.families.table import known_shapes, read_shape
from trainers.model.find import find_shape, made_shape

SIZES = {
    "max_position_embeddings": 1024,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
EXPERTS: dict[str, dict[str, int]] = {
    "qwen3_moe": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-1.7B", 1_720_574_976),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-14B", 14_768_307_200),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
    ],
)
def test_known_models_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert known_shapes()[name].parameters == parameters


@pytest.mark.parametrize(("kind", "tied"), product(["qwen3", "qwen2", "llama", "qwen3_moe"], [True, False]))
def test_parameters_are_those_that_transformers_makes(tmp_path: Path, kind: str, tied: bool) -> None:
    check_parameters(tmp_path, kind, **EXPERTS.get(kind, {}), tie_word_embeddings=tied)


def check_parameters(folder: Path, kind: str, **changes: Any) -> None:
    """The plan counts the parameters of a model as transformers has them."""
    config = AutoConfig.for_model(kind, **SIZES, **changes, pad_token_id=None)
    config.save_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config)
    assert read_shape(folder).parameters == sum(parameter.numel() for parameter in model.parameters())


def test_active_parameters_count_the_active_experts_only() -> None:
    shape = known_shapes()["Qwen/Qwen3-30B-A3B"]
    one = 3 * shape.hidden_size * shape.moe_intermediate_size
    assert shape.expert_parameters == 128 * one
    assert shape.layer_parameters - shape.active_layer_parameters == 120 * one
    active = shape.parameters - shape.num_hidden_layers * 120 * one
    assert round(active / 1e9, 2) == 3.35  # published as 3.3 billion


@pytest.mark.parametrize("spelling", ["num_experts", "num_local_experts"])
def test_the_number_of_experts_is_read_under_either_name(tmp_path: Path, spelling: str) -> None:
    experts = {spelling: 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **experts, "model_type": "qwen3_moe"}))
    shape = read_shape(tmp_path)
    assert (shape.num_experts, shape.num_experts_per_tok, shape.mlp_size) == (5, 2, 96)


def test_without_a_path_the_model_is_the_tiny_one() -> None:
    model = find_shape("")
    assert model.shape == made_shape("tiny") and "tiny" in model.where and not model.missing


def test_a_hub_id_that_is_not_here_has_no_sizes_but_a_known_one_has() -> None:
    model = find_shape("nobody/No-Such-Model")
    assert model.shape is None and "nobody/No-Such-Model" in model.missing


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama", "head_dim": 32}))
    shape = read_shape(tmp_path)
    assert (shape.query_size, shape.key_value_size) == (128, 64)
    with pytest.raises(UserError, match="holds no tokenizer.json"):
        find_shape(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "words"),
    [("/no/such", "no model folder /no/such"), ("name", "no model folder name"), ("a/b c", "neither a folder nor")],
)
def test_a_path_without_a_model_is_refused(path: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find_shape(path)


@pytest.mark.parametrize("text", ["[1]", "{", "{}", json.dumps({**SIZES, "vocab_size": "many"})])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match="config.json"):
        read_shape(tmp_path)
