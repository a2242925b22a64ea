"""Whole runs on one GPU that engine and trainer share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from forge_env.core.episode import read_jsonl
from trainers.grpo import GRPO, Config
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU")]
ROOT = Path(__file__).parents[2]
SHARE_GIB = 28.0  # of a card that a run takes, so that several tests may share it


@pytest.mark.timeout(420)
@pytest.mark.parametrize("env", ["math", "code_exec"])
def test_a_run_of_the_tiny_model(env: str, tmp_path: Path) -> None:
    run_the_tiny_model(env, tmp_path)


def run_the_tiny_model(env: str, tmp_path: Path) -> None:
    output = run(
        tmp_path / "run", "--env", env, "--steps", "5", "--warmup.steps", "40", "--generator.cuda_graphs=false"
    )
    assert "weights: through GPU memory (CUDA IPC)" in output
    check(tmp_path / "run", steps=5)


@pytest.mark.timeout(420)
def test_a_run_in_the_shape_of_qwen3(qwen3: Path, tmp_path: Path) -> None:
    options = ["--model", str(qwen3), "--env", "math", "--steps", "3", "--env.max_turn_tokens", "128", "--tasks", "64"]
    output = run(tmp_path / "run", *options, "--dataset.held_out", "32", "--training.learning_rate", "1e-6")
    assert "weights: through GPU memory (CUDA IPC)" in output
    check(tmp_path / "run", steps=3)


@pytest.mark.timeout(420)
def test_a_run_of_a_model_that_thinks(tmp_path: Path) -> None:
    """Its demonstrations begin with an empty thought, so its thoughts are over their budget, and are ended."""
    options = ["--env", "math", "--steps", "3", "--warmup.steps", "80", "--generator.cuda_graphs=false"]
    options += ["--env.thinking", "on", "--env.max_thinking_tokens", "1", "--env.max_turn_tokens", "40"]
    run(tmp_path / "run", *options)
    turns = [turn for e in read_jsonl(tmp_path / "run" / "episodes" / "train.jsonl") for turn in e.turns]
    ended = [turn for turn in turns if turn.num_written < len(turn.token_ids)]
    assert len(ended) > len(turns) / 2 and all(len(turn.context_digest.split()) == 2 for turn in ended)
    check(tmp_path / "run", steps=3)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("where", ["GPU", "CPU"])
def test_a_run_with_a_reference_model(where: str, tmp_path: Path) -> None:
    options = ["--env", "math", "--steps", "3", "--warmup.steps", "40", "--generator.cuda_graphs=false"]
    options += ["--ref_model.procs", "1", "--grpo.beta", "0.01", f"--ref_model.with_gpus={where == 'GPU'}"]
    assert f"the reference model, on {where} and frozen" in run(tmp_path / "run", *options)
    check(tmp_path / "run", steps=3)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("packed", [True, False])
def test_a_dry_run_knows_the_memory(packed: bool, qwen3: Path, tmp_path: Path) -> None:
    """To 15%, of all that is on the GPU."""
    options = ["--model", str(qwen3), "--env", "math", "--steps", "3", "--dataset.held_out", "8", "--tasks", "64"]
    options += ["--env.max_turn_tokens", "128", "--training.learning_rate", "1e-6", f"--training.packing={packed}"]
    options += ["--training.max_tokens_per_micro_batch", "32768", "--training.batch_size", "16"]
    options += ["--launcher.gpu_memory_gib", "0"]
    plan = make_plan(read_config(Config, options), GRPO)
    estimated = plan.cards[0].worst
    run(tmp_path / "run", *options)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    used = max(line.get("gpu/0/memory_used_bytes", 0.0) for line in lines)
    print(f"estimated {estimated / 2**30:.1f} GiB, measured {used / 2**30:.1f} GiB")
    assert used == pytest.approx(estimated, rel=0.15)


def run(folder: Path, *options: str) -> str:
    """A run whose rewards say nothing of the answers, so that all groups have advantages."""
    card = torch.cuda.get_device_properties(0).total_memory / 2**30
    fixed = ["--training.reward", "benchmarks.gpu.any_reward:any_reward"]
    fixed += ["--launcher.gpu_memory_gib", f"{min(SHARE_GIB, card):.1f}"]
    command = [sys.executable, "-m", "trainers.grpo", "--output", str(folder), *fixed, *options]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, capture_output=True, text=True, timeout=400
    )
    print(done.stdout[-6000:], done.stderr[-6000:])
    assert done.returncode == 0
    return done.stdout


def check(folder: Path, *, steps: int, difference: float = 0.05) -> list[float]:
    """Each step has learned from all of its episodes, and engine and trainer agree.

    Returns:
        The mean difference of their logprobs in each step, which is below `difference`.
    """
    assert json.loads((folder / "summary.json").read_text())["success_after"] is not None
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["phase"] == "train"]
    assert len(trained) == steps
    for line in trained:
        assert line["skipped"] == 0 and line["tokens_left_out"] == 0 and line["grad_norm"] > 0, line
        assert line["mean_abs_logprob_difference"] < difference, line
    return [line["mean_abs_logprob_difference"] for line in trained]
