"""Models in the shapes of `SHAPES`, with random weights: speed does not ask what a model knows.

    python -m benchmarks.gpu.models FOLDER [--shape 8B] [--layers 0] [--positions 40960]

The tokenizer is that of a tiny model. The vocabulary is Qwen3's, so most of what such a model samples has no text.
Weights are made on the GPU, where there is one, and written one by one: no more than one is in the host's memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.families.table import family_of
from trainers.titan.weight_files import write_folder

VOCABULARY = 151_936
SHAPES: dict[str, dict[str, Any]] = {
    "135M": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49_152,
        "rope_theta": 100_000.0,
    },
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "14B": {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "tie_word_embeddings": False,
    },
    "30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "head_dim": 64,
        "vocab_size": 201_088,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
    },
    "qwen3.5-2B": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 248_320,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "attn_output_gate": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
    },
    "gemma3-1B": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 262_144,
        "sliding_window": 512,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 10_000.0,
    },
    "olmo3-7B": {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 100_278,
        "sliding_window": 4096,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
        "tie_word_embeddings": False,
    },
    "smollm3-3B": {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 128_256,
        "rope_theta": 5_000_000.0,
    },
    "qwen3.5-35b-a3b": {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 248_320,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "attn_output_gate": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": False,
    },
    "glm4.5-air": {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "hidden_size": 4096,
        "intermediate_size": 10_944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "use_qk_norm": False,
        "vocab_size": 151_552,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "moe_intermediate_size": 1408,
        "tie_word_embeddings": False,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 1024,
    },
}
SHAPES["tiny-moe"] = SHAPES["30B-A3B"] | SHAPES["tiny"] | {"num_experts": 8, "num_experts_per_tok": 2}
SHAPES["tiny-llama"] = SHAPES["135M"] | SHAPES["tiny"]
SHAPES["tiny-moe"]["moe_intermediate_size"] = 32
"""Of Qwen/Qwen3-NAME's config.json, but for the tiny ones and SmolLM2's 135M; unless said otherwise, all have 8
key-value heads of 128, and tied embeddings."""


def make_random_model(
    name: str, tokenizer_of: Path, folder: Path, *, layers: int = 0, seed: int = 0, positions: int = 40_960
) -> int:
    """Write a Hugging Face folder; returns the number of parameters.

    Args:
        name: of `SHAPES`.
        tokenizer_of: a tiny model's folder.
        folder: new.
        layers: of the model; 0 is as many as the shape has.
        seed: of the weights.
        positions: tokens of a row at most.
    """
    shutil.copytree(tokenizer_of, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": positions,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    config |= SHAPES[name] | ({"num_hidden_layers": layers} if layers else {})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    shapes = family_of(config).weights(config)
    layout = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in shapes.items()}
    write_folder(folder, layout, _random_weights(shapes, seed))
    return sum(tensor.numel() for tensor in layout.values())


def _random_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> Iterator[tuple[str, Tensor]]:
    """Normal numbers of a small standard deviation, and norms of ones."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            yield name, torch.ones(shape, dtype=torch.bfloat16)
        else:
            yield name, (torch.randn(shape, generator=generator, device=device) * 0.02).bfloat16()


def make_tokenizer(folder: Path) -> Path:
    """A tiny model's folder, for its tokenizer."""
    from forge_env.rollout.factory import make
    from trainers.model.sizes import ModelSize
    from trainers.model.tiny_model import make_tiny_model

    env = make("math").make()
    make_tiny_model(folder, [([{"role": "user", "content": "12 + 30?"}], env.tools)], seed=0, size=ModelSize())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", default="8B", choices=list(SHAPES))
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--positions", type=int, default=40_960)
    given = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temp:
        tokenizer = make_tokenizer(Path(temp) / "tokenizer")
        sizes = {"layers": given.layers, "positions": given.positions}
        parameters = make_random_model(given.shape, tokenizer, given.folder, **sizes)
    seconds = time.perf_counter() - started
    print(json.dumps({"parameters": parameters, "gb": 2 * parameters / 1e9, "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main()
