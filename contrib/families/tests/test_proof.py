"""Each family is proven with a real engine; test_qwen3_5.py does it for Qwen3.5."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer

pytest.importorskip("torchtitan")
if find_spec("vllm") is None:  # to import it takes seconds
    pytest.skip("vllm is not installed", allow_module_level=True)
from contrib.families.tests.folders import GPT_OSS, MODULES, UNTIED, make_folder
from tests.agents.renderer.test_harmony import make_gpt_oss
from tests.helpers.family_proof import prove, two_steps_of_grpo, with_tokenizer, wrong
from tests.trainers.families.test_proof import check_steps, longer


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_trainer_transformers_and_engine_compute_the_same(tmp_path: Path) -> None:
    figures = await prove(make_folder(tmp_path / "model", "gpt-oss", tied=False), tmp_path / "out", length=120)
    assert wrong(figures) == {}, figures


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_steps_of_grpo_train_it(tmp_path: Path) -> None:
    like = make_gpt_oss(tmp_path / "like")
    folder = make_folder(
        tmp_path / "model",
        "gpt-oss",
        tied=False,
        rope_parameters=GPT_OSS["rope_parameters"] | {"original_max_position_embeddings": 1024},
        vocab_size=Tokenizer.from_file(str(like / "tokenizer.json")).get_vocab_size(),
        max_position_embeddings=4096,
    )
    check_steps(two_steps_of_grpo(with_tokenizer(folder, like), tmp_path, "--env.thinking", "on"))


WIDE = {"olmo3": {"hidden_size": 128}, "smollm3": {"hidden_size": 128}}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MODULES)
async def test_trainer_and_engine_compute_the_module_of_transformers(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model", name, tied=name not in UNTIED, **WIDE.get(name, {}))
    figures = await prove(folder, tmp_path / "out", length=120)
    assert wrong(figures) == {}, figures


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODULES)
def test_two_steps_of_grpo_train_a_module_of_transformers(tmp_path: Path, tiny_model: Path, name: str) -> None:
    settings = longer(MODULES[name][1] | WIDE.get(name, {}), tiny_model)
    folder = make_folder(tmp_path / "model", name, tied=name not in UNTIED, **settings)
    check_steps(two_steps_of_grpo(with_tokenizer(folder, tiny_model), tmp_path))
