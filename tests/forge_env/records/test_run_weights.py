"""Which weights of a training run a name stands for, in folders as runs leave them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.records.run_weights import run_of, run_weights

SUCCESS = {0: 0.9, 20: 0.5, 40: 0.7, 60: 0.7, 80: 0.6}


def make_run(
    folder: Path, steps: Sequence[int], *, complete: int = 0, evaluated: Sequence[int] = tuple(SUCCESS)
) -> Path:
    """A run with checkpoints of `steps`; `complete` with a final model of that step."""
    for step in steps:
        checkpoint = folder / "checkpoints" / f"step_{step:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "forge_env.json").write_text("{}")
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("env: {name: math}\n")
    lines = [{"phase": "train", "step": 1, "success": 1.0}]
    lines += [{"phase": "evaluation", "step": step, "success": SUCCESS[step]} for step in evaluated]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"phase": "evaluation", "step": 40, "succ')  # the run goes on
    if complete:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
        (folder / "summary.json").write_text(json.dumps({"steps": complete}))
    return folder


@pytest.mark.parametrize(
    ("steps", "complete", "choice", "step", "folder"),
    [
        ((20, 40), 0, "", 40, "checkpoints/step_000040"),
        ((20, 40), 0, "@last", 40, "checkpoints/step_000040"),
        ((20, 40), 0, "@20", 20, "checkpoints/step_000020"),
        ((20, 40, 60), 0, "@best", 40, "checkpoints/step_000040"),  # the earlier of equals
        ((20, 60, 80), 0, "@best", 60, "checkpoints/step_000060"),  # the weights of 40 are gone
        ((20, 40, 80), 80, "", 80, "model"),
        ((20, 40, 80), 80, "@80", 80, "model"),
        ((20, 40, 80), 80, "@best", 40, "checkpoints/step_000040"),
        ((80,), 80, "@best", 80, "model"),
    ],
)
def test_a_name_stands_for_one_step(
    tmp_path: Path, steps: Sequence[int], complete: int, choice: str, step: int, folder: str
) -> None:
    run = make_run(tmp_path / "run", steps, complete=complete)
    weights = run_weights(f"{run}{choice}")
    assert (weights.run, weights.step, weights.folder) == (run, step, run / folder)
    assert weights.name == f"{run}@{step}" and run_weights(weights.name) == weights
    assert weights.is_checkpoint == (folder != "model") and run_of(weights.name) == run


def test_a_final_model_of_fewer_steps_is_not_the_last(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", (40, 60), complete=40)
    (run / "summary.json").unlink()  # as a run does that goes on
    assert run_weights(str(run)).step == 60


def test_the_folder_of_a_checkpoint_is_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", (20, 40))
    monkeypatch.chdir(run / "checkpoints")
    weights = run_weights("step_000020")
    assert (weights.name, weights.run, weights.step) == ("step_000020", run, 20)


def test_a_folder_with_an_at_in_its_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run@20", (40, 60))
    make_run(tmp_path / "run", (20,))
    assert run_weights(f"{run}").name == f"{run}@60" and run_weights(f"{run}@40").step == 40
    assert run_of(f"{run}@best") == run


def test_a_model_without_a_record_has_no_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", (), complete=40)
    (run / "summary.json").unlink()
    weights = run_weights(str(run))
    assert (weights.name, weights.step, weights.folder) == (str(run), None, run / "model")
    with pytest.raises(UserError, match="run@40: .*/run holds one model, and no record of its step: leave @40 out$"):
        run_weights(f"{run}@40")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "run/model", "nowhere", "nowhere@40", "empty"])
def test_a_model_or_another_folder_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make_run(tmp_path / "run", (), complete=40)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run_of(name) is None


@pytest.mark.parametrize(
    ("steps", "evaluated", "choice", "words"),
    [
        (
            (20, 40),
            (20,),
            "@30",
            "no weights @30: it has the weights of the steps 20, 40; name one of them, best or last",
        ),
        ((40,), (20,), "@bset", "run has no weights @bset: it has the weights of the step 40; name one"),
        ((40,), (), "@best", "no best step of .*run: it has no evaluation, and it has .* the step 40; .*run@40$"),
        ((40,), (0, 20), "@best", "run: it has evaluated the steps 0, 20, and it has the weights of the step 40;"),
        ((), (0,), "", "run holds neither a model/ folder, which .* nor a checkpoint"),
        ((), (0,), "@best", "run holds neither a model/ folder, which .* nor a checkpoint"),
    ],
)
def test_weights_that_there_are_not(
    tmp_path: Path, steps: Sequence[int], evaluated: Sequence[int], choice: str, words: str
) -> None:
    run = make_run(tmp_path / "run", steps, evaluated=evaluated)
    with pytest.raises(UserError, match=words):
        run_weights(f"{run}{choice}")


@pytest.mark.parametrize("line", ["{", "{}", "3", '"text"', "\x00"])
def test_damaged_metrics_are_one_sentence(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path / "run", (20, 40))
    (run / "metrics.jsonl").write_text(f"{line}\n")
    assert run_weights(f"{run}@40").step == 40
    with pytest.raises(UserError, match="metrics.jsonl is damaged"):
        run_weights(f"{run}@best")
