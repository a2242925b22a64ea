"""Makes a small Qwen3 in seconds, so that everything runs without a download.

The tokenizer is a BPE trained on the environment's own text, with Qwen3's special tokens and chat template. Every digit
is a token of its own, because copying numbers is what a tiny model learns last. The folder is in Hugging Face format,
and vLLM, TorchTitan and transformers load it as they load Qwen3-1.7B.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agents.renderer.chat_template import QWEN3_TEMPLATE
from agents.renderer.rendering import Renderer
from forge_env.core.types import Message, ToolSpec
from trainers.families.table import families, family_of
from trainers.model.sizes import ModelSize

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
EXPERT_SIZES = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")


def make_tiny_model(
    folder: Path, corpus: Iterable[tuple[Sequence[Message], Sequence[ToolSpec]]], *, seed: int, size: ModelSize
) -> int:
    """Write a Hugging Face folder with a fresh model for conversations, each with its tools; returns its number of
    parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(size, vocab_size=len(SPECIAL_TOKENS) + 256)
    _save_tokenizer(_tokenizer([], vocab_size=0), folder, config)
    # Render the conversations byte by byte, and return the text between the special tokens.
    renderer = Renderer(folder)
    # The end of a generation prompt is a boundary too: no token reaches from it into the answer.
    special = re.compile("|".join(re.escape(token) for token in ("</think>\n\n", *SPECIAL_TOKENS)))
    texts = (renderer.text(messages, tools) for messages, tools in corpus)
    segments = [segment for text in texts for segment in special.split(text) if segment]
    tokenizer = _tokenizer(segments, vocab_size=size.vocab_size)
    config = _config(size, vocab_size=tokenizer.get_vocab_size())
    _save_tokenizer(tokenizer, folder, config)
    weights = _random_weights(config, seed)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(weight.numel() for weight in weights.values())


def _tokenizer(segments: Sequence[str], *, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,  # longer ones would cover whole sentences, and leave the model little to write
        show_progress=False,
    )
    tokenizer.train_from_iterator(segments, trainer)
    return tokenizer


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, config: dict[str, object]) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "chat_template.jinja").write_text(QWEN3_TEMPLATE.read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    ids = {"eos_token_id": tokenizer.token_to_id("<|im_end|>"), "pad_token_id": tokenizer.token_to_id("<|endoftext|>")}
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=2))


def _config(size: ModelSize, *, vocab_size: int) -> dict[str, object]:
    sizes, experts = asdict(size), {}
    if size.num_experts:
        experts = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    else:
        sizes = {name: value for name, value in sizes.items() if name not in EXPERT_SIZES}
    return {
        **sizes,
        **experts,
        "architectures": [families()[size.model_type].architecture],
        "model_type": size.model_type,
        "vocab_size": vocab_size,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
        "use_cache": True,
    }


def _random_weights(config: dict[str, object], seed: int) -> dict[str, torch.Tensor]:
    """Draw every matrix from N(0, 0.02^2), as Qwen3's own initialisation does; norms start at 1."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(*shape, generator=generator) * 0.02
        for name, shape in family_of(config).weights(config).items()
    }
