"""Gradients that stay on the device until the last micro-batch: the steps are the same, and the host gets them once."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan")

from tests.helpers.forks import run_ranks
from tests.trainers.titan.test_trainer import SETTINGS, make_model, make_samples
from trainers.losses import GRPOLoss
from trainers.titan.model import TitanModel
from trainers.titan.parallel import init_process_group
from trainers.titan.sums import keep_sums
from trainers.titan.trainer import TitanTrainer

SMALL = dataclasses.replace(SETTINGS, max_tokens_per_micro_batch=60)


def be_a_rank(root: Path) -> None:
    """Take two steps as FSDP is, and two with kept sums; note which gradients there are before the last micro-batch."""
    init_process_group()
    steps, before_the_last = {}, {}
    for kind in ("plain", "kept"):
        trainer = TitanTrainer(root / "model", SMALL)
        if kind == "kept":
            keep_sums(trainer.model.module)
        before_the_last[kind] = note_gradients(trainer.model)
        steps[kind] = [trainer.train_step(make_samples(seed=seed), GRPOLoss()) | {"seconds": 0} for seed in (0, 1)]
    (root / f"{os.environ['RANK']}.json").write_text(json.dumps([steps, before_the_last]))
    torch.distributed.destroy_process_group()


def note_gradients(model: TitanModel) -> list[bool]:
    """Whether any weight has a gradient when the last micro-batch of a step begins, step by step."""
    found: list[bool] = []
    complete = model.complete_gradients

    def noted(now: bool) -> None:
        if now:
            found.append(any(parameter.grad is not None for parameter in model.module.parameters()))
        complete(now)

    model.complete_gradients = noted  # type: ignore[method-assign]
    return found


def test_the_steps_are_the_same_and_no_gradient_is_there_before_the_last_micro_batch(tmp_path: Path) -> None:
    make_model(tmp_path / "model", tied=False)
    run_ranks(be_a_rank, tmp_path, world=2, seconds=120)
    for rank in (0, 1):
        steps, before_the_last = json.loads((tmp_path / f"{rank}.json").read_text())
        for ours, expected in zip(steps["kept"], steps["plain"], strict=True):
            assert ours == pytest.approx(expected, rel=1e-5) and ours["grad_norm"] > 0
        assert before_the_last == {"plain": [True, True], "kept": [False, False]}
