"""Whole runs, as a user starts them, each in a process of its own: what they say, write down, and must not leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE = 240.0  # seconds for anything that a run is waited for
UNTRAINED = ("--warmup.steps", "0", "--dataset.held_out", "16", "--dataset.tasks", "64")
SHORT = ("--env.max_turns", "3", "--env.max_turn_tokens", "32", "--env.max_tokens", "512")
"""Limits for a model without training, which ends no turn by itself."""


@dataclass
class Started:
    """A run in a process of its own, found again by a mark in its environment."""

    process: subprocess.Popen[str]
    mark: str
    temp: Path
    output: Path

    def read_until(self, text: str) -> str:
        """Read the console until a line holds `text`."""
        seen = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            seen += line
            if text in line:
                return seen
        raise AssertionError(f"{text!r} never came; the run said:\n{seen}")

    def wait(self, done: Callable[[], object]) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: when the run ends before, or the time is over; it has what the run says.
        """
        with suppress(AssertionError):
            wait_until(lambda: done() or self.process.poll() is not None, seconds=DEADLINE)
        if not done():
            self.process.kill()
            raise AssertionError(f"it never came to that; the run said:\n{self.end()}")

    def end(self, seconds: float = DEADLINE) -> str:
        """Wait for the end; returns the rest of the console."""
        return self.process.communicate(timeout=seconds)[0]

    def ends_with(self, *codes: int, seconds: float = DEADLINE) -> str:
        """Wait for an end with one of these exit codes, which leaves nothing; returns the rest of the console.

        Where the run fails, it says so without a traceback.
        """
        console = self.end(seconds)
        assert self.process.returncode in codes, console
        assert not self.process.returncode or "Traceback" not in console
        self.assert_nothing_left()
        return console

    def processes(self) -> dict[int, str]:
        """Every living process that this run started, with its command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
        return found

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not self.processes(), "all processes of the run have ended")
        assert list(self.temp.iterdir()) == []
        assert self._monarch_logs() == []

    def forget_logs(self) -> None:
        """Remove what a killed controller leaves, when all processes have ended."""
        wait_until(lambda: not self.processes(), "all processes of the run have ended", DEADLINE)
        for path in self._monarch_logs():
            path.unlink()

    def _monarch_logs(self) -> list[Path]:
        return list(Path("/tmp").glob(f"*/monarch_log_forge_{self.process.pid}.log"))


Start = Callable[..., Started]
"""The fixture `start`: `python -m MODULE OPTIONS`. A target may follow the module."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts runs; whatever of them is alive at the test's end is ended."""
    runs: list[Started] = []
    shared_memory = set(os.listdir("/dev/shm"))

    def begin(module: str, *options: str) -> Started:
        mark, temp = f"forge-test-{uuid.uuid4()}", Path(tempfile.mkdtemp(prefix="forge-test-"))
        given = options[options.index("--output") + 1] if "--output" in options else ""
        output = Path(given) if given else tmp_path / f"run{len(runs)}"
        process = subprocess.Popen(
            [sys.executable, "-m", *module.split(), *(() if given else ("--output", str(output))), *options],
            cwd=REPOSITORY,
            env={**os.environ, "FORGE_TEST_MARK": mark, "TMPDIR": str(temp)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # with a process group of its own, as a shell gives it one
        )
        runs.append(Started(process, mark, temp, output))
        return runs[-1]

    yield begin
    for run in runs:
        for pid in run.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()
        shutil.rmtree(run.temp)
    # Another worker of pytest may have a run at the same time: what belongs to a live process is not left behind, and
    # what a dead one has left there is removed in a moment.
    with suppress(AssertionError):
        wait_until(lambda: not _left_behind(shared_memory))
    assert _left_behind(shared_memory) == set()


def _left_behind(before: set[str]) -> set[str]:
    return {name for name in set(os.listdir("/dev/shm")) - before if not _is_owned(name)}


def _is_owned(name: str) -> bool:
    """Whether a process lives that maps this shared memory, or whose id is in its name. Semaphores show neither."""
    if name.startswith("sem.mp-") and "PYTEST_XDIST_WORKER" in os.environ:
        return True
    pid = re.search(r"_(\d+)_", name)
    return (pid is not None and Path(f"/proc/{pid[1]}").exists()) or _is_mapped(f"/dev/shm/{name}\n")


def _is_mapped(file: str) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if file in maps.read_text():
                return True
    return False


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def records(output: Path, phase: str = "train") -> list[dict[str, Any]]:
    """What a run has written down of a phase so far."""
    return [record for record in json_lines(output / "metrics.jsonl") if record["phase"] == phase]


def steps_taken(output: Path) -> list[int]:
    """The training steps that are written down."""
    return [record["step"] for record in records(output)]


def summary_of(output: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary
