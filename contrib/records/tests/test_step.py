"""`forge-env step`: a step that the trainer took is trained again from its files, and has the same figures."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchtitan")

from contrib.records.tests.conftest import Command
from forge_env.cli.main import main
from forge_env.core.episode import Episode, Group, Turn, digest, write_jsonl
from forge_env.core.types import Outcome, Task
from trainers.batching.batch import Sample
from trainers.checkpoints import path_of
from trainers.gspo import GSPO
from trainers.metrics.report import Trained
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import plan_settings
from trainers.titan.trainer import TitanSettings, TitanTrainer

REWARDS = {0: [1.0, 0.0, 0.5, 0.0], 1: [1.0, 1.0, 1.0, None]}
"""Of the groups of each step: the second one has no signal, and a fault."""


def episode(trainer: TitanTrainer, rng: np.random.Generator, name: str, reward: float | None) -> Episode:
    """An episode of random tokens, whose logprobs are almost the trainer's own."""
    prompt, sampled = ([int(id_) for id_ in rng.integers(5, 60, size)] for size in (4, int(rng.integers(3, 12))))
    turn = Turn(
        kind="sampled",
        observation=({"role": "user", "content": "?"},),
        message={"role": "assistant", "content": "!"},
        prompt_ids=tuple(prompt),
        token_ids=tuple(sampled),
        logprobs=(-1.0,) * len(sampled),
        versions=((0, len(sampled)),),
        starts_row=True,
        context_digest=digest(prompt),
        reward=reward or 0.0,
    )
    group = name.rpartition("/")[0]
    made = {"task": Task(prompt=(), id=group), "id": name, "group_id": group, "env": "math", "reward": reward}
    outcome = Outcome.SCORED if reward is not None else Outcome.INFRA_FAULT
    first = Episode(turns=(turn,), outcome=outcome, error="" if reward is not None else "InfraError: gone", **made)
    (now,) = trainer.logprobs([Sample(rows=first.rows)])
    logprobs = tuple(float(x) for x in now.astype(np.float64) + rng.normal(0, 0.05, len(now)))
    return first if reward is None else replace(first, turns=(replace(turn, logprobs=logprobs),))


def write_step(run: Path, trainer: TitanTrainer, plan: Any, step: int) -> None:
    """Take a step, and record it as a run does."""
    rng = np.random.default_rng(step)
    groups = []
    for number, rewards in REWARDS.items():
        name = f"train/{2 * step + number}"
        episodes = tuple(episode(trainer, rng, f"{name}/{i}", reward) for i, reward in enumerate(rewards))
        groups.append(Group(task=episodes[0].task, episodes=episodes, id=name))
    samples = plan.objective.samples(groups)
    metrics = trainer.train_step(samples, plan.objective.loss, old_is_present=plan.old_logprobs == "trainer")
    (run / "episodes").mkdir(parents=True, exist_ok=True)
    write_jsonl(run / "episodes" / "train.jsonl", [e for group in groups for e in group.episodes])
    trained = Trained(run / "trained.jsonl")
    valid = [e for group in groups for e in group.valid]
    trained.write(step, zip(valid, (sample.advantage for sample in samples), strict=True))
    trained.close()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"phase": "train", "step": step, **metrics}) + "\n")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A run of three steps, with checkpoints after the first two."""
    run = tmp_path_factory.mktemp("step") / "run"
    options = ["--env", "math", "--model", str(tiny_model), "--steps", "3", "--gspo.n_samples", "4"]
    plan = plan_settings(read_config(GSPO.config, options), GSPO)
    trainer = TitanTrainer(tiny_model, TitanSettings(learning_rate=1e-3, dtype="float32"))
    for step in (1, 2, 3):
        write_step(run, trainer, plan, step)
        extra = {"algorithm": "gspo", "command": GSPO.command, "config": asdict(plan.config), "warmup_steps": 0}
        if step < 3:
            trainer.save(path_of(run, step), step, extra)
    trainer.close()
    return run


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy that the test may change."""
    yield Path(shutil.copytree(recorded, tmp_path / "run"))


def test_every_step_has_its_recorded_figures_again(recorded: Path, command: Command) -> None:
    for step in (1, 2, 3):
        result = command("step", str(recorded), str(step))
        assert (result["weights_step"], result["notes"]) == (step - 1, [])
        for name, figure in result["compared"].items():
            if name != "training_reward":  # the trainer does not know it
                assert figure["now"] == pytest.approx(figure["recorded"], rel=1e-4, abs=1e-7), name
        assert result["now"]["tokens"] == sum(row["tokens"] for row in result["rows"]) > 0
        assert result["advantage_difference"] < 1e-12
    assert [row["reward"] for row in result["rows"]] == [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 1.0]
    first, *_, last = result["rows"]
    assert first["grad_norm"] > 0 and first["batches"] and 0.01 < first["difference"] < 0.2
    assert first["masks"] == [[[False, 4], [True, first["tokens"]]]]
    assert (last["grad_norm"], last["loss"], last["batches"], last["advantages"]) == (0.0, 0.0, [], [0.0])
    assert sum(batch["trained"] for batch in result["batches"]) == sum(r["tokens"] for r in result["rows"][:4])


def test_it_says_that_the_weights_are_of_another_step(
    run: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # cells are folded in a narrow terminal
    shutil.rmtree(path_of(run, 2))
    assert main(["step", str(run), "3"]) == 0
    out, said = capfd.readouterr()
    assert "weights of step 1" in out and "the weights are of step 1, and step 3 began with those of step 2" in said
    assert "7 episodes" in out and "train/6/0" in out


def remove_episode(run: Path) -> None:
    lines = (run / "episodes/train.jsonl").read_text().splitlines(keepends=True)
    (run / "episodes/train.jsonl").write_text("".join(line for line in lines if '"train/6/1"' not in line))


@pytest.mark.parametrize(
    ("change", "step", "message"),
    [
        (lambda run: None, 9, "has no step 9: it has the steps 1 to 3"),
        (lambda run: (run / "trained.jsonl").unlink(), 3, "it has no trained.jsonl"),
        (lambda run: (run / "episodes/train.jsonl").unlink(), 3, "the episodes of step 3 are not recorded"),
        (remove_episode, 3, "1 of the 7 episodes of step 3 are not in .*train.jsonl, as train/6/1"),
        (lambda run: shutil.rmtree(run / "checkpoints"), 3, "holds no checkpoint, whose weights step 3 needs"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(
    run: Path, change: Any, step: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    change(run)
    capfd.readouterr()
    assert main(["step", str(run), str(step)]) == 2
    said = capfd.readouterr().err
    assert re.search(message, said.replace("\n", " ")) and "Traceback" not in said
