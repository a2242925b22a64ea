"""Two evaluations side by side: pairs, orders, what is missing of them, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contrib.viewer.library import Library
from contrib.viewer.tests.runs import make_episode, training_run, write
from forge_env.cli.main import main
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from forge_env.evaluation.compare import compare, finite


def attempt(task: int, number: int, reward: float | None, *, kind: str = "") -> Episode:
    """An attempt at a task; without a reward a time-out."""
    outcome = Outcome.TIMEOUT if reward is None else Outcome.SCORED
    made = make_episode(f"evaluation/{task}/{number}", question=f"Task {task}?", reward=reward, outcome=outcome)
    return replace(made, task=replace(made.task, id=f"t{task}", kind=kind))


def evaluation(
    folder: Path, rewards: dict[int, list[float | None]], *, planned: int = 0, options: dict[str, Any] | None = None
) -> Path:
    """The folder of an evaluation; with `planned` tasks it is not finished. Tasks with even numbers are of a kind."""
    kinds = ("even", "odd")
    episodes = [attempt(t, i, r, kind=kinds[t % 2]) for t, given in rewards.items() for i, r in enumerate(given)]
    write(folder / "episodes.jsonl", *episodes)
    depends_on = {"environment": {"env.py": folder.name}, "agent": {}}
    plan = {"env": "math", "tasks": planned or len(rewards), "n": 2, "options": options, "depends_on": depends_on}
    (folder / "plan.json").write_text(json.dumps(plan))
    if not planned:
        (folder / "eval.json").write_text(json.dumps({"avg@2": 0.5}))
    return folder


FIRST: dict[int, list[float | None]] = {0: [1.0, 1.0], 1: [0.0, 0.0], 2: [1.0, 1.0], 3: [0.5, 0.5]}
SECOND: dict[int, list[float | None]] = {3: [0.5, 0.0], 2: [0.0, None], 1: [1.0, 1.0], 0: [1.0, 0.0]}


def ask(view: str, *runs: Path, **params: str) -> Any:
    with Library(*runs) as library:
        for run in library.runs:
            run.open()
            run.update_index()
        return library.answer(f"0/{view}", {"other": str(len(runs) - 1), **params})


def test_tasks_come_with_the_worst_regression_first(tmp_path: Path) -> None:
    runs = evaluation(tmp_path / "a", FIRST), evaluation(tmp_path / "b", SECOND)
    page = ask("compare", *runs)
    assert [(t["task"], t["share"], t["other_share"]) for t in page["rows"]] == [
        ("t2", 1.0, 0.0), ("t0", 1.0, 0.5), ("t3", 0.0, 0.0), ("t1", 0.0, 1.0),
    ]  # fmt: skip
    pairs = [[(one["id"], one["reward"]) for one in pair] for pair in page["rows"][1]["episodes"]]
    assert pairs == [[("evaluation/0/0", 1.0)] * 2, [("evaluation/0/1", 1.0), ("evaluation/0/1", 0.0)]]
    assert (page["total"], page["reading"], page["refusal"], page["chosen"]) == (4, False, "", ["episodes"] * 2)
    for params, tasks in (
        ({"order": "improvements"}, ["t1", "t3", "t0", "t2"]),
        ({"order": "written", "change": "worse"}, ["t0", "t2"]),
        ({"kind": "odd"}, ["t3", "t1"]),
        ({"offset": "1", "limit": "2"}, ["t0", "t3"]),
    ):
        assert [task["task"] for task in ask("compare", *runs, **params)["rows"]] == tasks
    for params in ({"order": "x"}, {"change": "x"}, {"phase": "x"}):
        with pytest.raises(UserError, match="'x'"):
            ask("compare", *runs, **params)


def test_the_figures_are_those_of_the_diff_and_say_what_is_not_alike(tmp_path: Path) -> None:
    first, second = evaluation(tmp_path / "a", FIRST), evaluation(tmp_path / "b", SECOND, planned=6)
    figures = ask("differences", first, second)
    listed = [comparison for comparison in compare(first, second) if comparison.measure == "success"]
    assert [row["kind"] for row in figures["rows"]] == ["", "even", "odd"]
    for row, expected in zip(figures["rows"], listed, strict=True):
        difference = row["paired"]["difference"]
        assert (row["first"], row["second"]) == (expected.first, expected.second)
        assert finite(expected.paired.difference.interval) == (difference["low"], difference["high"])
        assert row["paired"]["p_value"] == expected.paired.p_value
    assert figures["notes"] == [
        f"{second} is not finished: it has 8 of 12 planned episodes",
        f"{first} and {second} are of before and after a change of the environment (env.py)",
    ]


def test_two_evaluations_of_one_run_are_compared(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run")
    page = ask("compare", run)
    assert page["chosen"] == ["before", "after"] and page["rows"][0]["other_share"] == 1.0
    assert page["phases"][0] == ["before", "after", "train"]
    assert ask("compare", run, phase="after")["rows"][0]["share"] == 1.0


def test_without_a_common_task_the_command_and_the_page_say_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = evaluation(tmp_path / "a", {0: [1.0]}), evaluation(tmp_path / "b", {1: [1.0]})
    assert main(["view", str(first), str(second)]) == 2
    refusal = ask("compare", first, second)["refusal"]
    assert refusal == f"{first} and {second} have no attempt at a task in common: compare runs of the same tasks"
    assert capfd.readouterr().err.strip().endswith(refusal)
    with pytest.raises(UserError, match="no attempt at a task in common"):
        ask("differences", first, second)


def test_an_unfinished_evaluation_may_still_get_a_common_task(tmp_path: Path) -> None:
    first, second = evaluation(tmp_path / "a", {0: [1.0]}), evaluation(tmp_path / "b", {1: [1.0]}, planned=2)
    with Library(first, second) as library:
        library.check_comparable()
        assert library.comparison_address == "#/a/compare?other=b"


def test_other_tasks_of_the_same_id_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = evaluation(tmp_path / "a", {0: [1.0]}), tmp_path / "b" / "episodes.jsonl"
    other = attempt(0, 0, 1.0)
    write(second, replace(other, task=replace(other.task, target="5")))
    with pytest.raises(UserError, match="1 of the 1 tasks with the same id .* are different"):
        ask("differences", first, second)
    page = ask("compare", first, second)
    assert page["refusal"].endswith("b/episodes.jsonl: compare runs of the same tasks") and page["rows"] == []
    assert main(["view", str(first), str(second)]) == 2
    assert capfd.readouterr().err.strip().endswith(page["refusal"])
