"""The defaults by what is trained: the table, what bounds it, and settings far from what is usual."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from forge_env.rollout.factory import make
from forge_env.utils.settings import with_values
from tests.helpers.hub import read_later
from tests.helpers.plans import lines_of as said_of
from tests.helpers.plans import plan_of
from trainers import sft
from trainers.grpo import GRPO
from trainers.model.sizes import MODEL_SIZES
from trainers.setup.checks import model_checks
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan

GIVEN = "--model=Qwen/Qwen3-8B"


def folder_of(path: Path, size: str, **changed: int) -> Path:
    """The config.json of a model of this size made on the spot, as its export has it."""
    made = asdict(MODEL_SIZES[size]) | changed
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3", **made}))
    (path / "model.safetensors").write_bytes(b"")
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.mark.parametrize(
    ("size", "rates", "changed"),
    [
        ("tiny", (6e-4, 3e-3), {"vocab_size": 600}),
        ("100m", (6e-5, 6e-4), {"vocab_size": 900}),
        ("100m", (5e-5, 5e-4), {"vocab_size": 49152}),  # 134 million, as SmolLM2-135M has
    ],
)
def test_the_rate_of_a_given_model_follows_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, rates: tuple[float, float], changed: dict[str, int]
) -> None:
    monkeypatch.setattr(model_checks, "check_folder", lambda plan, folder: plan.model)  # only its size is there
    folder = folder_of(tmp_path / "model", size, **changed)
    limits = ["--env.max_tokens=512", "--env.max_turn_tokens=64"]
    plan = plan_of(f"--model={folder}", *limits)
    assert (plan.config.training.learning_rate, plan.config.warmup.learning_rate) == rates
    adapted = plan_of(f"--model={folder}", "--lora.rank=8", *limits)
    assert adapted.config.training.learning_rate == pytest.approx(10 * rates[0])
    for rate in (rates[0] / 20, 20 * rates[0]):
        assert said_of(plan_of(f"--model={folder}", f"--training.learning_rate={rate}", *limits), "warning") == []


ON_A_GPU = ("--trainer.with_gpus", "--generator.with_gpus", "--launcher.gpus_per_host=1")


def test_a_larger_micro_batch_takes_nothing_from_the_engine() -> None:
    card = (*ON_A_GPU, "--model=Qwen/Qwen3-0.6B", "--launcher.gpu_memory_gib=141")
    larger, usual = plan_of(*card), plan_of(*card, "--training.max_tokens_per_micro_batch=4096")
    assert larger.engine.sleep == usual.engine.sleep


def test_a_model_that_is_read_later_gets_its_micro_batch_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(*ON_A_GPU, "--model=nobody/knows-this", "--launcher.gpu_memory_gib=80", "--env.max_tokens=1024")
    read = read_later(plan, folder_of(tmp_path / "model", "100m"), monkeypatch)
    assert read.config.training.max_tokens_per_micro_batch == 65536


def test_an_environment_that_listens_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.math.env.Math.one_process", True)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    assert plan_of(*ON_A_GPU, "--env=math", "--training.batch_size=64").config.services.envs.num_replicas == 1


def test_without_a_c_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not read_config(GRPO.config, ON_A_GPU).training.compile


def test_steps_that_the_data_decides_on_are_waited_for() -> None:
    for arguments, rising in (([], 0), ([GIVEN], 10)):
        plan = plan_of("--sft.data=somebody/chats", *arguments, algorithm=sft.SFT)
        known = replace(plan, steps=40)
        assert (plan.steps, known.steps, known.rising_steps) == (0, 40, rising)
    given = plan_of("--sft.data=somebody/chats", "--training.warmup_steps=3", algorithm=sft.SFT)
    assert replace(given, steps=40).rising_steps == 3


@pytest.mark.parametrize("name", ["math", "code_exec"])
def test_a_given_model_is_trained_and_evaluated_with_the_same_limits(name: str) -> None:
    has_the_same_limits(name)


def has_the_same_limits(name: str) -> None:
    assert plan_of(GIVEN, f"--env={name}").config.env.limits() == make(name).episode_limits()


def test_an_episode_is_never_longer_than_the_model_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {
        "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 640, "max_position_embeddings": 1024,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    plan = plan_of("--model=nobody/knows-this")
    found = read_later(plan, tmp_path, monkeypatch)
    assert (plan.config.env.max_tokens, found.config.env.max_tokens) == (4096, 1024)
    assert found.engine.max_model_len == 1024
    assert "env.max_tokens 1024 (all that the model reads)" in said_of(found)


def test_a_plan_says_its_defaults_with_their_reason_and_leaves_out_what_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from envs.math import Math\n\n\nclass Own(Math):\n    @classmethod\n    def limits(cls, **_):\n"
        "        return {'max_turns': 1, 'max_turn_tokens': 2048, 'max_tokens': 4096}\n"
    )
    said = said_of(plan_of(GIVEN, "--env=own.py:Own", "--training.warmup_steps=5"))
    assert "training.learning_rate 1e-06 (all weights of a given model, 8,191 million parameters)" in said
    assert any(text.startswith("warmup.steps 0") and text.endswith("(all weights of a given model)") for text in said)
    assert "env.max_turns 1, env.max_turn_tokens 2048, env.max_tokens 4096 (declared by own.py:Own)" in said
    assert not any("training.warmup_steps" in text for text in said)


def test_the_rise_follows_the_steps_of_a_run_that_goes_on_for_fewer() -> None:
    """A checkpoint holds the config of the plan, and --training.steps may change."""
    begun = plan_of(GIVEN, "--steps=1000")
    again = make_plan(with_values(begun.config, {"training.steps": 4}), GRPO)
    assert again.rising_steps == 2 and not any("decay" in problem for problem in again.problems)
