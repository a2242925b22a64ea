"""The report of a run: all that it writes; and of one that goes on, what came after the checkpoint is cut."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome, Task
from tests.trainers import episodes
from tests.trainers.episodes import group, turn
from trainers.losses import SFTLoss
from trainers.metrics import report as report_module
from trainers.metrics.observer import Observer
from trainers.metrics.report import RecordThread, Report, Trained
from trainers.metrics.settings import MetricsConfig
from trainers.objective.advantages import centred
from trainers.objective.objective import Objective

VALUES = {"reward": 0.5, "success": 0.25, "s/step": 2.0, "loss": float("nan")}


@pytest.fixture
def open_report(tmp_path: Path) -> Iterator:
    """Reports on one folder, one after another."""
    opened: list[Report] = []

    def make() -> Report:
        for report in opened:
            report.close()
        opened.append(Report(tmp_path, {"metrics": asdict(MetricsConfig())}))
        return opened[-1]

    yield make
    opened[-1].close()


def episode(reward: float) -> Episode:
    return Episode(task=Task(prompt=()), turns=(), outcome=Outcome.SCORED, reward=reward, id=f"{reward}")


def write_steps(report: Report, *steps: int) -> None:
    for step in steps:
        report.add_trained(step, [(episode(step / 10), 0.5)])
        report.metrics("train", step, {**VALUES, "reward": step / 10})
        report.point(step, {**VALUES, "reward": step / 10})
        report.episodes("train", [episode(step / 10)])


def steps_in(folder: Path) -> list[tuple[str, int]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(record["phase"], record["step"]) for record in records]


def trained_steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "trained.jsonl").read_text().splitlines()]


def test_going_back_cuts_later_records_only(open_report, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    report = open_report()
    report.metrics("warmup", 5, {"loss": 3.0})
    report.episodes("before", [episode(1.0), episode(0.0)])
    write_steps(report, 1, 2)
    mark = json.loads(json.dumps(report.mark()))
    write_steps(report, 3, 4)
    report.episodes("after", [episode(1.0)])
    report.summary({"steps": 4})
    (tmp_path / "report.html").write_text("of the run that was complete")

    again = open_report()
    again.go_back(mark)
    assert steps_in(tmp_path) == [("warmup", 5), ("train", 1), ("train", 2)]
    train, before = again.evaluation("train"), again.evaluation("before")
    assert train is not None and [e.reward for e in train.episodes] == [0.1, 0.2]
    assert before is not None and before.success_rate == 0.5 and again.evaluation("tool_off") is None
    assert trained_steps(tmp_path) == [1, 2]
    assert not (tmp_path / "episodes" / "after.jsonl").exists() and not (tmp_path / "summary.json").exists()
    assert not (tmp_path / "report.html").exists()
    assert [(point["step"], point["reward"], point["seconds"]) for point in again.curve] == [
        (1, 0.1, 2.0),
        (2, 0.2, 2.0),
    ]
    write_steps(again, 3)
    again.mark()  # what was to be written is on the disk
    assert steps_in(tmp_path)[-1] == ("train", 3) and len(again.curve) == 3
    assert trained_steps(tmp_path) == [1, 2, 3]
    train = again.evaluation("train")
    assert train is not None and [e.reward for e in train.episodes] == [0.1, 0.2, 0.3]
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["time"] >= mark["seconds"]  # the run's own time goes on


def test_a_mark_waits_for_what_is_still_to_be_written(open_report, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    report, disk = open_report(), threading.Event()
    report._record.write(disk.wait)
    report.episodes("train", [episode(0.5)])
    threading.Timer(0.1, disk.set).start()
    mark = report.mark()
    assert mark["bytes"]["episodes/train.jsonl"] == (tmp_path / "episodes" / "train.jsonl").stat().st_size > 0


def test_a_record_with_a_gap_is_refused_and_left_alone(open_report, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    report = open_report()
    write_steps(report, 1, 2)
    mark = report.mark()
    (tmp_path / "episodes" / "train.jsonl").write_text("")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    write_steps(report, 3)
    report.mark()  # what was to be written is on the disk
    (tmp_path / "episodes" / "train.jsonl").unlink()
    with pytest.raises(UserError, match=r"train.jsonl has 0 bytes, and had \d+ when"):
        open_report().go_back(mark)
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before)
    assert steps_in(tmp_path)[-1] == ("train", 3)


def test_all_sinks_are_told_and_all_go_back(tmp_path: Path) -> None:
    """The run's own and a sink of the user's."""
    (tmp_path / "mine.py").write_text(MINE)
    settings = {"metrics": asdict(MetricsConfig(tensorboard=False, sinks=[f"{tmp_path / 'mine.py'}:Mine"]))}
    folder = tmp_path / "run"
    report = Report(folder, settings)
    write_steps(report, 1, 2)
    mark = report.mark()
    write_steps(report, 3)
    report.close()
    again = Report(folder, settings)
    again.go_back(mark)
    write_steps(again, 3)
    again.close()
    assert json.loads((folder / "mine.json").read_text()) == [["train", 1], ["train", 2], ["train", 3]]


MINE = """
import json

class Mine:
    def __init__(self, folder, config):
        self.path, self.found = folder / "mine.json", []

    def log(self, phase, step, values):
        self.found.append((phase, step))

    def go_back(self, records):
        self.found = [(record.phase, record.step) for record in records]

    def close(self):
        self.path.write_text(json.dumps(self.found))
"""


class Seen(Observer):
    """Writes down what it hears."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.heard: list[str] = []

    def begin(self, run: object) -> None:
        self.heard.append(f"begin {run}")

    def stop(self) -> None:
        self.heard.append("stop")

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        self.heard.append(f"{phase} {step}")

    @contextmanager
    def span(self, track: str, name: str, details: Mapping[str, Any]) -> Iterator[None]:
        self.heard.append(f"{track}: {name} {details}")
        yield
        self.heard.append(f"{name} is over")

    def close(self) -> None:
        self.heard.append("close")


def test_an_observer_sees_the_run_and_not_only_its_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Named:
        def load(self) -> type[Seen]:
            return Seen

    monkeypatch.setattr(report_module, "rows", lambda table: {"seen": Named()} if table == "observers" else {})
    with Report(tmp_path) as report:
        report.begin("a run")
        with report.span("weights", "pull", version=3), report.span("weights", "proof"):
            report.metrics("train", 1, VALUES)
            [(shown, since)] = report.spans.under_way
            assert shown == "weights: 2" and since <= time.perf_counter()
        assert report.spans.under_way == []
    [seen] = report.observers
    assert isinstance(seen, Seen)
    begun = ["begin a run", "weights: pull {'version': 3}", "weights: proof {}", "train 1"]
    assert seen.heard == [*begun, "proof is over", "pull is over", "stop", "close"]


def test_on_a_full_disk_the_run_ends_and_its_plots_do_not_end_it(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("only root can mount a disk of its own here")
    try:
        with (
            pytest.raises(OSError, match="No space left"),
            Report(disk, {"metrics": asdict(MetricsConfig())}) as report,
        ):
            for step in range(100_000):
                report.metrics("train", step, VALUES)
        assert (disk / "metrics.jsonl").stat().st_size > 2**17
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# ---- the thread that writes ----


def test_everything_is_written_in_order_in_another_thread() -> None:
    written: list[tuple[int, bool]] = []
    thread = RecordThread()
    for number in range(5):
        thread.write(lambda n: written.append((n, threading.current_thread() is threading.main_thread())), number)
    thread.flush()
    assert written == [(number, False) for number in range(5)]
    thread.close()


async def test_an_error_ends_writing_and_the_next_call_raises_it(tmp_path: Path) -> None:
    written: list[int] = []
    thread = RecordThread()
    await thread.wait_for_writes()
    thread.write((tmp_path / "missing" / "file").write_text, "")
    with pytest.raises(FileNotFoundError):
        await thread.wait_for_writes()
    for call in (lambda: thread.write(written.append, 1), thread.flush, thread.close):
        with pytest.raises(FileNotFoundError):
            call()
    assert not written


# ---- what was trained ----


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        ("episode", {"0": [0.5, 0.5], "1": [-0.5]}),
        # Turn 1: returns 2 and 1; turn 2 has no sibling to compare with.
        ("turn", {"0": [0.5, 0.0], "1": [-0.5]}),
    ],
)
def test_advantages_are_recorded_as_in_the_samples(
    tmp_path: Path, credit: str, expected: dict[str, list[float]]
) -> None:
    made = group(
        episodes.episode(turn(5, 6, reward=0.5), turn(7, 8, 9), reward=2.0), episodes.episode(turn(5, 6), reward=1.0)
    )
    objective = Objective(loss=SFTLoss(), advantages=centred, group_size=2, credit=credit)  # type: ignore[arg-type]
    samples = objective.samples([made])
    trained = Trained(tmp_path / "trained.jsonl")
    trained.write(3, zip(made.valid, (sample.advantage for sample in samples), strict=True))
    assert trained.size() == (tmp_path / "trained.jsonl").stat().st_size
    trained.close()
    lines = [json.loads(line) for line in (tmp_path / "trained.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 3]
    assert {line["episode"]: line["advantages"] for line in lines} == expected
