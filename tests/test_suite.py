"""Every run of the tests: the same examples, nothing in the home folder, a second try for a failed test."""

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
    assert done.returncode == 70, done.stdout + done.stderr
    assert "error: the tests have written ~/left.txt" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 passed in ") and done.stderr == ""
    assert not (home / "left.txt").exists(), "each run has a home of its own"


@pytest.mark.parametrize("second_try", ["passes", "fails"])
def test_a_failed_test_runs_once_more_and_is_named_flaky_if_it_passes_then(second_try: str, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ncache_dir = cache\naddopts = --strict-config\n")
    (tmp_path / "test_two.py").write_text(
        "from pathlib import Path\n"
        "def test_sound():\n    with Path('runs').open('a') as file:\n        file.write('sound ')\n"
        "def test_by_chance():\n"
        "    first = not Path('tried').exists()\n"
        "    Path('tried').touch()\n"
        f"    assert not first and {second_try == 'passes'}\n"
    )
    command = [sys.executable, "-m", "tests.once_more", "-q"]
    environ = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environ)
    assert (tmp_path / "runs").read_text() == "sound ", "what has passed is not run again"
    flaky = done.stdout.splitlines()[-1] == "flaky: test_two.py::test_by_chance"
    assert (done.returncode, flaky) == ((0, True) if second_try == "passes" else (1, False)), done.stdout + done.stderr
