"""Weights & Biases offline, with the real package: all of it in the run's folder, and no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from contrib.observe.tests.wandb_file import history, run_of
from forge_env.core.errors import UserError
from forge_env.evaluation.api import evaluate
from forge_env.records.sinks import load_sink
from tests.helpers.packages import needs
from tests.helpers.runs import start  # noqa: F401 (a fixture)
from tests.system.test_resume import ended_by_sigterm
from tests.system.test_runs import a_signal_ends_everything
from trainers.config import SHORT_OPTIONS
from trainers.grpo import GRPO, Config
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan

pytestmark = needs("wandb")
ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120.0

# A run that logs, and then does what its last lines say; `hold` is a run that is busy with its own work.
SCRIPT = """
import os, sys, time
from contextlib import suppress
from pathlib import Path
from contrib.observe.wandb import Wandb
from forge_env.records.sinks import Record

sink = Wandb(Path(sys.argv[1]), {"training": {"steps": 3}}, "offline")

def hold():
    print("ready", flush=True)
    time.sleep(600)

def log(*steps):
    for step in steps:
        sink.log("train", step, {"loss": step / 2, "nan": float("nan")})

"""


class Runs:
    """Starts scripts, and finds every process that they started by a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.home, self.cwd, self.run = folder / "home", folder / "cwd", folder / "run"
        for path in (self.home, self.cwd, self.run):
            path.mkdir()
        self.mark = f"forge-test-{uuid.uuid4()}"

    def start(self, script: str, **more: str) -> subprocess.Popen[str]:
        environ = {**os.environ, "HOME": str(self.home), "PYTHONPATH": str(ROOT), "FORGE_TEST_MARK": self.mark}
        environ |= {"WANDB_PROJECT": "mine", **more}
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
            environ.pop(name, None)
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT + script, str(self.run)],
            cwd=self.cwd,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # As in a terminal: where these tests run in the background, Ctrl-C is switched off.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def finish(self, script: str, **more: str) -> str:
        process = self.start(script, **more)
        said = process.communicate(timeout=SECONDS)[0]
        assert process.returncode == 0, said
        return said

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def files(self) -> list[Path]:
        return sorted(self.run.glob("wandb/offline-run-*/*.wandb"))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    for pid in made.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def steps(path: Path) -> list[tuple[int, float]]:
    return [(row["train/step"], row["train/loss"]) for row in history(path)]


def test_a_run_lies_in_its_folder_leaves_nothing_and_is_the_same_with_each_step_once_when_resumed(runs: Runs) -> None:
    runs.finish("log(1, 2, 3)\nsink.close()\n")
    wait(lambda: not runs.processes())
    (before,) = runs.files()
    assert steps(before) == [(1, 0.5), (2, 1.0), (3, 1.5)]
    first = run_of(before)
    assert (first.project, first.display_name) == ("mine", "run")
    identity = json.loads((runs.run / "wandb" / "run.json").read_text())
    assert identity == {"id": first.run_id, "project": "mine", "name": "run"}
    assert list(runs.home.rglob("*")) == [] == list(runs.cwd.rglob("*"))
    assert {each.name for each in runs.run.iterdir()} == {"wandb"}
    kept = "[Record('train', step, {'loss': step / 2}) for step in (1, 2)]"
    again = f"sink.go_back({kept})\nsink.log('train', 3, {{'loss': 9.0}})\nsink.close()\n"
    runs.finish(again, WANDB_PROJECT="other", WANDB_NAME="other")
    (after,) = runs.files()
    found = run_of(after)
    assert after != before and (found.run_id, found.project, found.display_name) == (first.run_id, "mine", "run")
    assert steps(after) == [(1, 0.5), (2, 1.0), (3, 9.0)]


@pytest.mark.slow
def test_synced_records_stay(runs: Runs) -> None:
    runs.finish("log(1)\nsink.close()\n")
    (before,) = runs.files()
    before.with_name(f"{before.name}.synced").touch()  # as `wandb sync` marks it
    runs.finish("sink.go_back([])\nlog(2)\nsink.close()\n")
    assert before in runs.files() and len(runs.files()) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_run_that_is_ended_leaves_no_process_and_keeps_what_it_logged(runs: Runs, number: int) -> None:
    process = runs.start("log(1, 2)\nhold()\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    wait(lambda: len(runs.processes()) >= 3)  # the run, the process of ours, and the package's own
    process.send_signal(number)
    process.wait(SECONDS)
    process.stdout.close()
    wait(lambda: not runs.processes())
    (path,) = runs.files()
    assert steps(path) == [(1, 0.5), (2, 1.0)]


def test_a_process_that_dies_is_one_sentence(runs: Runs) -> None:
    script = """
log(1)
sink._process.kill()
sink._process.wait()
try:
    log(*range(2, 10_000))
except Exception as error:
    print(type(error).__name__, error)
"""
    said = runs.finish(script)
    assert said.startswith("WandbError ") and "process.log" in said and said.count("\n") == 1
    wait(lambda: not runs.processes())


def test_wandb_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # Python's own way to say that there is none
    config = parse(Config, ["--metrics.sinks", "wandb:offline", "--env", "math"], SHORT_OPTIONS)
    with pytest.raises(UserError, match=r"wandb:offline: wandb is not installed: it comes with the extra of that name"):
        make_plan(config, GRPO).check()


def test_wandb_online_needs_a_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(Config, ["--metrics.sinks", "wandb", "--env", "math"], SHORT_OPTIONS)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(UserError, match=r"--metrics\.sinks wandb: WANDB_API_KEY is not set.*wandb:offline"):
        make_plan(config, GRPO).check()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    make_plan(config, GRPO).check()
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("WANDB_MODE", "offline")
    make_plan(config, GRPO).check()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UserError, match="--sink wandb:of: the mode is of; it is offline or online"):
        load_sink("wandb:of", "--sink")


def test_an_evaluation_shows_its_figures(tmp_path: Path) -> None:
    result = evaluate("math", "scripted:expert", tasks=2, out=tmp_path / "run", sinks=["wandb:offline"], progress=False)
    (path,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    (row,) = history(path)
    assert (row["evaluation/step"], row["evaluation/pass@1"]) == (0, result.success)


def offline_files(output: Path) -> list[Path]:
    """A signal before there is one leaves W&B `FINISH_SECONDS` to start, which is too short on a busy machine."""
    return list((output / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.slow
def test_supervised_training_that_a_signal_ended_leaves_nothing_behind(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    ended, _ = ended_by_sigterm(start, tmp_path, "--metrics.sinks", "wandb:offline", is_ready=offline_files)
    assert offline_files(ended.output)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_training_ends_everything(start, number: signal.Signals, code: int) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    options = "--metrics.sinks", "wandb:offline"
    assert offline_files(a_signal_ends_everything(start, number, code, *options, is_ready=offline_files))
