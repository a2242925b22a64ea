#!/bin/sh
# LoRA on the feed-forward layers (gate_proj, up_proj, down_proj) of models with routed experts and a shared one.
# Packages: peft 0.21.2, transformers 5.19.0, torch 2.13.0. Guess: as with a dense model, each linear layer of these names gets an
# adapter; the routed experts, which transformers 5 keeps as one tensor, get one too or are refused; a folder loads what it holds.
# Seen: for GLM-4.5, DeepSeek-V3 and Qwen3-Next the names are turned into parameters of the routed experts, and nothing else: the
# shared expert and the dense layers have no adapter. For Qwen3.5's experts it is the other way round. The same folder, with
# adapters for the dense layers and shared experts as other trainers write them, loads without effect: not one of its tensors is
# used, with whole paths as targets too. The warnings speak of other names: of keys that are missing, and of a rank_pattern that
# PEFT itself has set and calls ignored, though it holds.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check peft==0.21.2 transformers==5.19.0 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - "$folder" <<'EOP'
import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

assert version("peft") == "0.21.2" and version("transformers") == "5.19.0"
FOLDER, NAMES = Path(sys.argv[1]), ["gate_proj", "up_proj", "down_proj"]
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "num_experts_per_tok": 2, "initializer_range": 0.2}
GROUPS = {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
QWEN = {"num_experts": 4, "shared_expert_intermediate_size": 16, "layer_types": ["full_attention"] * 2}


def model(kind):
    sizes = {"Glm4Moe": GROUPS, "DeepseekV3": GROUPS | LATENT}.get(kind, QWEN)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**SIZES, **sizes))


def linears(module):
    layers = module.named_modules()
    return {name: layer for name, layer in layers if isinstance(layer, torch.nn.Linear) and name.endswith(tuple(NAMES))}


for kind, routed in (("Glm4Moe", True), ("DeepseekV3", True), ("Qwen3Next", True), ("Qwen3_5MoeText", False)):
    plain = linears(model(kind))
    with_lora = get_peft_model(model(kind), LoraConfig(r=4, target_modules=NAMES))
    names = [name for name, weight in with_lora.named_parameters() if weight.requires_grad]
    on_linears = sum(any(f".{linear}.lora_A" in name for name in names) for linear in plain)
    on_experts = sum(".experts." in name and "lora_A" in name for name in names)
    print(f"{kind}: adapters on {on_linears} of {len(plain)} linear layers, and on {on_experts} tensors of routed experts")
    assert len(plain) == 6 and (on_linears, on_experts > 0) == ((0, True) if routed else (6, False))

base = model("Glm4Moe")
weights = {}
for name, layer in linears(base).items():
    weights[f"base_model.model.{name}.lora_A.weight"] = torch.randn(4, layer.in_features)
    weights[f"base_model.model.{name}.lora_B.weight"] = torch.randn(layer.out_features, 4)
save_file(weights, FOLDER / "adapter_model.safetensors")
ids = torch.arange(10)[None]
before = base(ids).logits
for targets in (NAMES, sorted(linears(base))):
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 4, "target_modules": targets}
    (FOLDER / "adapter_config.json").write_text(json.dumps(config))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = PeftModel.from_pretrained(model("Glm4Moe"), FOLDER)
    change = float((loaded(ids).logits - before).abs().max())
    print(f"{len(weights)} tensors loaded, targets {targets[:2]}...: the logits change by {change}")
    print(*(f"    {str(warning.message)[:150]}" for warning in caught), sep="\n")
    assert change == 0.0
EOP
