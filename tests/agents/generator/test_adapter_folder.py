"""An adapter's folder in PEFT's format: what is read of it, and a sentence for every mistake."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agents.generator.adapter_folder import CONFIG, WEIGHTS, open_adapter
from forge_env.core.errors import UserError
from forge_env.registry.agent_spec import AgentSettings, open_agent
from tests.helpers.rows import rows

PLAIN = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The weights of a model, in two files."""
    folder = tmp_path / "model"
    folder.mkdir()
    places = {f"model.layers.{number}.self_attn.q_proj.weight": f"model-{number}.safetensors" for number in range(2)}
    for name, file in places.items():
        save_file({name: torch.zeros(6, 4)}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def write(folder: Path, halves: Mapping[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    whole = {f"{LAYER}.lora_A.weight": torch.ones(2, 4), f"{LAYER}.lora_B.weight": torch.ones(6, 2)}
    save_file(dict(whole if halves is None else halves), folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(PLAIN | changes))
    return folder


def test_an_adapter_is_read_with_its_scaling(model: Path, tmp_path: Path) -> None:
    folder = open_adapter(write(tmp_path / "adapter"), model)
    assert (folder.rank, set(folder.scalings.values())) == (2, {3.0})
    tensors = folder.tensors()
    assert torch.equal(tensors[f"{LAYER}.lora_A.weight"], torch.ones(2, 4))
    assert torch.equal(tensors[f"{LAYER}.lora_B.weight"], torch.full((6, 2), 3.0))


def test_an_adapter_with_a_nan_is_refused(model: Path, tmp_path: Path) -> None:
    halves = {f"{LAYER}.lora_A.weight": torch.full((2, 4), math.nan), f"{LAYER}.lora_B.weight": torch.ones(6, 2)}
    with pytest.raises(UserError, match=r"not finite in .*q_proj.lora_A.weight"):
        open_adapter(write(tmp_path / "adapter", halves), model).tensors()


def test_what_peft_writes_of_a_plain_adapter_is_taken(model: Path, tmp_path: Path) -> None:
    written = {
        "alora_invocation_tokens": None, "alpha_pattern": {}, "auto_mapping": None, "bias": "none", "lora_bias": False,
        "corda_config": None, "ensure_weight_tying": False, "eva_config": None, "exclude_modules": None,
        "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "layer_replication": None,
        "layers_pattern": None, "layers_to_transform": [0], "loftq_config": {}, "lora_dropout": 0.05,
        "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None, "peft_version": "0.21.2",
        "qalora_group_size": 16, "rank_pattern": {}, "revision": None, "target_parameters": None,
        "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_dora": False, "use_qalora": False,
        "use_rslora": False, "use_bdlora": None, "kasa_config": None, "velora_config": None,
    }  # fmt: skip
    for init in (True, False, None, "gaussian", "eva", "orthogonal", "lora_ga"):
        assert open_adapter(write(tmp_path / "adapter", **written | {"init_lora_weights": init}), model).rank == 2


@pytest.mark.parametrize(
    ("changes", "ranks", "scalings"),
    [
        ({"use_rslora": True}, (2, 2), (6 / math.sqrt(2),) * 2),
        ({"alpha_pattern": {"1.self_attn.q_proj": 8}}, (2, 2), (3.0, 4.0)),
        ({"alpha_pattern": {r"layers\.\d+\.self_attn\.q_proj": 8, "q_proj": 1}}, (2, 2), (4.0, 4.0)),
        ({"alpha_pattern": {"roj": 8}}, (2, 2), (3.0, 3.0)),
        ({"rank_pattern": {"layers.1.self_attn.q_proj": 3}}, (2, 3), (3.0, 2.0)),
        (
            {"rank_pattern": {"layers.0.*": 1}, "alpha_pattern": {"q_proj": 5}, "use_rslora": True},
            (1, 2),
            (5.0, 5 / math.sqrt(2)),
        ),
    ],
)
def test_scales_and_ranks_of_layers_are_pefts(
    model: Path, tmp_path: Path, changes: dict[str, Any], ranks: tuple[int, ...], scalings: tuple[float, ...]
) -> None:
    halves = {}
    for number, rank in enumerate(ranks):
        layer = LAYER.replace("0", str(number))
        halves |= {f"{layer}.lora_A.weight": torch.rand(rank, 4), f"{layer}.lora_B.weight": torch.rand(6, rank)}
    adapter = open_adapter(write(tmp_path / "adapter", halves, **changes), model)
    tensors = adapter.tensors()
    assert adapter.rank == max(ranks)
    for number, scaling in enumerate(scalings):
        a, b = (f"{LAYER.replace('0', str(number))}.lora_{half}.weight" for half in "AB")
        assert tensors[a].shape == (max(ranks), 4) and tensors[b].shape == (6, max(ranks))
        torch.testing.assert_close(tensors[b] @ tensors[a], scaling * halves[b] @ halves[a])


@pytest.mark.parametrize(("changes", "match"), rows(__file__, "refused_adapters.tsv"))
def test_an_adapter_that_the_engine_does_not_take_is_refused(
    model: Path, tmp_path: Path, changes: str, match: str
) -> None:
    with pytest.raises(UserError, match=match):
        open_adapter(write(tmp_path / "adapter", **json.loads(changes)), model)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (
            "layers.0",
            "layers.2",
            "an adapter of model.layers.2.self_attn.q_proj.weight, which the model .* does not have; the nearest is "
            r"model.layers.\d.self_attn.q_proj.weight",
        ),
        ("q_proj", "qkv_proj", "and the engine computes adapters of q_proj, k_proj, .* only"),
        ("self_attn", "mlp.experts.3", "computes adapters of"),
        ("lora_", "lora_embedding_", "computes adapters of"),
        ("0.self_attn.q_proj.lora_B", "1.self_attn.q_proj.lora_B", "lacks .*, the other half of"),
    ],
)
def test_a_matrix_that_the_model_lacks_is_refused(model: Path, tmp_path: Path, old: str, new: str, match: str) -> None:
    halves = load_file(write(tmp_path / "adapter") / WEIGHTS)
    renamed = {name.replace(old, new): half for name, half in halves.items()}
    with pytest.raises(UserError, match=match):
        open_adapter(write(tmp_path / "adapter", renamed), model)


def test_a_folder_that_is_no_adapter_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--adapter is .*nowhere, which is no folder: name one in PEFT's format"):
        open_adapter(tmp_path / "nowhere", model)
    with pytest.raises(UserError, match="is no PEFT folder: it has no adapter_config.json"):
        open_adapter(model, model)
    with pytest.raises(UserError, match="adapter_model.safetensors is empty"):
        open_adapter(write(tmp_path / "adapter", {}), model)
    (tmp_path / "adapter" / WEIGHTS).write_bytes(b"half a file")
    with pytest.raises(UserError, match="is damaged: .*copy it again"):
        open_adapter(tmp_path / "adapter", model)


@pytest.mark.parametrize("kind", ["vllm", "checkpoint"])
async def test_it_is_checked_before_the_engine_starts(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "model").symlink_to(tiny_model)
    settings = replace(AgentSettings(env="math"), adapter=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere, which is no folder"):
        async with open_agent(f"{kind}:{tiny_model if kind == 'vllm' else tmp_path}", settings):
            pass
