"""Runs of trainers in the environment of tools: limits, recipes, refusals, demonstrations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forge_env.cli.main import main
from forge_env.core.episode import read_jsonl
from tests.helpers.runs import start  # noqa: F401 (a fixture)
from tests.trainers.setup.test_defaults import has_the_same_limits, plan_of, said_of
from tests.trainers.setup.test_recipes import FOLDER, is_harder_than_the_cpu_recipe, says_how_it_is_started, would_start
from tests.trainers.setup.test_refusals import refusal
from tests.trainers.sft.test_data import messages_give_the_rows


def test_a_given_model_is_trained_and_evaluated_with_the_same_limits() -> None:
    has_the_same_limits("tool_api")


@pytest.mark.parametrize("name", ["100m_tool_api", "qwen3_1_7b_tools"])
def test_a_recipe_would_start_and_says_how(name: str) -> None:
    path = FOLDER / f"{name}.yaml"
    would_start(path)
    says_how_it_is_started(path)
    assert said_of(plan_of("--config", str(path)), "warning") == []


def test_the_recipe_of_the_model_made_on_the_spot_is_harder_than_the_cpu_recipe() -> None:
    is_harder_than_the_cpu_recipe("tool_api")


def test_tasks_that_cannot_stream_are_refused() -> None:
    sentence = "--dataset.streaming is true, and the environment tool_api cannot stream: set it to false"
    assert refusal("--env tool_api --dataset.path a --dataset.streaming") == sentence


async def test_messages_give_the_rows_of_their_episode(tiny_model: Path) -> None:
    await messages_give_the_rows(tiny_model, "tool_api")


@pytest.mark.slow
def test_sft_with_a_tool_of_the_users_own(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Supervised training on its own; the registered name reaches the processes that play the episodes."""
    (tmp_path / "sums.py").write_text(
        'def add(a: int, b: int) -> int:\n    """Add two numbers."""\n    return a + b\n', encoding="utf-8"
    )
    monkeypatch.setenv("FORGE_ENV_REGISTRY", str(tmp_path / "registry.yaml"))
    assert main(["register", str(tmp_path / "sums.py:add"), "--timeout", "5"]) == 0
    run = start(
        "trainers.sft", "--env", "tool_api", "--tools", "add", "--steps", "4", "--tasks", "256",
        "--dataset.held_out", "16", "--warmup.demonstrations", "64",
    )  # fmt: skip
    console = run.end()
    assert run.process.returncode == 0, console
    summary = json.loads((run.output / "summary.json").read_text())
    assert summary["algorithm"] == "sft" and summary["evaluation_episodes"] == 16
    startup = summary["startup"]  # which ends with the first supervised step: the engine may still be starting then
    assert sum(startup["demonstrations"]) <= startup["first optimizer step"][0] <= startup["first_step"]
    demonstrations = list(read_jsonl(run.output / "episodes" / "demonstrations.jsonl"))
    assert {use.name for e in demonstrations for turn in e.turns for use in turn.tool_uses} == {"add"}
    run.assert_nothing_left()
