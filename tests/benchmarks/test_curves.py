"""Several runs of the learning benchmark become one file of figures and one picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import curves
from benchmarks.gpu.learning import measured


def result(folder: Path, seed: int, *, gpus: str) -> Path:
    """The file of a run that was ended in its 41st step, while it wrote a line."""
    run = folder / str(seed)
    run.mkdir()
    records = [
        {"phase": "warmup", "step": 1, "time": 8.0, "loss": 2.0},
        {"phase": "warmup", "step": 2, "time": 9.0, "loss": 1.0, "success": 0.1, "success/buy": 0.0},
        {"phase": "evaluation", "step": 0, "time": 10.0, "success": 0.2, "success/buy": 0.1},
        *(
            {"phase": "train", "step": step, "time": 10.0 + step, "s/step": 1.0, "success": 0.5 + (step > 20) / 4}
            for step in range(1, 41)
        ),
        {"phase": "evaluation", "step": 40, "time": 51.0, "success": 0.8, "success/buy": 0.7},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records) + '{"phase": "tra'
    (run / "metrics.jsonl").write_text(text)
    whole = {"machine": {"gpus": [gpus]}, "settings": {"env": "tool_api"}, "seconds": 52.0, **measured(run)}
    path = folder / f"{seed}.json"
    path.write_text(json.dumps(whole))
    return path


@pytest.mark.parametrize("second", ["H100", "H200"])
def test_figures_and_a_picture_of_runs_that_were_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    runs = [result(tmp_path, 0, gpus="H100"), result(tmp_path, 1, gpus=second)]
    written = tmp_path / "both.json"
    monkeypatch.setattr(sys, "argv", ["curves", *map(str, runs), "--what", "two runs", "--json", str(written)])
    curves.main()
    figures = json.loads(written.read_text())
    first = figures["runs"]["0"]
    assert first["complete"] is False and first["grpo_steps"] == 40 and first["seconds_until_grpo"] == 10.0
    assert [(part["step"], part["success"]) for part in first["means_of_20_steps"]] == [(20, 0.5), (40, 0.75)]
    assert [point["success/buy"] for point in first["held_out"]] == [0.1, 0.7]
    assert [point["step"] for point in first["warmup_probes"]] == [2]
    places = [figures] if second == "H100" else figures["runs"].values()  # machines that differ are said of each run
    assert [place["machine"]["gpus"] for place in places] == [["H100"], [second]][: len(places)]
    assert (tmp_path / "both.png").stat().st_size > 1000


def test_a_run_that_was_not_measured_yet_has_an_empty_panel(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    curves.draw({"ended at its start": measured(tmp_path)}, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000
