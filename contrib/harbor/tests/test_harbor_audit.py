"""The audit of Harbor tasks names what is wrong with those that can be hacked, and trusts those that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forge_env
from contrib.check import run_audit
from contrib.harbor.config import read_task
from contrib.harbor.oracle import play_solution, play_task
from contrib.harbor.tests.hackable import HACKABLE
from contrib.workspaces.bug_fix.to_harbor import main as write_bug_fixes
from forge_env.cli.main import main
from forge_env.core.errors import UserError

QUICK = "later_commit"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in HACKABLE]
)
async def test_the_audit_names_what_is_wrong_with_a_task(tmp_path: Path, name: str) -> None:
    hackable = HACKABLE[name]
    report = await run_audit(forge_env.make(f"harbor:{hackable.write(tmp_path / name)}"))
    [task] = report.tasks
    assert not report.ok and not task.ok
    if hackable.cheat:
        assert hackable.cheat in task.paid, (task.paid, task.problems)
        assert report.hackable == (name,) and report.paid[hackable.cheat] == 1
    if hackable.problem:
        assert any(hackable.problem in problem for problem in task.problems), task.problems
    if name not in ("broken_solution", "network", "work_among_programs"):
        assert task.solution is not None and task.solution >= 1, task.problems


def test_the_command_says_it_as_a_table_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_bug_fixes([str(tmp_path / "tasks"), "--count", "1", "--level", "0"])
    HACKABLE["broken_solution"].write(tmp_path / "broken")
    capsys.readouterr()
    assert main(["check", f"harbor:{tmp_path / 'tasks'}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    [sound] = report["tasks"]
    assert [report["ok"], report["not_audited"]] == [True, []]
    assert (sound["ok"], sound["solution"], sound["empty"], sound["paid"]) == (True, 1.0, 0.0, [])
    assert len(sound["cheats"]) >= 12 and not sound["needs_network"]
    assert main(["check", f"harbor:{tmp_path / 'broken'}"]) == 1
    assert "broken: the solution earns 0, not 1" in capsys.readouterr().out


async def test_a_budget_that_ends_leaves_tasks_out_and_is_no_success(tmp_path: Path) -> None:
    write_bug_fixes([str(tmp_path / "tasks"), "--count", "2"])
    report = await run_audit(forge_env.make(f"harbor:{tmp_path / 'tasks'}"), seconds=0.01)
    assert len(report.not_audited) == 2 and not report.tasks and not report.ok
    with pytest.raises(UserError, match="seconds is 0; it is above 0"):
        await run_audit(forge_env.make(f"harbor:{tmp_path / 'tasks'}"), seconds=0)


def test_a_solution_is_that_of_its_own_task_also_where_two_have_the_same_text(tmp_path: Path) -> None:
    hackable = HACKABLE["interpreter"]
    one, two = hackable.write(tmp_path / "one"), hackable.write(tmp_path / "two")
    asked = [{"role": "user", "content": (one / "instruction.md").read_text().strip()}]
    assert play_solution(tmp_path, asked)["tool_calls"]
    (two / "solution/solve.sh").write_text("#!/bin/sh\necho two\n")
    played = [play_task(read_task(folder), asked)["tool_calls"][0]["function"]["arguments"] for folder in (one, two)]
    assert [arguments["text"] for arguments in played] == [(f / "solution/solve.sh").read_text() for f in (one, two)]
    (tmp_path / "others").mkdir()
    for folder in (one, two):
        folder.rename(tmp_path / "others" / folder.name)
    with pytest.raises(UserError, match="have the same instruction and different solutions"):
        play_solution(tmp_path / "others", asked)
