"""A folder of gpt-oss with experts in MXFP4 becomes one in bfloat16, with the numbers that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from agents.model_folder import weight_files
from agents.model_weights import check_weights, places
from contrib.families.mxfp4 import dequantize, write_bfloat16
from contrib.families.tests.folders import make_folder
from forge_env.core.errors import UserError
from tests.helpers.family_proof import random_row
from trainers.families.table import family_of, read_config
from trainers.model.find import find_shape


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder as OpenAI publishes it."""
    folder = make_folder(tmp_path / "published", "gpt-oss", tied=False)
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            weights[name] = weight.bfloat16()
            continue
        experts, inputs, outputs = weight.shape
        shape = (experts, outputs, inputs // 32)
        weights[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), generator=generator).to(torch.uint8)
        weights[f"{name}_scales"] = torch.randint(120, 126, shape, generator=generator).to(torch.uint8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_every_number_is_the_one_of_transformers() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 1, 16).expand(1, 16, 3, 16).contiguous()
    scales = torch.tensor([1, 127, 250], dtype=torch.uint8).expand(1, 16, 3).contiguous()
    expected = convert_moe_packed_tensors(blocks, scales)  # (1, columns, rows)
    assert torch.equal(dequantize(blocks[0], scales[0]), expected[0].T)


def test_a_plan_takes_it_and_a_trainer_takes_its_copy(published: Path, tmp_path: Path, make: Any) -> None:
    config = read_config(published)
    shapes = {name: place.shape for name, place in places(weight_files(published)).items()}
    check_weights(published, family_of(config).weights(config), shapes)
    found = find_shape(str(published))
    assert found.where.endswith("it has experts in MXFP4, and the run writes a copy in bfloat16")
    with pytest.raises(UserError, match=r"the model has experts in MXFP4.*contrib.families.mxfp4.write_bfloat16"):
        make(published)
    write_bfloat16(published, tmp_path / "copy")
    trainer = make(tmp_path / "copy")
    ids = random_row(published, 100)
    reference = AutoModelForCausalLM.from_pretrained(published, quantization_config=Mxfp4Config(dequantize=True))
    reference = reference.float()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
        ours = trainer.model.logits(torch.tensor([ids]), None, torch.arange(100))
    torch.testing.assert_close(ours, expected, atol=3e-5, rtol=0)
    trainer.export_hf(tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported["dtype"] == "bfloat16" and "quantization_config" not in exported
    assert {weight.dtype for weight in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
