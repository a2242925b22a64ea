"""Folders with all that a renderer needs of a model: a chat template, and a tokenizer made here with its marks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from agents.renderer.chat_template import TEMPLATE

_TEMPLATES = Path(__file__).parents[1] / "agents" / "renderer"
QWEN25_TEMPLATE = (_TEMPLATES / "qwen25_chat_template.jinja").read_text()
LLAMA_TEMPLATE = (_TEMPLATES / "llama32_chat_template.jinja").read_text()
QWEN25_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN25_MARKS = ["<tool_call>", "</tool_call>"]
LLAMA_SPECIAL = [
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
]
# How Qwen's tokenizers cut text: digits alone, and line ends together with the punctuation before them.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _trained(tokenizer: Tokenizer, texts: list[str], special: list[str], vocab_size: int) -> Tokenizer:
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_qwen25(folder: Path, *, template: str = QWEN25_TEMPLATE, left_out: str = "") -> Path:
    """A folder with what a renderer needs of a Qwen2.5: its added tokens, and merges across line ends."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    text = f"user\n\nassistant\n\n\n</tool_response>\n<tool_response>\n{QWEN25_TEMPLATE}"
    _trained(tokenizer, [text] * 3, QWEN25_SPECIAL, 700)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in QWEN25_MARKS if t != left_out])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "eos_token_id": ends}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_llama(folder: Path, *, template: str = LLAMA_TEMPLATE, special: list[str] = LLAMA_SPECIAL) -> Path:
    """A folder with what a renderer needs of a Llama 3.2: the tokenizer knows bytes and special tokens."""
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    _trained(tokenizer, [], special, 0)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eot_id|>", "chat_template": template}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    ends = [tokenizer.token_to_id(token) for token in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


def with_template(model: Path, folder: Path, template: Any, **config: Any) -> Path:
    """The model with another chat template: a text, or several by name."""
    shutil.copytree(model, folder)
    (folder / TEMPLATE).unlink()
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template} | config))
    return folder
