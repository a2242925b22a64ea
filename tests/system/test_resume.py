"""A run that is killed goes on from its checkpoint, as a user would do it, and its record has no seam."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.model_folder import export_model, trained_model
from forge_env.core.episode import read_jsonl
from forge_env.records.run_files import steps_of
from forge_env.records.run_weights import run_weights
from tests.helpers.pages import MEASURED, page_of
from tests.system.test_runs import DEADLINE, UNTRAINED, Started, _monarch_logs, start, write_chats  # noqa: F401

# Each step trains, whatever its rewards.
OPTIONS = ("--env", "math", "--checkpoint.interval", "2", "--training.entropy_coef", "0.01", *UNTRAINED)


def _steps(output: Path) -> list[int]:
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if record["phase"] == "train"]


def _wait(done: Callable[[], object], run: Started | None = None) -> None:
    """Wait until something is so, or fail with what the run says."""
    deadline = time.monotonic() + DEADLINE
    while not done():
        if time.monotonic() > deadline or (run is not None and run.process.poll() is not None):
            if run is not None:
                run.process.kill()
            raise AssertionError(f"it never came to that; the run said:\n{run.end() if run else ''}")
        time.sleep(0.02)


def ended_by_sigterm(  # type: ignore[no-untyped-def]
    start,  # noqa: F811
    tmp_path: Path,
    *more: str,
    is_ready: Callable[[Path], object] = Path.is_dir,
) -> tuple[Started, str]:
    """Supervised training that a signal has ended in its steps, and its console.

    Args:
        is_ready: asked with the run's folder before the signal.
    """
    ended = start(
        "trainers.sft", "--sft.data", str(write_chats(tmp_path / "chats.jsonl")), "--steps", "100000",
        "--sft.tokens_per_step", "1024", "--training.max_tokens_per_micro_batch", "512",
        *MEASURED, *more,
    )  # fmt: skip
    _wait(lambda: (ended.output / "metrics.jsonl").is_file() and len(_steps(ended.output)) >= 2, ended)
    _wait(lambda: is_ready(ended.output), ended)
    os.killpg(ended.process.pid, signal.SIGTERM)  # of the whole group, as a terminal's Ctrl-C is
    console = ended.end()
    assert ended.process.returncode == 143, console
    assert "Traceback" not in console
    ended.assert_nothing_left()
    page = page_of(ended.output)
    assert page is None or '"why_incomplete":"it was stopped"' in page
    return ended, console


def test_supervised_training_that_a_signal_ended_goes_on(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """A checkpoint is kept though none was due; everything of the run ends, the meters too; and it goes on."""
    ended, console = ended_by_sigterm(start, tmp_path)
    ((step, newest),) = steps_of(ended.output).items()
    assert step == len(_steps(ended.output)), "that of the last step which was taken"
    onward = f"go on from step {step} with python -m trainers.sft --output {ended.output} --resume"
    assert console.rstrip().endswith(f"stopped; a checkpoint is kept: {onward}")
    moved = ended.output.rename(tmp_path / "renamed")
    again = start("trainers.sft", "--output", str(moved), "--resume", "--steps", str(step + 2))
    console = again.end()
    assert again.process.returncode == 0, console
    assert f"sft goes on after step {step}, from {moved / 'checkpoints' / newest.name}" in console
    again.assert_nothing_left()
    assert _steps(moved) == list(range(1, step + 3))  # each once
    summary = json.loads((moved / "summary.json").read_text())
    assert summary["steps"] == step + 2 and summary["held_out_loss_after"] < summary["held_out_loss_before"]
    page = page_of(moved)
    assert page is None or '"complete":true' in page
    assert trained_model(str(moved)) == moved / "model"
    exported = export_model(str(moved / "checkpoints" / f"step_{step + 2:06d}"), tmp_path / "exported")
    assert exported.step == run_weights(str(moved)).step == step + 2
    model = {path.name: path.read_bytes() for path in (moved / "model").iterdir()}
    assert model == {path.name: path.read_bytes() for path in (tmp_path / "exported").iterdir()}
    for name in ("run.json", "summary.json", "config.yaml"):
        assert str(ended.output) not in (moved / name).read_text()


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(start) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    killed = start("trainers.grpo", "--steps", "100000", *OPTIONS)
    folder = killed.output / "checkpoints"
    # Until something is written down that the checkpoint does not know.
    _wait(lambda: steps_of(killed.output) and max(_steps(killed.output)) > min(steps_of(killed.output)), killed)
    killed.process.kill()
    killed.end()
    _wait(lambda: not killed.processes())
    for path in _monarch_logs(killed):
        path.unlink()
    step, newest = list(steps_of(killed.output).items())[-1]
    assert trained_model(str(killed.output)) == trained_model(f"{killed.output}@{step}") == newest / "model"
    before = (killed.output / "episodes" / "before.jsonl").read_bytes()

    refused = start("trainers.grpo", "--output", str(killed.output), "--steps", str(step + 3), *OPTIONS)
    assert "--resume" in refused.end() and refused.process.returncode == 2
    again = start("trainers.grpo", "--output", str(killed.output), "--resume", "--verbose", "--steps", str(step + 3))
    console = again.end()
    assert again.process.returncode == 0, console
    assert f"grpo goes on after step {step}, from {newest}" in console
    assert "held-out success before" not in console and "warm-up of" not in console
    again.assert_nothing_left()

    assert _steps(killed.output) == list(range(1, step + 4))  # each once
    summary = json.loads((killed.output / "summary.json").read_text())
    assert summary["steps"] == step + 3 == len(summary["reward_curve"])
    assert summary["success_before"] is not None and summary["success_after"] is not None
    startup = summary["startup"]  # of this start of it
    assert sum(startup["checkpoint"]) <= startup["weights: publish"][0] and "evaluation" not in startup
    assert f"first optimizer step {startup['first_step']:.1f} s after the command" in console
    assert (killed.output / "model" / "model.safetensors").is_file()
    assert (killed.output / "episodes" / "before.jsonl").read_bytes() == before
    page = page_of(killed.output)
    assert page is None or all(text in page for text in ('"complete":true', f"{step + 3:,}", "goes on after step"))
    learned = [json.loads(line) for line in (killed.output / "trained.jsonl").read_text().splitlines()]
    assert [line["step"] for line in learned] == [i for i in range(1, step + 4) for _ in range(96)]
    kept = sorted(path.name for path in folder.iterdir())
    assert kept[-1] == f"step_{step + 3:06d}" and len(kept) == 2

    train = list(read_jsonl(killed.output / "episodes" / "train.jsonl"))
    assert len(train) == 96 * (step + 3)
    versions = [{v for e in train[i : i + 96] for v in e.versions} for i in range(0, len(train), 96)]
    assert versions == [{version} for version in range(step + 3)]  # synchronous: each step has the next one
    tasks = [episode.task.id for episode in train[::8]]
    assert len(set(tasks[:64])) == min(64, len(tasks))  # no task again before all have had their turn
