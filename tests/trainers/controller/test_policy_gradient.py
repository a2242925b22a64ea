"""What serves as the reference model, and settings that contradict each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.plans import plan_of, refusal
from trainers.objective.objective import Objective
from trainers.objective.reward import KLPenalty

OWN = "def four(logprobs, ref_logprobs, advantages, padding_mask):\n    return logprobs.sum()\n"
BETA, REFERENCE = "--grpo.beta=0.1", "--services.ref_model.procs=1"


def objective_of(*options: str) -> Objective:
    made = plan_of(*options).objective
    assert made is not None
    return made


def test_a_users_loss_gets_a_reference_if_it_names_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    loss = f"--loss={tmp_path / 'mine.py'}:four"
    assert plan_of(loss, REFERENCE).placement.has_reference
    assert objective_of(loss).kl_reference == "generator"


def test_the_penalty_is_in_one_place() -> None:
    made = objective_of(BETA, REFERENCE)
    assert made.reward.kl_penalty is None and (made.loss.beta, made.loss.kl) == (0.1, "k3")  # type: ignore[attr-defined]
    made = objective_of(BETA, REFERENCE, "--grpo.kl_in=reward")
    assert made.reward.kl_penalty == KLPenalty(beta=0.1, kind="k1")
    assert made.loss.beta == 0  # type: ignore[attr-defined]
    made = objective_of(BETA, REFERENCE, "--grpo.kl_in=reward", "--grpo.kl=k3")
    assert made.reward.kl_penalty is not None and made.reward.kl_penalty.kind == "k3"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"{BETA} --grpo.kl_in=reward", r"needs a reference model.*--services\.ref_model\.procs 1"),
        ("--training.old_logprobs=trainer --loss=trainers.losses:SimpleGRPOLoss", "does not name old_log"),
    ],
)
def test_settings_that_contradict_each_other(arguments: str, words: str) -> None:
    assert re.search(words, refusal(arguments))
