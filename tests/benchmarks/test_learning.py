"""The learning benchmark on CPU: stopped, it goes on where its run had a checkpoint, and counts the seconds of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.test_resume import _wait
from tests.system.test_runs import start  # noqa: F401
from trainers.checkpoints import steps_of

SMALL = (
    "--tasks", "128", "--dataset.held_out", "16", "--checkpoint.interval", "2", "--warmup.steps", "4",
    "--warmup.demonstrations", "32", "--warmup.learning_rate_warmup", "4", "--warmup.probe_tasks", "8",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_is_stopped_goes_on(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    output, figures = tmp_path / "learning", tmp_path / "figures.json"
    asked = ("code_exec", "--cpu", "--output", str(output), "--json", str(figures), *SMALL)

    def begin(*more: str) -> Any:
        return start("benchmarks.gpu.learning", *asked, *more)

    def found(calls: int) -> Any:
        result = json.loads(figures.read_text())
        assert len(result["seconds_of_calls"]) == calls
        assert result["seconds"] == pytest.approx(sum(result["seconds_of_calls"]))
        return result

    early = begin("--minutes", "0.01")  # long before a checkpoint
    assert "the same command starts again" in early.end() and early.process.returncode == 0
    early.assert_nothing_left()
    assert not found(1)["complete"]

    stopped = begin()
    _wait(lambda: steps_of(output / "run"), stopped)
    stopped.process.terminate()
    said = stopped.end()
    assert "the same command goes on after step" in said and stopped.process.returncode == 0, said
    stopped.assert_nothing_left()
    partial = found(2)
    assert not partial["complete"] and "success_after" not in partial
    assert len(partial["curve"]["held_out"]) >= 1 and partial["curve"]["warmup"][-1]["step"] == 4

    last = begin()
    said = last.end()
    assert "grpo goes on after step" in said and last.process.returncode == 0, said
    last.assert_nothing_left()
    whole = found(3)
    assert whole["complete"] and whole["steps"] == 20
    assert [point["step"] for point in whole["curve"]["train"]] == list(range(1, 21))
    held_out = {point["step"]: point["success"] for point in whole["curve"]["held_out"]}
    assert list(held_out) == [0, 10, 20]
    assert held_out[0] == whole["success_before"] and held_out[20] == whole["success_after"]
    assert whole["gain"] == whole["success_after"] - whole["success_before"]
    assert figures.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

    over = begin()
    over.end()
    assert over.process.returncode == 0 and found(3) == whole, "there is nothing left to run"
    other = begin("--seed", "1")
    assert "give the same again, or another folder" in other.end() and other.process.returncode == 2
