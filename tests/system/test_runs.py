"""Whole runs, as a user starts them: real engine, trainer, store, sandbox; nothing is left, however they end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forge_env.cli.main import main
from forge_env.episode import read_jsonl

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE = 240.0  # seconds for anything that a run is waited for
UNTRAINED = ("--warmup.steps", "0", "--dataset.held_out", "16", "--dataset.tasks", "64")


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

    def end(self) -> str:
        """Wait for the end; returns the rest of the console."""
        return self.process.communicate(timeout=DEADLINE)[0]

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
        deadline = time.monotonic() + 15.0
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.processes() == {}
        assert list(self.temp.iterdir()) == []
        assert _monarch_logs(self) == []


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    """Start `python -m MODULE OPTIONS`; whatever is alive at the end of the test is ended."""
    runs: list[Started] = []
    shared_memory = set(os.listdir("/dev/shm"))

    def begin(module: str, *options: str) -> Started:
        mark, temp = f"forge-test-{uuid.uuid4()}", Path(tempfile.mkdtemp(prefix="forge-test-"))
        output = tmp_path / f"run{len(runs)}"
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--output", str(output), *options],
            cwd=REPOSITORY,
            env={**os.environ, "FORGE_TEST_MARK": mark, "TMPDIR": str(temp)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        runs.append(Started(process, mark, temp, output))
        return runs[-1]

    yield begin
    for run in runs:
        for pid in run.processes():
            os.kill(pid, signal.SIGKILL)
        run.process.wait()
        shutil.rmtree(run.temp)
    assert set(os.listdir("/dev/shm")) <= shared_memory


def _monarch_logs(run: Started) -> list[Path]:
    return list(Path("/tmp").glob(f"*/monarch_log_forge_{run.process.pid}.log"))


def test_two_steps_of_grpo(start) -> None:  # type: ignore[no-untyped-def]
    """The whole loop, and everything that it promises to leave behind."""
    run = start(
        "trainers.grpo", "--env", "code_exec", "--steps", "2", "--tasks", "256", "--dataset.held_out", "16",
        "--warmup.steps", "56", "--warmup.demonstrations", "128", "--warmup.probe_tasks", "16",
    )  # fmt: skip
    console = run.end()
    assert run.process.returncode == 0, console
    run.assert_nothing_left()
    for phrase in ("held-out success before", "with the tool switched off", "grpo 2/2", "tokens/s", "s left", "user:"):
        assert phrase in console
    summary = json.loads((run.output / "summary.json").read_text())
    assert summary["env"] == "code_exec" and summary["algorithm"] == "grpo" and summary["steps"] == 2
    for name in ("seed", "success_before", "success_after", "setup_seconds", "train_seconds", "tokens_generated"):
        assert name in summary
    assert summary["tokens_trained"] > 0 and summary["model_parameters"] > 100_000
    assert summary["versions"]["torchtitan"] and summary["versions"]["torchstore"]
    _check_episodes(run.output)
    steps = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps if step["phase"] == "train"] == [1, 2]
    for step in steps:
        if step["phase"] == "train":
            assert step["mean_abs_logprob_difference"] <= 1e-5  # trainer and engine, in the run itself
    assert (run.output / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert list((run.output / "tensorboard").iterdir())
    assert list((run.output / "checkpoint").iterdir())
    _check_export(run.output / "model")


def _check_episodes(output: Path) -> None:
    train = list(read_jsonl(output / "episodes" / "train.jsonl"))  # construction checks every invariant again
    assert len(train) == 2 * 8 * 8
    assert all(episode.outcome.is_valid and episode.is_trainable for episode in train)
    first, second = train[:64], train[64:]
    published = {version for episode in first for version in episode.versions}
    assert len(published) == 1, "synchronous: one step's episodes are sampled by one version"
    assert {version for episode in second for version in episode.versions} == {published.pop() + 1}
    demonstrations = list(read_jsonl(output / "episodes" / "demonstrations.jsonl"))
    assert all(e.reward == 1.0 and not e.is_trainable and e.rows for e in demonstrations)


def _check_export(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)


# Ctrl-C is also tested while the engine starts; each of these runs takes a minute.
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_signal_while_training_ends_everything(start, number: signal.Signals, code: int) -> None:  # type: ignore[no-untyped-def]
    run = start("trainers.grpo", "--env", "math", "--steps", "100000", *UNTRAINED)
    run.read_until("grpo ")
    run.read_until("grpo ")
    run.process.send_signal(number)
    console = run.end()
    assert run.process.returncode == code, console
    assert "Traceback" not in console
    run.assert_nothing_left()


def test_ctrl_c_while_the_engine_starts(start) -> None:  # type: ignore[no-untyped-def]
    run = start("trainers.grpo", "--env", "code_exec", *UNTRAINED)
    run.read_until("the engine is starting")
    run.process.send_signal(signal.SIGINT)
    console = run.end()
    assert run.process.returncode == 130, console
    assert "Traceback" not in console
    run.assert_nothing_left()


def test_the_controller_is_killed(start) -> None:  # type: ignore[no-untyped-def]
    """SIGKILL runs no clean-up of ours: the actors notice by themselves. Files may stay, processes may not."""
    run = start("trainers.grpo", "--env", "code_exec", "--steps", "100000", *UNTRAINED)
    run.read_until("held-out success before")
    assert len(run.processes()) >= 4
    run.process.kill()
    run.end()
    deadline = time.monotonic() + 15.0
    while run.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run.processes() == {}
    for path in _monarch_logs(run):
        path.unlink()


@pytest.mark.parametrize(
    "victim", ["generator", *(pytest.param(name, marks=pytest.mark.slow) for name in ("trainer", "envs"))]
)
def test_an_actor_is_killed(start, victim: str) -> None:  # type: ignore[no-untyped-def]
    """The run says in one sentence which process died, and ends with nothing left."""
    run = start("trainers.grpo", "--env", "math", "--steps", "100000", *UNTRAINED)
    run.read_until("held-out success before")
    logs = (run.output / "logs" / f"{victim}.log").resolve()
    pid = next(pid for pid in run.processes() if _stdout_of(pid) == str(logs))
    os.kill(pid, signal.SIGKILL)
    console = run.end()
    assert run.process.returncode == 1, console
    assert f"error: the {victim} process died" in console
    assert "Traceback" not in console
    run.assert_nothing_left()


def _stdout_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def test_sft_with_a_tool_of_the_users_own(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Supervised training on its own; the registered name reaches the processes that play the episodes."""
    (tmp_path / "sums.py").write_text(
        'def add(a: int, b: int) -> int:\n    """Add two numbers."""\n    return a + b\n', encoding="utf-8"
    )
    monkeypatch.setenv("FORGE_ENV_REGISTRY", str(tmp_path / "registry.yaml"))
    assert main(["register", str(tmp_path / "sums.py:add"), "--timeout", "5"]) == 0
    run = start(
        "trainers.sft", "--env", "tool_api", "--tools", "add", "--steps", "4", "--tasks", "256",
        "--dataset.held_out", "16", "--warmup.demonstrations", "64",
    )  # fmt: skip
    console = run.end()
    assert run.process.returncode == 0, console
    summary = json.loads((run.output / "summary.json").read_text())
    assert summary["algorithm"] == "sft" and summary["evaluation_episodes"] == 16
    demonstrations = list(read_jsonl(run.output / "episodes" / "demonstrations.jsonl"))
    assert {use.name for e in demonstrations for turn in e.turns for use in turn.tool_uses} == {"add"}
    run.assert_nothing_left()
