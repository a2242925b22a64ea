"""The Harbor tasks of contrib/harbor/examples: in the published format, of every kind, and sound by the audit."""

from __future__ import annotations

from pathlib import Path

import pytest

import forge_env
from contrib.check import run_audit
from contrib.harbor.config import HarborTask, find_tasks

EXAMPLES = Path(forge_env.__file__).parents[1] / "contrib/harbor/examples"


@pytest.fixture(scope="module")
def tasks() -> list[HarborTask]:
    return find_tasks(EXAMPLES)


def test_there_are_tasks_of_every_kind(tasks: list[HarborTask]) -> None:
    assert len(tasks) >= 25 and len({task.name for task in tasks}) == len(tasks)
    assert {task.config.schema_version for task in tasks} == {"1.4"}
    places = [task.verifier_place(step) for task in tasks for step in task.steps]
    assert {"shared", "separate", "fork"} == set(places)
    assert {task.config.multi_step_reward_strategy for task in tasks if task.config.steps} == {"mean", "final"}
    assert {task.config.agent.network_mode for task in tasks} >= {None, "allowlist"}
    assert any(task.config.environment.docker_image for task in tasks)
    assert any(task.config.environment.healthcheck for task in tasks)
    assert any(task.config.verifier.collect for task in tasks) and any(task.config.solution.env for task in tasks)
    assert any(task.config.verifier.environment for task in tasks) and any(task.config.agent.user for task in tasks)
    scripts = [path.read_text() for path in EXAMPLES.rglob("tests/test.sh")]
    assert any("reward.txt" in script for script in scripts) and list(EXAMPLES.rglob("tests/judge.py"))


def test_instructions_differ_so_that_each_names_its_solution(tasks: list[HarborTask]) -> None:
    texts = [task.part(step, "instruction.md").read_text() for task in tasks for step in task.steps]
    assert len(set(texts)) == len(texts)
    assert all((task.part(step, "solution") / "solve.sh").is_file() for task in tasks for step in task.steps)


@pytest.mark.parametrize("name", ["judge.py", "programs.py", "calls.py"])
def test_what_tasks_share_is_the_same_file(name: str) -> None:
    assert len({path.read_text() for path in EXAMPLES.rglob(name)}) == 1


@pytest.mark.slow
async def test_all_tasks_are_sound() -> None:
    report = await run_audit(forge_env.make(f"harbor:{EXAMPLES}"))
    assert report.ok and len(report.tasks) >= 25, [task for task in report.tasks if not task.ok]
