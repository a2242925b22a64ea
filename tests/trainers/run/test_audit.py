"""What a run does with the holes of its training tasks: it leaves them out, keeps that in its record, or is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.registry.contrib import Row
from forge_env.rollout.factory import EnvFactory
from tests.helpers.plans import lines_of, plan_of
from trainers.run import audit
from trainers.run.audit import Hole, audit_tasks
from trainers.run.run_record import RunRecord
from trainers.setup import describe
from trainers.setup.run_tasks import RunTasks

TASKS = [Task(prompt=(), target=number) for number in range(6)]


class Numbers:
    """Tasks with an odd number reward a cheat in full, and the number 4 in part; the number 2 takes too long."""

    tasks_by_default, knows_cheats = 6, False
    audits = 0

    def __init__(self, factory: EnvFactory) -> None:
        self.most = 9

    async def audit(self, tasks: Sequence[Task], *, seed: int, seconds: float) -> dict[str, Hole | None]:
        Numbers.audits += 1
        return {
            task.id: Hole(task=f"t{task.target}", why=f"hole {task.target}", is_paid_in_full=task.target % 2 == 1)
            if task.target in (1, 3, 4, 5)
            else None
            for task in tasks
            if task.target != 2
        }

    def cheat_of(self, episode: Episode) -> str:
        return ""


@pytest.fixture
def by_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "rows", lambda table: {"tasks": Row("tasks", f"{__name__}:Numbers")})


async def audited(folder: Path, *options: str, tasks: Sequence[Task] = TASKS, resume: bool = False) -> Any:
    plan = plan_of("--env=math", *options)
    object.__setattr__(plan.config, "resume", resume)
    with RunRecord(folder) as record:
        rest, facts, _ = await audit_tasks(plan, {"": RunTasks(train=tasks)}, record)
    return [task.target for task in rest[""].train], facts, (folder / "console.jsonl").read_text()


async def test_holes_are_left_out_and_a_run_that_goes_on_repeats_nothing(tmp_path: Path, by_numbers: None) -> None:
    rest, facts, console = await audited(tmp_path)
    assert rest == [0, 2, 4]
    assert "5 of 6 training tasks were attacked by known cheats, and 3 rewarded one in full; 1 more had no" in console
    assert "the task t1 is left out of the training: hole 1" in console
    assert "the task t4 rewards a cheat in part: hole 4" in console
    (tmp_path / "run.json").write_text(json.dumps(facts))
    before = Numbers.audits
    assert (await audited(tmp_path, resume=True))[:2] == (rest, facts) and Numbers.audits == before


async def test_a_run_of_holes_is_refused_unless_the_audit_is_off(tmp_path: Path, by_numbers: None) -> None:
    odd = TASKS[1::2]
    with pytest.raises(
        UserError, match=r"every audited training task of math \(3\) rewards a cheat in full, such as t"
    ):
        await audited(tmp_path, tasks=odd)
    assert (await audited(tmp_path, "--audit.tasks=0", tasks=odd))[:2] == ([1, 3, 5], {})


async def test_without_a_part_that_attacks_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "rows", lambda table: {})
    assert (await audited(tmp_path))[:2] == ([0, 1, 2, 3, 4, 5], {})


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ([], ["known cheats attack at most 6 training tasks before the first step, within 120 s"]),
        (["--audit.tasks=2", "--audit.seconds=5"], ["known cheats attack at most 2 training tasks before the first"]),
        (["--audit.tasks=0"], []),
        (["--env=code_exec:0.5"], ["math: known cheats attack at most 6", "code_exec: known cheats attack at most 6"]),
    ],
)
def test_the_plan_says_what_is_attacked(monkeypatch: pytest.MonkeyPatch, options: list[str], lines: list[str]) -> None:
    monkeypatch.setattr(describe, "rows", lambda table: {"tasks": Row("tasks", f"{__name__}:Numbers")})
    said = lines_of(plan_of("--env=math", *options), "audit")
    assert len(said) == len(lines) and all(map(str.startswith, said, lines))
