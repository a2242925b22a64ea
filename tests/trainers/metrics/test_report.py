"""The report of a run: all that it writes; and of one that goes on, what came after the checkpoint is cut."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome, Task
from trainers.metrics.report import Report
from trainers.metrics.settings import MetricsConfig
from trainers.metrics.system import SystemMetrics

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
        report.trained(step, [(episode(step / 10), 0.5)])
        report.metrics("train", step, {**VALUES, "reward": step / 10})
        report.point(step, {**VALUES, "reward": step / 10})
        report.episodes("train", [episode(step / 10)])


def steps_in(folder: Path) -> list[tuple[str, int]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(record["phase"], record["step"]) for record in records]


def trained_steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "trained.jsonl").read_text().splitlines()]


def test_going_back_cuts_later_records_only(open_report, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2, 3]
    assert [event.step for event in events.Scalars("warmup/loss")] == [5]


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
    """The run's own and a sink of the user's; TensorBoard is above, and W&B in tests/trainers/metrics."""
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


def test_peaks_cover_a_resumed_run_from_its_start(open_report, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    class Measured(SystemMetrics):
        def __init__(self, *values: float) -> None:
            self.values, self.is_done = list(values), threading.Event()

        def measure(self) -> dict[str, float]:
            if len(self.values) == 1:
                self.is_done.set()
            value = self.values.pop(0) if len(self.values) > 1 else self.values[0]
            return {"run/memory_bytes": value, "gpu/0/power_watts": 2 * value, "gpu/0/memory_total_bytes": 9.0}

        def close(self) -> None:
            pass

    def measured(report: Report, *values: float) -> None:
        metrics = Measured(0.0, *values)  # the first is not recorded
        report.measure_system(metrics, 0.001)
        assert metrics.is_done.wait(60)
        report.stop_measuring()

    report = open_report()
    measured(report, 3.0, 8.0, 5.0)
    mark = report.mark()
    again = open_report()
    again.go_back(mark)
    measured(again, 4.0)
    assert again.peaks() == {"peak_memory_bytes": 8.0, "peak_gpu/0/power_watts": 16.0}
    assert {phase for phase, _ in steps_in(tmp_path)} == {"system"}


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
