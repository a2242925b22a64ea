"""Whole runs on one GPU that engine and trainer share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU")]
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(420)
@pytest.mark.parametrize("env", ["math", "code_exec", "tool_api"])
def test_a_run_of_the_tiny_model(env: str, tmp_path: Path) -> None:
    said = run(tmp_path / "run", "--env", env, "--steps", "5", "--warmup.steps", "40", "--generator.cuda_graphs=false")
    assert "weights go through GPU memory (CUDA IPC)" in said
    check(tmp_path / "run", steps=5)


@pytest.mark.timeout(420)
def test_a_run_in_the_shape_of_qwen3(qwen3: Path, tmp_path: Path) -> None:
    options = ["--model", str(qwen3), "--env", "math", "--steps", "3", "--env.max_turn_tokens", "128", "--tasks", "64"]
    said = run(tmp_path / "run", *options, "--dataset.held_out", "32", "--training.learning_rate", "1e-6")
    assert "weights go through GPU memory (CUDA IPC)" in said
    check(tmp_path / "run", steps=3)


def run(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "trainers.grpo", "--output", str(folder), *options]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, capture_output=True, text=True, timeout=400
    )
    print(done.stdout[-6000:], done.stderr[-6000:])
    assert done.returncode == 0
    return done.stdout


def check(folder: Path, *, steps: int) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["success_after"] is not None
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["phase"] == "train"]
    assert len(trained) == steps
    for line in trained:
        assert line["mean_abs_logprob_difference"] < 0.05, line
