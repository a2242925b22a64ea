"""The first seconds of a run's console, before its packages are there."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_until
from trainers.metrics import heartbeat

ROOT = Path(__file__).parents[3]


def test_a_run_speaks_before_its_packages_are_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(heartbeat, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(heartbeat, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat, "_began", 0.0)
    heartbeat.announce(["python", "-m", "trainers.grpo", "--steps", "3"])
    first = capsys.readouterr().out
    assert first.endswith(" s  trainers.grpo: importing its packages and checking the settings\n")
    wait_until(lambda: "importing packages" in capsys.readouterr().out, "it goes on")
    heartbeat.quiet()
    heartbeat.quiet()  # nothing is left to end
    assert 0 < heartbeat.command_began() < time.time() - float(first.split()[0]) + 0.2


@pytest.mark.parametrize("options", [["trainers.grpo", "--dry-run"], ["trainers.metrics.heartbeat"], ["pytest"]])
def test_other_commands_begin_with_their_own_words(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat.announce(["python", "-m", *options])
    heartbeat.quiet()
    assert capsys.readouterr().out == ""


def test_the_first_line_needs_no_torch() -> None:
    program = "import sys; sys.argv = ['-m']; sys.orig_argv = ['-m', 'trainers.sft']; import trainers; "
    done = subprocess.run(
        [sys.executable, "-c", f"{program}print({{'torch', 'vllm', 'yaml'}} & sys.modules.keys())"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert "trainers.sft: importing" in first and second == "set()"


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("python -m trainers.grpo --steps 3", "trainers.grpo"),
        ("python -u -m trainers.sft", "trainers.sft"),
        ("python -m forge_env.trainers.grpo", "forge_env.trainers.grpo"),
        ("python -m trainers.metrics.heartbeat", ""),
        ("python -m mine --env trainers.grpo", ""),
        ("python mine.py", ""),
    ],
)
def test_only_a_command_that_starts_a_trainer_is_one(command: str, module: str) -> None:
    assert heartbeat.trainer_of(command.split()) == module
