"""Each family is proven with one real engine: rows beyond the original length of yarn, and longer than each window."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

pytest.importorskip("torchtitan")
if find_spec("vllm") is None:  # to import it takes seconds
    pytest.skip("vllm is not installed", allow_module_level=True)
from tests.helpers.family_proof import CLOSE, prove, two_steps_of_grpo, with_tokenizer, wrong
from tests.helpers.tokenizer_folders import make_llama, make_qwen25
from tests.trainers.titan.folders import FAMILIES, make_folder

YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
WINDOW = {"use_sliding_window": True, "sliding_window": 24}
LAYERS = {"layer_types": ["sliding_attention"] * 2, "max_window_layers": 0}
# name -> family of tests/trainers/titan/folders.py, whether its embedding is tied, and changes of its config
CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "qwen2": ("qwen2.5", True, {"hidden_size": 128, "rope_parameters": YARN, **WINDOW, **LAYERS}),
    "qwen3": ("qwen3", False, {"head_dim": 32, "rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 16}}),
    "qwen3_moe": ("qwen3-moe", False, {"head_dim": 32, "rope_parameters": YARN}),
    "llama": ("llama-3.2", True, {"head_dim": 32}),
    "mistral": ("mistral", False, {"head_dim": 32, "sliding_window": 24}),
}


@pytest.mark.slow  # the quick tests are test_models.py, and for the engine test_engine_and_trainer.py
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
async def test_trainer_transformers_and_engine_compute_the_same(tmp_path: Path, name: str) -> None:
    family, tied, changes = CASES[name]
    folder = make_folder(tmp_path / "model", family, tied=tied, **changes)
    found = await prove(folder, tmp_path / "out", length=120)
    assert wrong(found) == {}, found


def _longer(rope: dict[str, Any]) -> dict[str, Any]:
    """Rope settings of rows that are longer, if they have a length at all."""
    within = {name: _longer(value) if isinstance(value, dict) else value for name, value in rope.items()}
    return {**within, "original_max_position_embeddings": 1024} if rope.get("rope_type") == "yarn" else within


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_two_steps_of_grpo_train_it(tmp_path: Path, tiny_model: Path, name: str) -> None:
    makers = {"qwen2": make_qwen25, "llama": make_llama}
    like = makers[name](tmp_path / "like") if name in makers else tiny_model
    family, tied, changes = CASES[name]
    folder = make_folder(tmp_path / "model", family, tied=tied, **longer(FAMILIES[family][1] | changes, like))
    check_steps(two_steps_of_grpo(with_tokenizer(folder, like), tmp_path))


def longer(settings: dict[str, Any], like: Path) -> dict[str, Any]:
    """The settings of a model that a run can train with the tokenizer of a folder."""
    vocabulary = Tokenizer.from_file(str(like / "tokenizer.json")).get_vocab_size()
    rope = {"rope_parameters": _longer(settings["rope_parameters"])} if "rope_parameters" in settings else {}
    return {**settings, **rope, "vocab_size": vocabulary, "max_position_embeddings": 4096}


def check_steps(steps: list[dict[str, float]]) -> None:
    for step in steps:
        assert step["mean_abs_logprob_difference"] <= CLOSE
        assert step.get("delivery/difference", 0.0) <= CLOSE
        assert step["grad_norm"] > 0
