"""The figures and tables of a run, in report.html and as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contrib.viewer.export import write_page
from contrib.viewer.report.run_data import RunData
from contrib.viewer.report.tables import outcomes
from contrib.viewer.report.text import run_text
from contrib.viewer.tests.report.folders import attempt, steps, write_run
from contrib.viewer.tests.runs import data_of
from forge_env.cli.main import main
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome


def page_of(folder: Path) -> Any:
    """What report.html holds of the run."""
    return data_of(write_page(folder))["views"]["0"]


def report_of(folder: Path) -> dict[str, Any]:
    """The figures and tables in report.html; each table by its title."""
    report: dict[str, Any] = page_of(folder)["report"]
    return report | {"tables": {table["title"]: table for table in report["tables"]}}


FACTS = {"algorithm": "grpo", "env": "code_exec", "seed": 3, "steps": 4, "model": "m", "started": "2026-01-31T12:00:00"}


def named(kind: str, rewards: list[float]) -> list[Episode]:
    """An attempt at each task of a kind."""
    made = (attempt(f"{kind} {i}", reward) for i, reward in enumerate(rewards))
    return [replace(episode, task=replace(episode.task, kind=kind)) for episode in made]


def write_kinds(folder: Path, left_out: int = 0) -> Path:
    """A run whose tasks are of four kinds; in training the hard ones are learned, step by step."""
    easy = {"success/easy": 1.0, "episodes/easy": 4.0}
    unchanged = [*named("easy", [1.0] * 6), *named("never", [0.0] * 4), *named("<b>", [0.0, 1.0])]
    return write_run(
        folder,
        metrics=[
            {"phase": "evaluation", "step": 0, "success": 0.5, "success/easy": 1.0, "success_low/easy": 0.6},
            *(step | easy | {"success/hard": step["success"], "episodes/hard": 8.0} for step in steps(10)),
            {"phase": "evaluation", "step": 10, "success": 0.7, "success/easy": 1.0, "success/hard": 0.75},
        ],
        episodes={
            "before": [*unchanged, *named("hard", [0.0] * 12)],
            "after": [*unchanged, *named("hard", [1.0] * 9 + [0.0] * 3)],
        },
        facts=FACTS | {"kinds": {"names": ["<b>", "easy", "hard", "never"], "left_out": left_out}},
        summary={},
    )


def test_success_by_kind_of_task(tmp_path: Path) -> None:
    table = report_of(write_kinds(tmp_path / "run"))["tables"]["Success by kind of task"]
    rows = {row[0]: row[1:] for row in table["rows"]}
    unchanged = ["1 [0.610, 1]", "1 [0.610, 1]", "+0.000 [-0.489, +0.489] (0 / 0)", "1 to 1", "1 to 1"]
    assert rows["easy"] == ["solved before training", "6", *unchanged]
    assert rows["hard"][:2] == ["better", "12"] and rows["hard"][-2:] == ["0.100 to 1", "0 to 0.750"]
    assert re.fullmatch(r"\+0\.750 \[\+0\.\d+, \+0\.\d+\] \(9 / 0\)", rows["hard"][4])
    [note] = table["notes"]
    assert {row[0]: row[1] for row in table["rows"]} | {"easy": "", "hard": ""} == {
        "<b>": "no change shown", "easy": "", "hard": "", "never": "never solved"
    }  # fmt: skip
    assert "1 of 4 kinds solved before training" in note and "1 of 4 kinds better" in note
    assert "of the difference is without 0, both corrected for 4 kinds by Holm's method." in note
    assert "counted together" not in note


def test_the_parts_of_the_reward_have_columns(tmp_path: Path) -> None:
    """A column of each table, and a word about the episodes that lack one."""

    def of_parts(right: float) -> list[Episode]:
        made = [*named("easy", [right] * 4), *named("hard", [0.0] * 4)]
        parts = [{"form": 0.5, "right": right}] * 4 + [{"form": 1.0}] * 4
        return [replace(episode, rewards=of) for episode, of in zip(made, parts, strict=True)]

    figures = {"reward/form/mean": 0.5, "reward/form/std": 0.1, "reward/right/mean": 0.25}
    counts = {"episodes": 8.0, "reward/form/episodes": 8.0, "reward/right/episodes": 4.0}
    folder = write_run(
        tmp_path / "run",
        metrics=[step | figures | counts for step in steps(4)],
        episodes={"before": of_parts(0.0), "after": of_parts(1.0)},
        facts=FACTS | {"kinds": {"names": ["easy", "hard"], "left_out": 0}},
        summary={},
    )
    report = report_of(folder)
    parts = report["tables"]["Parts of the reward"]
    assert parts["columns"] == [["evaluated", ""], ["form", "num"], ["right", "num"]]
    assert parts["rows"][0] == ["before training", "0.750", "0.000 (4 of 8 episodes)"]
    assert parts["notes"][1:] == ["In 4 of 4 steps of the training some episodes lack right."]
    rows = report["tables"]["Parts of the reward by kind of task, before to after"]["rows"]
    assert rows == [["easy", "0.500 to 0.500", "0 to 1"], ["hard", "1 to 1", "– to –"]]
    assert "the mean reward by +0.500" in report["change"]
    alone = [step | {"reward/right/mean": step["reward"]} for step in steps(4)]
    folder = write_run(tmp_path / "alone", metrics=alone, facts=FACTS, summary={})
    assert "Parts of the reward" not in report_of(folder)["tables"], "the part is the reward"


def test_kinds_without_figures_are_named_as_a_number(tmp_path: Path) -> None:
    note = report_of(write_kinds(tmp_path / "run", left_out=9))["tables"]["Success by kind of task"]["notes"][-1]
    assert "The tasks have 13 kinds: the 4 with the most tasks have figures of their own, the other 9 are" in note


def test_a_run_that_goes_on_has_the_kinds_of_its_training(tmp_path: Path) -> None:
    metrics = [step | {"success/easy": 0.5, "episodes/easy": 4.0} for step in steps(3)]
    for name, facts, kinds in (
        ("run", {"kinds": {"names": ["easy", "unseen"], "left_out": 0}}, [["easy", "0.500 to 0.500"]]),
        ("unseen", {"kinds": {"names": ["unseen"], "left_out": 0}}, None),
        ("none", {}, None),
    ):
        tables = report_of(write_run(tmp_path / name, metrics=metrics, facts=FACTS | facts))["tables"]
        table = tables.get("Success by kind of task")
        assert (table and [[row[0], row[6]] for row in table["rows"]]) == kinds


def test_a_complete_run(tmp_path: Path) -> None:
    before = [attempt(f"task {i}", float(i < 2), output="1", seconds=0.5) for i in range(10)]
    after = [attempt(f"task {i}", float(i >= 1), output="1") for i in range(10)]
    slow = attempt("task 9", None, number=2, error="services were slow", outcome=Outcome.TIMEOUT)
    startup = {"first_step": 80.0, "model": [2.0, 4.0], "engine: load: compile": [None, 9.0]}
    metrics = [*steps(4), {"phase": "system", "step": 5, "time": 5.0, "run/memory_bytes": 3 * 2**30}]
    folder = write_run(
        tmp_path / "run",
        metrics=metrics,
        episodes={
            "before": before,
            "evaluation_000002": after[:5],
            "after": [*after, slow, attempt("task 8", None, number=3, error="the sandbox died")],
            "tool_off": [attempt("task 0", 0.0)],
            "train": [*before, attempt("task 1", None, number=5, error="the sandbox <died>")],
        },
        facts=FACTS,
        summary={"total_seconds": 3725.0, "startup": startup},
        console=[{"time": 1.0, "kind": "warning", "text": "warning: the bound was passed"}],
        config="training:\n  steps: 4\n",
    )
    page, report = page_of(folder), report_of(folder)
    figures = {label: figure for label, figure, _ in report["figures"]}
    assert (figures["Duration"], figures["Memory of the run"]) == ("1 h 2 min", "3 GiB")
    assert report["why_incomplete"] == ""
    evaluations = {e["title"]: (e["timeouts"], e["faults"]) for e in page["overview"]["evaluations"]}
    assert evaluations == {
        "before training": (0, 0),
        "after step 2": (0, 0),
        "after training": (1, 1),
        "before, tools switched off": (0, 0),
    }
    assert report["change"].startswith("on the same 10 tasks, training changed success by +0.6")
    tables = {title: table["rows"] for title, table in report["tables"].items()}
    assert tables["Slowest tools"] == [["python", "10", "500 ms", "500 ms", "500 ms", "none"]]
    assert tables["Warnings"] == [["1.0 s", "warning: the bound was passed"]]
    assert tables["Startup"] == [["model", "2.0 s", "4.0 s"], ["engine: load: compile", "", "9.0 s"]]
    assert [(row[0], *row[2:]) for row in tables["Outcomes"]] == [
        ("scored", "10", "26"),
        ("timeout", "0", "1"),
        ("infra_fault", "1", "1"),
    ]
    assert [sample["change"] for sample in report["samples"]] == [
        "solved since training",
        "no longer solved",
        "solved before and after",
        "solved since training",
    ]
    assert page["details"].keys() >= {sample[when] for sample in report["samples"] for when in ("before", "after")}
    assert page["overview"]["documents"]["config.yaml"] == "training:\n  steps: 4\n"


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    for unknown in (None, {}, {"first_step": None, "model": [0.0, 1.0]}, "damaged"):
        report = report_of(write_run(tmp_path / f"{unknown}"[:5], facts=FACTS | {"startup": unknown}))
        assert report["why_incomplete"] == "it was killed, or is still running" and not report["tables"]


def test_a_damaged_run_has_its_figures_without_the_damaged_ones(tmp_path: Path) -> None:
    startup = {"first_step": 2.0, "a": 3, "b": [1.0]}
    damage = {"steps": "many", "total_seconds": "long", "held_out_loss_after": True, "startup": startup}
    folder = write_run(tmp_path / "run", metrics=steps(3), facts=FACTS, summary=damage)
    page = page_of(folder)
    assert len(page["curves"]["train"]["step"]) == 3
    assert "3" in {figure for label, figure, *_ in page["report"]["figures"] if label == "Optimizer steps"}
    assert "Optimizer steps: 3\n" in run_text(folder)


def test_what_a_kill_left_half_written_is_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", metrics=steps(3), episodes={"after": [attempt("a", 1.0)]}, facts=FACTS)
    for name in ("metrics.jsonl", "console.jsonl", "episodes/after.jsonl", "run.json"):
        with (folder / name).open("a") as file:
            file.write('{"phase": "train", "st')
    page = page_of(folder)
    assert page["curves"]["train"]["step"] == [1, 2, 3] and page["overview"]["env"] == ""
    assert [evaluation["title"] for evaluation in page["overview"]["evaluations"]] == ["after training"]
    assert [sample["after"] for sample in page["report"]["samples"]] == ["after/0"]


def test_the_page_of_a_long_run_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [attempt(f"t{i}", 1.0, answer="\ud800" + "x" * 1_000_000, output="1") for i in range(4)]
    short = [attempt(f"t{i}", 1.0, output="1") for i in range(200)]
    folder = write_run(
        tmp_path / "run", metrics=steps(8_000), episodes={"before": long, "after": long, "train": short}, facts=FACTS
    )
    line = len(short[-1].to_json()) + 1
    monkeypatch.setattr("contrib.viewer.report.run_data.MAX_BYTES", 10 * line + line // 2)
    page = page_of(folder)
    assert (folder / "report.html").stat().st_size < 5_000_000
    assert [row["task"] for row in page["rows"]] == [f"t{i}" for i in range(190, 200)]
    assert page["overview"]["cut"] == ["after", "before", "train"]
    notes = {table["title"]: table["notes"] for table in page["report"]["tables"]}
    assert notes["Slowest tools"] == ["Of the last 10 episodes of the training."]
    assert not (folder / ".view").exists(), "what is read in part is not kept"


def test_the_command_writes_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", metrics=steps(2), facts=FACTS)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"wrote {folder / 'report.html'}\n"
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(folder / "report.html")}
    assert {path.name for path in folder.iterdir()} >= {"report.html"} and not list(folder.glob("*.new"))
    assert main(["report", str(tmp_path)]) == 2
    assert "is not the folder of a training run: it has no metrics.jsonl" in capsys.readouterr().err
    with pytest.raises(UserError):
        write_page(tmp_path / "nowhere")


def test_the_state_of_a_run_is_printed_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(folder: Path) -> list[str]:
        assert main(["report", str(folder), "--text"]) == 0
        return capsys.readouterr().out.splitlines()

    finding = {"step": 3, "last_step": 9, "measured": "12 of 12", "cause": "too hard", "settings": "--env x"}
    held_out = {
        name: [attempt(f"{i}", float(i < solved)) for i in range(4)]
        for name, solved in {"before": 1, "evaluation_4": 3, "after": 2, "after.greedy": 4}.items()
    }
    facts, metrics = FACTS | {"findings": [finding]}, steps(10, kl=0.5)
    metrics[9] |= {"kl": None, "loss": "odd"}
    begun = told(write_run(tmp_path / "begun", facts=FACTS))
    assert begun == ["grpo on code_exec, seed 3: not complete: it was killed, or is still running"]
    done = told(write_run(tmp_path / "done", metrics=metrics, episodes=held_out, facts=facts, summary=facts))
    rows = {line.split("  ")[0]: line.split()[-2:] for line in done}
    assert done[0] == "grpo on code_exec, seed 3: complete" and "Reward, last step: 1" in done
    assert done[done.index("Steps:") + 1].split()[-6:] == ["1", "to", "2", "9", "to", "10"]
    assert (rows["reward"], rows["kl"], rows["loss"]) == (["0.150", "0.950"], ["0.500", "0.500"], ["0.750", "0.111"])
    assert "entropy" not in rows
    names = ("first (before training): 0.250 [", "best (after step 4): 0.750 [", "last (after training): 0.500 [")
    assert [line for line, name in zip(done[done.index("Held-out success:") + 1 :], names, strict=False)] == [
        line for line in done if line.startswith(names)
    ]
    assert "step 3 to 9: 12 of 12. Likely cause: too hard. Try: --env x." in done
    console = [{"time": 2.0, "kind": "error", "text": "the trainer process died"}]
    assert (
        "not complete: the trainer process died" in told(write_run(tmp_path / "end", facts=FACTS, console=console))[0]
    )
    assert main(["report", str(tmp_path), "--text"]) == 2
    assert "is not the folder of a training run" in capsys.readouterr().err


def test_a_skipped_step_is_counted_by_its_reason(tmp_path: Path) -> None:
    """A step whose prompts leave no token to sample has no gradient that could be infinite."""
    records = [{"step": 1.0, "skipped": 1.0, "tokens": 0.0}, {"step": 2.0, "skipped": 1.0, "tokens": 9.0}]
    records += [{"step": 3.0, "skipped": 1.0, "tokens": 0.0}, {"step": 4.0, "skipped": 0.0, "tokens": 9.0}]
    parts: dict[str, Any] = {"facts": {}, "summary": None, "console": (), "evaluations": {}}
    run = RunData(phases={"train": records}, training_episodes=(), has_all_trained=True, **parts)
    table = outcomes(run)
    assert table is not None
    assert [(row[1].split(" ")[2], row[2]) for row in table.rows] == [("whose", "1"), ("without", "2")]
