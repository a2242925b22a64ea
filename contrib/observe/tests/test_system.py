"""System metrics: real processes, real memory, and no figure of what is not there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from contrib.observe.system import MeasuredGpus, Sampler, SystemMetrics, SystemObserver, _by_service
from forge_env.records.sinks import Record
from tests.helpers.waiting import wait_until
from trainers.metrics.report import Report
from trainers.metrics.settings import MetricsConfig

MEGABYTES = 200
CHILD = """
import subprocess, sys
held = b"x" * (int(sys.argv[1]) * 2**20)
if sys.argv[2:]:
    grandchild = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], stdin=subprocess.PIPE)
print("ready", flush=True)
while sum(i for i in range(10_000)):
    pass
"""
GRANDCHILD = "import sys; held = b'x' * (int(sys.argv[1]) * 2**20); sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A busy process that holds memory, and has a child that holds as much."""
    command = [sys.executable, "-c", CHILD, str(MEGABYTES), GRANDCHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_memory_and_cpu_of_a_service_with_its_children(child: subprocess.Popen[str], tmp_path: Path) -> None:
    metrics = SystemMetrics(tmp_path, lambda: {"trainer_1": [child.pid], "gone": [2**22 + 1]}, ())
    held = MEGABYTES * 2**20
    found: dict[str, float] = {}

    def is_all_there() -> bool:
        found.update(metrics.measure())
        return found["memory_bytes/trainer"] > 2 * held and found["cpu_percent/trainer"] > 0

    wait_until(is_all_there, "the grandchild has its memory, and some CPU time has passed")
    assert 2 * held < found["memory_bytes/trainer"] < 2 * held + 200 * 2**20
    assert found["cpu_percent/trainer"] > 0
    assert found["run/memory_bytes"] > 2 * held + 10 * 2**20  # and this process
    assert (
        found["run/processes"] >= 3 and found["memory_bytes/controller"] > 0
    )  # other tests may have left children here
    assert found["memory_available_bytes"] > 0 < found["disk_free_bytes"] and found["run/open_files"] > 2
    assert not {name for name in found if name.startswith("gpu/") or name.endswith("/gone")}
    metrics.close()


def test_the_sum_counts_what_is_shared_once(child: subprocess.Popen[str], tmp_path: Path) -> None:
    found = SystemMetrics(tmp_path, lambda: {"trainer": [child.pid]}, ()).measure()
    services = sum(value for name, value in found.items() if name.startswith("memory_bytes/"))
    assert 0 < found["run/memory_bytes"] < services


def test_without_a_gpu_there_are_no_figures_of_one() -> None:
    assert MeasuredGpus(()).measure() == {}
    gpus = MeasuredGpus((97,))  # whether there is no NVML, no GPU, or no such one
    assert gpus.measure() == gpus.sizes() == gpus.processes() == {}
    gpus.close()


def test_memory_of_a_gpu_is_added_up_by_service() -> None:
    """An engine with a worker process, a trainer on two GPUs, and a process that is not the run's."""
    services = {10: "generator", 11: "generator", 20: "trainer", 21: "trainer"}
    found = _by_service({0: {10: 1.0, 11: 2.0, 20: 4.0, 99: 8.0}, 1: {21: 16.0}}, services)
    assert found == {
        "gpu/0/memory_bytes/generator": 3.0,
        "gpu/0/memory_bytes/trainer": 4.0,
        "gpu/1/memory_bytes/trainer": 16.0,
    }


def test_the_sampler_measures_until_it_is_closed(tmp_path: Path) -> None:
    taken: list[Mapping[str, float]] = []
    enough = threading.Event()

    def take(values: Mapping[str, float]) -> None:
        taken.append(values)
        if len(taken) == 3:
            enough.set()

    sampler = Sampler(SystemMetrics(tmp_path, dict, ()), 0.01, take, pytest.fail)
    assert enough.wait(60)
    sampler.close()
    sampler.close()
    assert json.dumps(taken[-1]) and len(taken) >= 3
    assert "system metrics" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(("error", "lines"), [(ValueError("broken"), 1), (OSError(28, "No space left"), 0)])
def test_a_sample_that_raises_ends_the_sampling_and_nothing_else(tmp_path: Path, error: Exception, lines: int) -> None:
    """A full disk is left to the run, which says it in its own words."""
    said: list[str] = []
    asked = threading.Event()

    def take(values: Mapping[str, float]) -> None:
        asked.set()
        raise error

    sampler = Sampler(SystemMetrics(tmp_path, dict, ()), 0.01, take, said.append)
    assert asked.wait(60)
    sampler.close()
    assert said == ["warning: system metrics are switched off: ValueError: broken"][:lines]


def test_peaks_cover_a_resumed_run_from_its_start(tmp_path: Path) -> None:
    observer = SystemObserver(tmp_path)
    observer.go_back([Record("system", 10, sample(8.0)), Record("train", 1, {"run/memory_bytes": 99.0})])
    observer.log("system", 20, sample(4.0))
    assert observer.summary() == {"peak_memory_bytes": 8.0, "peak_gpu/0/power_watts": 16.0}


def sample(value: float) -> dict[str, float]:
    return {"run/memory_bytes": value, "gpu/0/power_watts": 2 * value, "gpu/0/memory_total_bytes": 9.0}


async def test_a_run_is_measured_while_its_processes_are_up(tmp_path: Path) -> None:
    with Report(tmp_path) as report:
        plan = SimpleNamespace(
            config=SimpleNamespace(metrics=MetricsConfig(system_seconds=0.001)),
            placement=SimpleNamespace(gpus_of_this_machine=[]),
            objective=None,
        )
        report.begin(SimpleNamespace(record=report, plan=plan, launcher=SimpleNamespace(pids=dict)))
        metrics = tmp_path / "metrics.jsonl"
        wait_until(lambda: metrics.read_text().count('"system"') >= 3, "three samples")
        report.stop_observing()
        measured = metrics.read_text()
        peaks = {name: value for observer in report.observers for name, value in observer.summary().items()}
    assert metrics.read_text() == measured
    records = [json.loads(line) for line in measured.splitlines()]
    assert peaks == {"peak_memory_bytes": max(record["run/memory_bytes"] for record in records)}
