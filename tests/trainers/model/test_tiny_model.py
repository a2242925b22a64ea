"""The tiny model's folder is one that transformers loads, with a tokenizer that fits the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from envs.math import Math
from forge_env.core.types import Message
from trainers.model.sizes import ModelSize
from trainers.model.tiny_model import SPECIAL_TOKENS, make_tiny_model

SIZE = ModelSize(num_hidden_layers=1, hidden_size=32, intermediate_size=48, head_dim=8)


def conversations() -> list[list[Message]]:
    results: list[list[Message]] = []
    for task in Math.tasks(count=32):
        start: list[Message] = [{"role": "system", "content": Math.system_prompt}, *task.prompt]
        result: Message = {"role": "tool", "content": task.target, "tool_call_id": "call_0"}
        asked = [*start, Math.expert(start), result]
        results.append([*asked, Math.expert(asked)])
    return results


def make(folder: Path, seed: int = 0) -> int:
    return make_tiny_model(folder, [(chat, Math().tools) for chat in conversations()], seed=seed, size=SIZE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("tiny") / "deep" / "model"
    return folder, make(folder)


@pytest.fixture(scope="module")
def tokenizer(made: tuple[Path, int]) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(made[0])


def load_whole(folder: Path, parameters: int) -> Any:
    """What transformers makes of the folder, which has every weight and no other, and finite logits."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    with torch.no_grad():
        assert torch.isfinite(model(torch.arange(16)[None]).logits).all()
    return model


def test_transformers_loads_every_weight(made: tuple[Path, int], tokenizer: Any) -> None:
    model = load_whole(*made)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.vocab_size == len(tokenizer) <= SIZE.vocab_size
    assert model.dtype == torch.float32
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_special_tokens_are_single_ids(tokenizer: Any) -> None:
    for token in SPECIAL_TOKENS:
        assert tokenizer.encode(token, add_special_tokens=False) == [tokenizer.convert_tokens_to_ids(token)]
        assert len(tokenizer.encode(f"a{token}b", add_special_tokens=False)) == 3
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_every_digit_is_a_token_of_its_own(tokenizer: Any) -> None:
    for text in ("4096", "46 * 88 + 52", '"expression": "1234"', "x1y22"):
        tokens = [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]
        assert "".join(tokens) == text
        assert all(token.isdigit() == any(c.isdigit() for c in token) for token in tokens)
        assert all(len(token) == 1 for token in tokens if token.isdigit())


def test_the_environments_text_is_short(tokenizer: Any) -> None:
    """The tokenizer is trained on it: common words are single tokens, and none holds a whole sentence."""
    text = "boxes hold pens each. How many pens?"
    assert len(tokenizer.encode(text, add_special_tokens=False)) < len(text) / 3
    assert max(len(token) for token in tokenizer.get_vocab() if token not in SPECIAL_TOKENS) <= 16


def test_no_token_reaches_from_the_prompt_into_the_answer(tokenizer: Any) -> None:
    """What a generation prompt ends with is cut the same way, whatever is answered."""
    prompt = tokenizer.encode("</think>\n\n", add_special_tokens=False)
    for answer in ("4", "def f", "<tool_call>\n"):
        both = tokenizer.encode("</think>\n\n" + answer, add_special_tokens=False)
        assert both[: len(prompt)] == prompt


def test_a_seed_gives_the_same_model(made: tuple[Path, int], tmp_path: Path) -> None:
    make(tmp_path / "same")
    make(tmp_path / "other", seed=1)
    first, same, other = (load_file(p / "model.safetensors") for p in (made[0], tmp_path / "same", tmp_path / "other"))
    assert first.keys() == same.keys() == other.keys()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert (made[0] / "tokenizer.json").read_text() == (tmp_path / "other" / "tokenizer.json").read_text()


def test_weights_are_drawn_as_qwen3_does(made: tuple[Path, int]) -> None:
    for name, weight in load_file(made[0] / "model.safetensors").items():
        if "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight)), name
        else:
            assert weight.std().item() == pytest.approx(0.02, rel=0.1), name
            assert abs(weight.mean().item()) < 0.002, name


def test_the_folder_is_complete(made: tuple[Path, int]) -> None:
    files = {path.name for path in made[0].iterdir()}
    assert files == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    }
    assert json.loads((made[0] / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
