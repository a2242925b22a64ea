"""Models in the shapes of Qwen3, with random weights: speed does not ask what a model knows.

The tokenizer is that of a tiny model. The vocabulary is Qwen3's, so most of what such a model samples has no text.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY = 151_936
SHAPES = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
"""Of Qwen/Qwen3-NAME's config.json; all have 8 key-value heads of 128, and tied embeddings."""


def make_random_model(name: str, tokenizer_of: Path, folder: Path, *, seed: int = 0) -> int:
    """Write a Hugging Face folder; returns the number of parameters.

    Args:
        name: of `SHAPES`.
        tokenizer_of: a tiny model's folder.
        folder: new.
        seed: of the weights.
    """
    shutil.copytree(tokenizer_of, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config |= SHAPES[name] | {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weights = _random_weights(config, seed)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(weight.numel() for weight in weights.values())


def _random_weights(config: dict[str, int], seed: int) -> dict[str, torch.Tensor]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator, device=device) * 0.02).bfloat16().cpu()

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], width), "model.norm.weight": ones(width)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj": matrix(queries, width),
            "self_attn.k_proj": matrix(keys, width),
            "self_attn.v_proj": matrix(keys, width),
            "self_attn.o_proj": matrix(width, queries),
            "self_attn.q_norm": ones(config["head_dim"]),
            "self_attn.k_norm": ones(config["head_dim"]),
            "mlp.gate_proj": matrix(inner, width),
            "mlp.up_proj": matrix(inner, width),
            "mlp.down_proj": matrix(width, inner),
            "input_layernorm": ones(width),
            "post_attention_layernorm": ones(width),
        }
        weights |= {f"model.layers.{i}.{part}.weight": tensor for part, tensor in layer.items()}
    return weights
