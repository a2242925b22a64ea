"""The record of a start: what a run says of the time between the command and its first optimizer step."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from forge_env.runtime.process.children import process_began
from trainers.metrics.startup import Startup

COMMAND = 1000.0  # seconds since the epoch


def made() -> Startup:
    """A start whose first phase took 2 seconds."""
    startup = Startup(COMMAND)
    startup.phases = {"imports and settings": (COMMAND, 2.0)}
    return startup


def test_a_process_began_before_its_imports() -> None:
    before = time.time()
    program = "from forge_env.runtime.process.children import process_began; print(process_began())"
    began = float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert before - 0.05 <= began <= time.time()  # the kernel counts in ticks of 10 ms
    assert process_began() < before, "this one began before the test did"


def test_phases_from_the_command_to_the_first_step() -> None:
    startup = Startup()
    with startup.phase("model"):
        pass
    began = time.time()
    with startup.phase("first optimizer step"):
        pass
    startup.until_now("first rollouts", began)
    assert startup.first_step is None and startup.summary()["first_step"] is None
    startup.end()
    summary = startup.summary()
    assert list(summary) == ["first_step", "imports and settings", "model", "first rollouts", "first optimizer step"]
    assert summary["imports and settings"][0] == 0.0
    assert all(began + seconds <= summary["first_step"] for began, seconds in list(summary.values())[1:])


def test_a_phase_counts_once_and_only_before_the_first_step() -> None:
    startup = made()
    startup.until_now("weights: publish", COMMAND + 3)
    first = startup.phases["weights: publish"]
    with startup.phase("weights: publish"):
        pass
    startup.end()
    with startup.phase("weights: pull"):
        pass
    assert startup.phases["weights: publish"] == first and "weights: pull" not in startup.phases


def test_a_phase_that_raises_is_not_recorded() -> None:
    startup = made()
    with pytest.raises(ValueError), startup.phase("model"):
        raise ValueError
    assert "model" not in startup.phases


def test_services_start_side_by_side_and_several_replicas_are_one_phase() -> None:
    startup = made()
    startup.add_services(
        {
            "trainer": [
                {"process": (1002.0, 1.0), "import": (1003.0, 4.0), "load": (1007.0, 1.0), "start": (1003.0, 5.0)}
            ],
            "environments": [
                {"process": (1002.5, 1.5), "start": (1004.0, 1.0)},
                {"process": (1002.0, 1.0), "start": (1003.5, 1.0)},
            ],
            "engine": [{"load": (1005.0, 30.0), "load: compile": (None, 12.0), "first request": (1035.0, 1.0)}],
            "reference model": [],
        }
    )
    assert startup.in_order == [
        ("imports and settings", 0.0, 2.0),
        ("processes", 2.0, 2.0),
        ("trainer: import", 3.0, 4.0),
        ("environments", 3.5, 1.5),
        ("engine: load", 5.0, 30.0),
        ("engine: load: compile", None, 12.0),
        ("trainer: load", 7.0, 1.0),
        ("engine: first request", 35.0, 1.0),
    ]
    assert startup.summary()["engine: load: compile"] == [None, 12.0]


def test_what_the_run_says() -> None:
    startup = made()
    startup.add_services({"engine": [{"load": (1005.0, 30.25), "load: compile": (None, 12.0)}]})
    startup.first_step = 41.0
    assert startup.text().splitlines() == [
        "first optimizer step 41.0 s after the command; each phase, when it began and what it took:",
        "        0.0 s       2.0 s  imports and settings",
        "        5.0 s      30.2 s  engine: load",
        "                   12.0 s  engine: load: compile",
    ]
