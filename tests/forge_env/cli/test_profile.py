"""`forge-env profile`, and the run that takes the profile: rates, what it trains on, and the profile of other tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from forge_env.cli.main import main
from forge_env.core.errors import UserError
from forge_env.evaluation.profile import Profile, rates_of
from trainers.grpo import GRPO
from trainers.setup.checks.resume_checks import check_data
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan
from trainers.setup.run_tasks import data_digests

ENV = '''\
from forge_env import EnvError, Task, ToolEnv, reward


class Steps(ToolEnv):
    """Answer the number of the task: 0 is never right, 3 always, and the others by the luck of the episode."""

    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        return [Task(prompt=({"role": "user", "content": f"{split} {seed} {i}"},), target=i % 5) for i in range(count)]

    @staticmethod
    def expert(messages):
        return {"role": "assistant", "content": "x"}

    @reward
    def right(self) -> float:
        if self.task.target == 4:
            raise EnvError("the stairs are closed")
        return float(self.np_random.random() < self.task.target / 3)
'''


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "steps.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def profiled(capfd: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    fixed = "profile --env steps.py:Steps --agent scripted:expert -n 16 --tasks 40 --out P --json"
    assert main([*fixed.split(), *more]) == 0
    result: dict[str, Any] = json.loads(capfd.readouterr().out)
    return result


def plan_of(*more: str) -> RunPlan:
    options = ["--env", "steps.py:Steps", "--dataset.pass_rate", "P", "--dataset.held_out", "4", *more]
    return make_plan(read_config(GRPO.config, options), GRPO)


def test_a_run_trains_on_the_tasks_of_a_profile_within_a_range(capfd: pytest.CaptureFixture[str]) -> None:
    result = profiled(capfd)
    assert result["profile"] == {"never solved": 8, "mixed": 16, "always solved": 8, "without a rate": 8}
    assert (result["split"], result["n"]) == ("train", 16)
    profile = Profile.read("P")
    assert profile.facts == {**profile.facts, "env": "steps.py:Steps", "agent": "scripted:expert", "seed": 0, "n": 16}
    assert sum(of_task["faults"] for of_task in profile.tasks.values()) == 8 * 16

    [share] = plan_of().environments
    assert share.tasks is not None and len(share.tasks.train) == 40
    rates = rates_of(share.config.dataset.pass_rate)  # what a sampler begins with
    assert {rates[task.id] for task in share.tasks.train if task.target in (0, 3)} == {(0, 16), (16, 16)}
    plan = plan_of("--dataset.pass_rate_range", "0.05,0.95", "--dataset.sampler", "window")
    [share] = plan.environments
    assert share.tasks is not None and {task.target for task in share.tasks.train} == {1, 2, 4}
    path = Path("P").absolute()
    assert plan.about_data[1:] == [
        "16 of 40 tasks are outside 0.05..0.95 and are not trained on",
        "8 tasks have no rate, for faults ended their attempts; they are trained on",
    ]
    assert plan.about_data[0] == f"the training tasks are from the profile {path}"
    (path / "run").mkdir()
    (path / "run" / "run.json").write_text(json.dumps({"data": {"files": data_digests(plan.views)}}))
    check_data(path / "run", plan.views)
    (path / "profile.json").write_text((path / "profile.json").read_text() + " ")
    with pytest.raises(UserError, match="the data file .*profile.json has changed since this run began"):
        check_data(path / "run", plan.views)


def test_a_profile_of_other_tasks_is_refused_before_anything_starts(capfd: pytest.CaptureFixture[str]) -> None:
    profiled(capfd)
    for more, words in {
        ("--seed", "1"): "it lacks 40 of the 40 training tasks, and is of steps.py:Steps, .* seed 0; .*seed is 1$",
        ("--dataset.tasks", "41"): "it lacks 1 of the 41 training tasks",
    }.items():
        with pytest.raises(UserError, match=words):
            plan_of(*more)
    profile = json.loads(Path("P/profile.json").read_text())
    next(iter(profile["tasks"].values()))["digest"] = "of another content"
    Path("P/profile.json").write_text(json.dumps(profile))
    with pytest.raises(UserError, match="has the rates of other tasks: it lacks 1 of the 40 training tasks"):
        plan_of()


def test_people_get_the_counts_and_an_empty_range_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    options = "--env steps.py:Steps --agent scripted:null -n 2 --tasks 4 --out P"
    assert main(["profile", *options.split()]) == 0
    assert "of the tasks, never solved " in capfd.readouterr().out
    with pytest.raises(UserError, match=r"is 0.97,0.99, and none of the 4 training tasks is in it: \d never solved"):
        plan_of("--dataset.pass_rate_range", "0.97,0.99")
