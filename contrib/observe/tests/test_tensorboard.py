"""TensorBoard's own reader finds what was logged, and after a resume each step once."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import pytest

from contrib.observe.tensorboard import TensorBoard
from forge_env.records.sinks import Record
from trainers.metrics.report import Report
from trainers.metrics.settings import MetricsConfig


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_scalars_are_read_back(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path, {})
    for step in (1, 2):
        sink.log("train", step, {"loss": step / 2, "bad": math.nan})
    sink.log("system", 30, {"cpu_percent": 50.0})
    assert scalars(tmp_path, "train/loss") == [(1, 0.5), (2, 1.0)]  # while the run goes on too
    sink.close()
    assert scalars(tmp_path, "system/cpu_percent") == [(30, 50.0)]
    assert all(math.isnan(value) for _, value in scalars(tmp_path, "train/bad"))


def test_going_back_forgets_later_records(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path, {})
    for step in (1, 2, 3):
        first.log("train", step, {"loss": float(step)})
    first.close()
    again = TensorBoard(tmp_path, {})
    again.go_back([Record("train", 1, {"loss": 1.0})])
    again.log("train", 2, {"loss": 20.0})
    again.close()
    assert scalars(tmp_path, "train/loss") == [(1, 1.0), (2, 20.0)]


def test_a_run_writes_its_files_by_default(tmp_path: Path) -> None:
    with Report(tmp_path, {"metrics": asdict(MetricsConfig(sinks=["tensorboard"]))}) as report:
        report.metrics("train", 1, {"loss": 0.5})
    assert scalars(tmp_path, "train/loss") == [(1, 0.5)], "named twice, it is there once"
