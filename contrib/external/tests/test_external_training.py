"""Whole runs on programs: one of the user's own, and a coding agent in the sandbox."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from contrib.external.tests.coding_agents import in_sandbox
from contrib.external.tests.external_playing import make_long_model
from contrib.records.audit import audit, open_decoder
from envs.math.env import Math
from forge_env.core.episode import read_jsonl
from forge_env.core.types import Message
from tests.helpers.runs import DEADLINE, SHORT, UNTRAINED, start  # noqa: F401 (a fixture)
from tests.trainers.setup.test_recipes import FOLDER, says_how_it_is_started, would_start

PROGRAM = Path(__file__).with_name("external_program.py")


def counts(messages: list[Message]) -> Message:
    """Demonstrate math through a program, which gives the model no tools."""
    return Math.expert([{"role": "system", "content": ""}, *messages])


@pytest.mark.slow
def test_a_program_is_trained_as_it_is(start, tiny_model: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """An agent program of the user's own, which the run starts once for each episode."""
    run = start(
        "trainers.grpo", "--env", "external", "--command", f"{sys.executable} -S {PROGRAM} ask", "--steps", "2",
        "--env.options.tasks", "math", "--model", str(tiny_model), *UNTRAINED, *SHORT, "--dataset.held_out", "4",
        "--grpo.n_samples", "4", "--training.batch_size", "2", "--warmup.steps", "2", "--warmup.until_success", "1",
        "--warmup.demonstrations", "4", "--warmup.expert", f"{__file__}:counts",
        "--training.entropy_coef", "0.01",  # so that its episodes are computed, whatever their rewards
    )  # fmt: skip
    console = run.end()
    assert run.process.returncode == 0, console
    run.assert_nothing_left()
    train, shown = (list(read_jsonl(run.output / "episodes" / f"{name}.jsonl")) for name in ("train", "demonstrations"))
    assert [episode.reward for episode in shown] == [1.0] * 4
    assert len(train) == 2 * 2 * 4
    assert all(episode.is_trainable and episode.env == "external" for episode in train)
    assert all(len(episode.rows) == 1 and len(episode.turns) == 1 for episode in train)
    lines = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    assert all(line["mean_abs_logprob_difference"] < 1e-5 for line in lines if line["phase"] == "train")


@pytest.mark.parametrize("recipe", ["135m_bug_fix", "135m_mini_swe_agent"])
def test_a_recipe_of_a_coding_agent_would_start_and_says_how(recipe: str, tiny_model: Path, tmp_path: Path) -> None:
    make_long_model(tiny_model, tmp_path / "model", positions=8192)
    options = ["--model", str(tmp_path / "model")]
    if recipe == "135m_mini_swe_agent":
        options += ["--env.options.files", str(tmp_path)]
    would_start(FOLDER / f"{recipe}.yaml", *options)
    says_how_it_is_started(FOLDER / f"{recipe}.yaml", *options)


@pytest.mark.slow
@pytest.mark.timeout(900)  # it installs the agent; its prompts have 20,000 tokens of the tiny model
def test_a_coding_agent_in_the_sandbox_is_trained(start, tiny_model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """The random model solves nothing: its answers are rewarded for their letters, which differ."""
    make_long_model(tiny_model, tmp_path / "model", positions=32_768)
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"prompt": "Write sentence {n}."}}\n' for n in range(10)))
    (tmp_path / "grade.py").write_text("def letters(answer):\n    return sum(map(ord, answer)) % 997 / 997\n")
    options = in_sandbox("opencode") | {
        "data": str(tmp_path / "tasks.jsonl"),
        "reward": f"{tmp_path}/grade.py:letters",
        "on_failure": "score",
    }
    run = start(
        "trainers.grpo", "--env", "external", *(f"--env.options.{name}={value}" for name, value in options.items()),
        "--model", str(tmp_path / "model"), "--steps", "2", "--dataset.held_out", "1",
        "--training.batch_size", "1", "--grpo.n_samples", "2",
        "--env.max_turns", "3", "--env.max_turn_tokens", "60", "--env.max_tokens", "30000",
    )  # fmt: skip
    console = run.end(2 * DEADLINE)
    assert run.process.returncode == 0, console
    run.assert_nothing_left()
    assert str(run.temp) not in Path("/proc/self/mountinfo").read_text()
    lines = (run.output / "metrics.jsonl").read_text().splitlines()
    steps = [step for step in map(json.loads, lines) if step["phase"] == "train"]
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert math.isfinite(step["loss"]) and step["grad_norm"] > 0
        assert step["mean_abs_logprob_difference"] <= 1e-5, "over prompts of an agent, too"
        assert step["rollout/rows_per_episode"] >= 1
    episodes = list(read_jsonl(run.output / "episodes" / "train.jsonl"))
    assert len(episodes) == 4 and all(episode.reward is not None for episode in episodes)
    assert min(len(episode.rows[0].token_ids) for episode in episodes) > 10_000, "the prompts are those of the agent"
    assert audit(run.output, open_decoder(run.output / "model")).problems == []
