"""What `model.size` names: a model of about so many parameters, which transformers loads and a plan knows."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from envs.math import Math
from forge_env.core.types import Message
from tests.helpers.entry import never
from tests.helpers.plans import plan_of, refusal
from tests.trainers.model.test_tiny_model import load_whole
from trainers.api import enter
from trainers.families.table import read_shape
from trainers.grpo import GRPO
from trainers.model.find import find_shape, made_shape
from trainers.model.sizes import MODEL_SIZES, ModelSize
from trainers.model.tiny_model import make_tiny_model
from trainers.settings.tasks import ModelConfig


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A model of size 100m."""
    folder = tmp_path_factory.mktemp("made") / "model"
    chat: list[Message] = [{"role": "user", "content": "What is 12 times 30?"}, {"role": "assistant", "content": "360"}]
    return folder, make_tiny_model(folder, [(chat, Math().tools)], seed=0, size=MODEL_SIZES["100m"])


def test_the_setting_has_every_size_and_the_tiny_one_by_default() -> None:
    assert typing.get_args(typing.get_type_hints(ModelConfig)["size"]) == tuple(MODEL_SIZES)
    assert MODEL_SIZES[ModelConfig().size] == ModelSize() == MODEL_SIZES["tiny"]


def test_a_hundred_million_parameters_that_transformers_loads(made: tuple[Path, int]) -> None:
    assert 80e6 < made[1] < 120e6
    with torch.no_grad():
        logits = load_whole(*made)(torch.arange(16)[None]).logits
    assert logits.std() < 2, "a fresh model has no opinion yet"
    assert "expert" not in (made[0] / "config.json").read_text()


def test_the_output_layer_of_a_hundred_million_parameters_is_the_embedding(made: tuple[Path, int]) -> None:
    folder, _ = made
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert "model.embed_tokens.weight" in file.keys() and "lm_head.weight" not in file.keys()  # noqa: SIM118
    assert read_shape(folder).tie_word_embeddings and made_shape("100m").tie_word_embeddings


def test_the_plan_knows_the_shape_before_the_model_is_made(made: tuple[Path, int]) -> None:
    folder, parameters = made
    planned, real = made_shape("100m"), read_shape(folder)
    rows = planned.vocab_size - real.vocab_size  # the tokenizer of so little text needs fewer entries
    assert rows > 0
    assert planned.parameters - rows * planned.hidden_size == real.parameters == parameters
    assert find_shape("", "100m").shape == planned


def test_a_tiny_model_with_experts_that_transformers_loads(tmp_path: Path) -> None:
    chat: list[Message] = [{"role": "user", "content": "What is 12 times 30?"}, {"role": "assistant", "content": "360"}]
    parameters = make_tiny_model(tmp_path / "model", [(chat, Math().tools)], seed=0, size=MODEL_SIZES["tiny-moe"])
    model = load_whole(tmp_path / "model", parameters)
    real, planned = read_shape(tmp_path / "model"), made_shape("tiny-moe")
    assert real.parameters == parameters
    assert dataclasses.replace(planned, vocab_size=real.vocab_size) == real
    assert model.config.norm_topk_prob, "as published models have it"


def test_a_plan_estimates_its_memory() -> None:
    for size in ("tiny", "100m"):
        plan = plan_of(f"--model.size={size}")
        memory = {process.service: found for process, found in plan.processes}
        assert all(found is not None for found in memory.values())
        assert memory["trainer"].always["state"] == 16 * made_shape(size).parameters


def test_an_episode_may_be_as_long_as_the_model_reads() -> None:
    longest = MODEL_SIZES["100m"].max_position_embeddings
    plan_of(f"--model.size=100m --env.max_tokens={longest}").check()
    assert f"reads {longest} tokens at most" in refusal(f"--model.size=100m --env.max_tokens={longest + 1}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model.size", "100M"], "--model.size is '100M'; it must be one of: tiny, 100m"),
        (["--model.size", "100m", "--model", "Qwen/Qwen3-0.6B"], "leave one of them out"),
        (["--model.size", "100m", "--trainer.procs", "8", "--parallelism.tensor_parallel_degree", "8"], "1, 2 or 4"),
    ],
)
def test_a_mistake_is_one_sentence(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(GRPO, never, options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
