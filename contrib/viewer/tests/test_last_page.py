"""The page that a run writes at its end, complete or not."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from contrib.viewer.tests.runs import data_of
from forge_env.core.errors import ServiceError
from forge_env.evaluation.evaluate import Evaluation
from tests.trainers.metrics.test_report import episode, steps_in, write_steps
from trainers.metrics.report import Report
from trainers.metrics.settings import MetricsConfig


def page_of(folder: Path) -> dict[str, Any]:
    """What report.html shows of the run."""
    data = data_of(folder / "report.html")
    return data["runs"][0] | data["views"]["0"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ServiceError("the trainer process died"), "the trainer process died"),
        (asyncio.CancelledError(), "it was stopped"),
        (ExceptionGroup("", [ValueError("a bug")]), "ValueError: a bug"),
    ],
)
def test_a_run_that_fails_has_a_page_that_says_why(tmp_path: Path, error: BaseException, words: str) -> None:
    with pytest.raises(type(error)), Report(tmp_path, {"metrics": asdict(MetricsConfig())}) as report:
        write_steps(report, 1, 2)
        raise error
    assert page_of(tmp_path)["report"]["why_incomplete"] == words


def test_a_run_that_is_complete_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Report(tmp_path) as report:
        write_steps(report, 1, 2)
        report.metrics("evaluation", 2, Evaluation(episodes=(episode(1.0), replace(episode(0.0), id="x"))).metrics())
        report.metrics("evaluation", 3, Evaluation(episodes=()).metrics())  # nothing was measured
        report.summary({"steps": 2})
    page = page_of(tmp_path)
    assert page["complete"] and page["curves"]["evaluation"]["values"]["success"][0] == 0.5
    assert f"report {tmp_path / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
    assert steps_in(tmp_path)[-1] == ("evaluation", 3)


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.html").mkdir()
    with Report(tmp_path) as report:
        write_steps(report, 1)
    reason = f"{tmp_path / 'report.html'} cannot be written: Is a directory"
    assert f"warning: report.html was not written: {reason}" in capsys.readouterr().out
