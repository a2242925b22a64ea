"""A model that went through GGUF computes what it computed before."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.gguf_folder import NAMES, convert

CONFIG = LlamaConfig(
    vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, rope_theta=1e5, rms_norm_eps=1e-5, tie_word_embeddings=True,
)  # fmt: skip
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def rotary_order(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp stores them: the two halves of a head, row by row in turns."""
    rows = len(values) // heads
    order = [head * rows + half * rows // 2 + i for head in range(heads) for i in range(rows // 2) for half in (0, 1)]
    return values[order]


def write(path: Path, model: LlamaForCausalLM) -> None:
    """A .gguf file of a model; its embeddings have 8 bits, and the model takes their values."""
    writer, config = gguf.GGUFWriter(path, "llama"), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    write_tokenizer(writer)
    theirs = {ours: name for name, ours in NAMES.items()}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.numpy()
        layer, part = "", name.removesuffix(".weight")
        if part.startswith("model.layers."):
            _, _, number, part = part.split(".", 3)
            layer = f"blk.{number}."
        if part == "model.embed_tokens":
            values = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            weight.copy_(torch.from_numpy(gguf.dequantize(values, gguf.GGMLQuantizationType.Q8_0)))
            writer.add_tensor("token_embd.weight", values, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            continue
        if (last := part.rpartition(".")[2]) in heads:
            values = rotary_order(values, heads[last])
        writer.add_tensor(f"{layer}{theirs[part]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Three control tokens, one for every byte, and one merge."""
    from tokenizers.pre_tokenizers import ByteLevel

    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = [*sorted(ByteLevel.alphabet()), "he"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    rest = [f"<unused_{i}>" for i in range(CONFIG.vocab_size - len(control) - len(letters))]
    writer.add_token_list([*control, *letters, *rest])
    writer.add_token_types([3] * len(control) + [1] * len(letters) + [3] * len(rest))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)


@pytest.mark.parametrize("is_tied", [True, False])
@torch.no_grad()
def test_logits_tokens_and_template_are_the_same(tmp_path: Path, is_tied: bool) -> None:
    torch.manual_seed(0)
    config = LlamaConfig.from_dict({**CONFIG.to_dict(), "tie_word_embeddings": is_tied})
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # norms too, which begin as ones
        parameter.copy_(torch.randn_like(parameter) * 0.3)
    write(tmp_path / "tiny.gguf", model)
    convert(tmp_path / "tiny.gguf", tmp_path / "tiny", torch.float32)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.gguf", "tiny"}
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny").eval()
    ids = torch.randint(300, (2, 40))
    assert torch.equal(read(ids).logits, model(ids).logits)
    assert read.config.tie_word_embeddings == is_tied
    assert (read.config.rms_norm_eps, read.config.rope_parameters["rope_theta"]) == (1e-5, 1e5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    assert tokenizer.tokenize("he 12") == ["he", "Ġ", "1", "2"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "he"}]).input_ids[::2] == [1, 2]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
