"""A run that is killed goes on from its checkpoint, as a user would do it, and its record has no seam."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.model_folder import export_model, trained_model
from forge_env.core.episode import read_jsonl
from forge_env.records.run_files import steps_of
from forge_env.records.run_weights import run_weights
from tests.helpers.pages import MEASURED, page_of
from tests.helpers.runs import UNTRAINED, Start, Started, json_lines, steps_taken, summary_of
from tests.system.test_runs import write_chats

# Each step trains, whatever its rewards.
OPTIONS = ("--env", "math", "--checkpoint.interval", "2", "--training.entropy_coef", "0.01", *UNTRAINED)


def ended_by_sigterm(
    start: Start,
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
    ended.wait(lambda: len(steps_taken(ended.output)) >= 2)
    ended.wait(lambda: is_ready(ended.output))
    os.killpg(ended.process.pid, signal.SIGTERM)  # of the whole group, as a terminal's Ctrl-C is
    console = ended.ends_with(143)
    page = page_of(ended.output)
    assert page is None or '"why_incomplete":"it was stopped"' in page
    return ended, console


def test_supervised_training_that_a_signal_ended_goes_on(start: Start, tmp_path: Path) -> None:
    """A checkpoint is kept though none was due; everything of the run ends, the meters too; and it goes on."""
    ended, console = ended_by_sigterm(start, tmp_path)
    ((step, newest),) = steps_of(ended.output).items()
    assert step == len(steps_taken(ended.output)), "that of the last step which was taken"
    onward = f"go on from step {step} with python -m trainers.sft --output {ended.output} --resume"
    assert console.rstrip().endswith(f"stopped; a checkpoint is kept: {onward}")
    moved = ended.output.rename(tmp_path / "renamed")
    again = start("trainers.sft", "--output", str(moved), "--resume", "--steps", str(step + 2))
    console = again.ends_with(0)
    assert f"sft goes on after step {step}, from {moved / 'checkpoints' / newest.name}" in console
    assert steps_taken(moved) == list(range(1, step + 3))  # each once
    summary = summary_of(moved)
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
def test_a_killed_run_goes_on_from_its_checkpoint(start: Start) -> None:
    killed = start("trainers.grpo", "--steps", "100000", *OPTIONS)
    folder = killed.output / "checkpoints"
    # Until something is written down that the checkpoint does not know.
    killed.wait(lambda: steps_of(killed.output) and max(steps_taken(killed.output)) > min(steps_of(killed.output)))
    killed.process.kill()
    killed.end()
    killed.forget_logs()
    step, newest = list(steps_of(killed.output).items())[-1]
    assert trained_model(str(killed.output)) == trained_model(f"{killed.output}@{step}") == newest / "model"
    before = (killed.output / "episodes" / "before.jsonl").read_bytes()

    refused = start("trainers.grpo", "--output", str(killed.output), "--steps", str(step + 3), *OPTIONS)
    assert "--resume" in refused.end() and refused.process.returncode == 2
    again = start("trainers.grpo", "--output", str(killed.output), "--resume", "--verbose", "--steps", str(step + 3))
    console = again.ends_with(0)
    assert f"grpo goes on after step {step}, from {newest}" in console
    assert "held-out success before" not in console and "warm-up of" not in console

    assert steps_taken(killed.output) == list(range(1, step + 4))  # each once
    summary = summary_of(killed.output)
    assert summary["steps"] == step + 3 == len(summary["reward_curve"])
    assert summary["success_before"] is not None and summary["success_after"] is not None
    startup = summary["startup"]  # of this start of it
    assert sum(startup["checkpoint"]) <= startup["weights: publish"][0] and "evaluation" not in startup
    assert f"first optimizer step {startup['first_step']:.1f} s after the command" in console
    assert (killed.output / "model" / "model.safetensors").is_file()
    assert (killed.output / "episodes" / "before.jsonl").read_bytes() == before
    page = page_of(killed.output)
    assert page is None or all(text in page for text in ('"complete":true', f"{step + 3:,}", "goes on after step"))
    learned = json_lines(killed.output / "trained.jsonl")
    assert [line["step"] for line in learned] == [i for i in range(1, step + 4) for _ in range(96)]
    kept = sorted(path.name for path in folder.iterdir())
    assert kept[-1] == f"step_{step + 3:06d}" and len(kept) == 2

    train = list(read_jsonl(killed.output / "episodes" / "train.jsonl"))
    assert len(train) == 96 * (step + 3)
    versions = [{v for e in train[i : i + 96] for v in e.versions} for i in range(0, len(train), 96)]
    assert versions == [{version} for version in range(step + 3)]  # synchronous: each step has the next one
    tasks = [episode.task.id for episode in train[::8]]
    assert len(set(tasks[:64])) == min(64, len(tasks))  # no task again before all have had their turn
