"""The console: what is printed, and what is kept of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from trainers.metrics.console import RunConsole


def test_lines_are_kept_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = RunConsole(tmp_path / "console.jsonl")
    console.say("a line")
    console.say("warning: a bound was passed")
    console.warn("a process died; another one is started")
    console.keep("error", "the disk is full")
    console.close()
    console.say("said after the end")  # is printed all the same
    kept = [json.loads(line) for line in (tmp_path / "console.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["text"]) for line in kept] == [
        ("said", "a line"),
        ("warning", "warning: a bound was passed"),
        ("warning", "a process died; another one is started"),
        ("error", "the disk is full"),
    ]
    printed = capsys.readouterr().out
    assert "a line" in printed and "another one" in printed and "the disk is full" not in printed
    assert "said after the end" in printed


def test_brackets_are_printed_and_kept_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = RunConsole(tmp_path / "console.jsonl")
    console.say("the tool [red] and [/odd] raised")
    console.samples("the first tasks", [])
    console.close()
    texts = [json.loads(line)["text"] for line in (tmp_path / "console.jsonl").read_text().splitlines()]
    assert texts == ["the tool [red] and [/odd] raised", "the first tasks"], "the report shows these"
    assert [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()] == texts


def test_a_phase_that_is_followed_shows_its_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = RunConsole(tmp_path / "console.jsonl")
    console.follow("train", title="grpo", total=2, names=("reward", "probe"), since=time.perf_counter())
    console.log("train", 1, {"reward": 0.25, "probe": 0.5, "loss": 3.0})
    console.log("other", 1, {"reward": 9.0})
    console.log("train", 2, {"reward": 1234.0, "loss": 3.0})
    console.close()
    first, last = capsys.readouterr().out.splitlines()
    assert "grpo 1/2  reward 0.250  probe 0.500  " in first and first.endswith("s left")
    assert "grpo 2/2  reward 1,234  probe 0.500  0 s left" in last  # a step need not have every value
