"""Every recipe loads, says how it is started, and would start on a machine that has its GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.entry import never
from tests.helpers.plans import lines_of, plan_of
from trainers.api import enter
from trainers.grpo import GRPO, Config
from trainers.setup.options.read_config import read_config
from trainers.setup.placement import gpus_available

FOLDER = Path(__file__).parents[3] / "recipes"
OF_CONTRIB = ("100m_tool_api", "135m_bug_fix", "135m_mini_swe_agent", "qwen3_1_7b_tools")
"""Recipes whose environment is none of the heart's; they are tested where it is."""
RECIPES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem not in OF_CONTRIB)


def test_the_recipes_are_there() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {
        "tiny_cpu",
        "100m_code_exec",
        "135m_bug_fix",
        "135m_mini_swe_agent",
        "100m_tool_api",
        "qwen3_0_6b_math",
        "qwen3_1_7b_math",
        "qwen3_1_7b_tools",
        "qwen3_8b_code",
        "llama3_1_8b_math",
    }


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_would_start_on_a_machine_with_its_gpus(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    would_start(path)
    assert "training.learning_rate" in capsys.readouterr().out


def would_start(path: Path, *options: str) -> None:
    plan = plan_of("--config", str(path), *options)
    assert lines_of(plan, "warning") == [], "its values are usual"
    enough = plan.placement.gpus_needed <= gpus_available()
    assert [problem for problem in plan.problems if not re.match(r"the run needs \d+ GPUs?,", problem)] == []
    assert bool(plan.problems) is not enough
    assert all(memory is not None for _, memory in plan.processes)
    assert enter(GRPO, never, ["--config", str(path), *options, "--dry-run"]) == (0 if enough else 2)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_how_it_is_started_and_where_it_runs(path: Path) -> None:
    says_how_it_is_started(path)


def says_how_it_is_started(path: Path, *options: str) -> None:
    header = "".join(line[1:] for line in path.read_text().splitlines() if line.startswith("#"))
    assert f"python -m trainers.grpo --config recipes/{path.name}" in header
    placement = plan_of("--config", str(path), *options).placement
    wanted, needed = placement.gpus_wanted, placement.gpus_needed
    if wanted:
        assert f"{needed} GPU{'s' * (needed != 1)}" in header and ("Not run here" in header or "Measured" in header)
        assert [name for name, count in wanted.items() if f"{name} {count}" not in header] == []


def test_the_tiny_recipe_is_what_the_defaults_are() -> None:
    (path,) = [path for path in RECIPES if path.stem == "tiny_cpu"]
    assert plan_of("--config", str(path)).config == plan_of().config


def test_the_recipe_of_the_model_made_on_the_spot_is_harder_than_the_cpu_recipe() -> None:
    is_harder_than_the_cpu_recipe("code_exec")


def is_harder_than_the_cpu_recipe(name: str) -> None:
    config = read_config(Config, ["--config", str(FOLDER / f"100m_{name}.yaml")])
    assert config.env.name == name and config.model.size == "100m"
    assert config.env.options["level"] > 1 and "level" not in Config().env.options
    assert config.checkpoint.interval and config.training.steps % config.checkpoint.interval == 0
