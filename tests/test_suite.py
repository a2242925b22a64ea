"""What every run of the tests keeps to: the same examples, and nothing written to the home folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]


def drawn() -> list[int]:
    found: list[int] = []

    @given(st.integers())
    def collect(number: int) -> None:
        found.append(number)

    collect()
    return found


def test_every_run_draws_the_same_examples_and_keeps_none() -> None:
    if not settings.default.derandomize:
        pytest.skip("the profile nightly draws new ones")
    assert drawn() == drawn() and len(set(drawn())) > 10
    assert settings.default.database is None


def test_an_example_may_take_any_time() -> None:
    assert settings.default.deadline is None and HealthCheck.too_slow in settings.default.suppress_health_check


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_that_writes_to_the_home_folder_fails_and_ends_with_its_summary(workers: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "tests/home_writer.py"]
    home = Path.home()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 1 and "error: the tests have written ~/left.txt" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 passed in ") and done.stderr == ""
    assert not (home / "left.txt").exists(), "each run has a home of its own"
