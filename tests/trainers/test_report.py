"""The report of a run that goes on: what came after the checkpoint is cut, what came before it is all there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_env.episode import Episode
from forge_env.errors import UserError
from forge_env.types import Outcome, Task
from trainers.report import Report

VALUES = {"reward": 0.5, "success": 0.25, "s/step": 2.0, "loss": float("nan")}


@pytest.fixture
def open_report(tmp_path: Path) -> Iterator:
    """Reports on one folder, one after another."""
    opened: list[Report] = []

    def make() -> Report:
        for report in opened:
            report.close()
        opened.append(Report(tmp_path))
        return opened[-1]

    yield make
    opened[-1].close()


def episode(reward: float) -> Episode:
    return Episode(task=Task(prompt=()), turns=(), outcome=Outcome.SCORED, reward=reward, id=f"{reward}")


def write_steps(report: Report, *steps: int) -> None:
    for step in steps:
        report.metrics("train", step, {**VALUES, "reward": step / 10})
        report.point(step, {**VALUES, "reward": step / 10})
        report.episodes("train", [episode(step / 10)])


def steps_in(folder: Path) -> list[tuple[str, int]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(record["phase"], record["step"]) for record in records]


def test_going_back_cuts_what_came_after_and_keeps_the_rest(open_report, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report = open_report()
    report.metrics("warmup", 5, {"loss": 3.0})
    report.episodes("before", [episode(1.0), episode(0.0)])
    write_steps(report, 1, 2)
    mark = json.loads(json.dumps(report.mark()))
    write_steps(report, 3, 4)
    report.episodes("after", [episode(1.0)])
    report.summary({"steps": 4})

    again = open_report()
    again.go_back(mark)
    assert steps_in(tmp_path) == [("warmup", 5), ("train", 1), ("train", 2)]
    assert [e.reward for e in again.evaluation("train").episodes] == [0.1, 0.2]
    assert again.evaluation("before").success_rate == 0.5
    assert not (tmp_path / "episodes" / "after.jsonl").exists() and not (tmp_path / "summary.json").exists()
    assert [(point["step"], point["reward"], point["seconds"]) for point in again.curve] == [
        (1, 0.1, 2.0),
        (2, 0.2, 2.0),
    ]
    write_steps(again, 3)
    assert steps_in(tmp_path)[-1] == ("train", 3) and len(again.curve) == 3
    assert [e.reward for e in again.evaluation("train").episodes] == [0.1, 0.2, 0.3]
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["time"] >= mark["seconds"]  # the run's own time goes on
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2, 3]
    assert [event.step for event in events.Scalars("warmup/loss")] == [5]


def test_a_record_with_a_gap_is_refused_and_left_alone(open_report, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    report = open_report()
    write_steps(report, 1, 2)
    mark = report.mark()
    (tmp_path / "episodes" / "train.jsonl").write_text("")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    write_steps(report, 3)
    (tmp_path / "episodes" / "train.jsonl").unlink()
    with pytest.raises(UserError, match=r"train.jsonl has 0 bytes, and had \d+ when"):
        open_report().go_back(mark)
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before)
    assert steps_in(tmp_path)[-1] == ("train", 3)
