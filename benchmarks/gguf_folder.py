"""Converts a Llama in the format GGUF to a folder in Hugging Face's: weights, config, tokenizer and chat template.

GGUF is llama.cpp's format. Its package `gguf` reads it, and turns quantised weights into numbers. What quantising lost
stays lost: a folder from 4-bit weights is another model than the one that was quantised.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from forge_env.core.errors import UserError

CONTROL = 3  # the type of tokens that no text becomes
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
}  # fmt: skip
"""The last part of a tensor's name, there and here."""


def convert(source: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the folder of a model; it is there whole or not at all.

    Args:
        source: the .gguf file.
        folder: that does not exist yet.
        dtype: of the weights.

    Raises:
        UserError: the file has another architecture than Llama, or another tokenizer than SmolLM's.
    """
    from gguf import GGUFReader

    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for name, supported in (("general.architecture", "llama"), ("tokenizer.ggml.pre", "smollm")):
        if fields.get(name) != supported:
            raise UserError(f"{source} has {name} {fields.get(name)!r}: only {supported!r} is converted")
    weights = weights_of(reader.tensors, fields, dtype)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    tokenizer_of(fields).save(str(partial / "tokenizer.json"))
    tokens = fields["tokenizer.ggml.tokens"]
    special = {f"{name}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]] for name, key in SPECIAL.items()}
    texts = {
        "config.json": config_of(fields, dtype, is_tied="lm_head.weight" not in weights),
        "generation_config.json": special_ids(fields),
        # The class that takes tokenizer.json as it is.
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **special,
            "model_max_length": fields["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": fields["tokenizer.chat_template"],
        },
    }
    for name, values in texts.items():
        (partial / name).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    partial.rename(folder)


SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Hugging Face's names of special tokens, and GGUF's."""


def special_ids(fields: dict[str, Any]) -> dict[str, int]:
    """The ids that a config of Hugging Face names."""
    return {f"{name}_token_id": fields[f"tokenizer.ggml.{SPECIAL[name]}_token_id"] for name in ("bos", "eos", "pad")}


def weights_of(tensors: Any, fields: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All weights by their names in Hugging Face's format."""
    from gguf import dequantize

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in tensors:
        *block, part = tensor.name.removesuffix(".weight").split(".")
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if part in heads:
            values = unpermute(values, heads[part])
        layer = f"model.layers.{block[1]}." if block else ""
        weights[f"{layer}{NAMES[part]}.weight"] = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    return weights


def unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in Hugging Face's order.

    The rotary embedding turns pairs of rows. In llama.cpp a pair's rows are neighbours, and in transformers the first
    rows of all pairs of a head come before the second ones.

    Args:
        values: (heads * rows of a head, width).
        heads: of this projection.
    """
    pairs = values.reshape(heads, -1, 2, values.shape[-1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def config_of(fields: dict[str, Any], dtype: torch.dtype, *, is_tied: bool) -> dict[str, Any]:
    """config.json."""
    of: Callable[[str], Any] = lambda name: fields[f"llama.{name}"]  # noqa: E731
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "head_dim": of("rope.dimension_count"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"),  # 1e-05, which float32 does not hold
        "rope_theta": float(of("rope.freq_base")),
        "tie_word_embeddings": is_tied,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **special_ids(fields),
    }


def tokenizer_of(fields: dict[str, Any]) -> Tokenizer:
    """The byte-level BPE of SmolLM: every digit is a token of its own."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == CONTROL
    ]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
