"""What serves as the reference model, and settings that contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from trainers.algorithm import find_algorithm
from trainers.config import SHORT_OPTIONS
from trainers.objective.objective import Objective
from trainers.objective.reward import KLPenalty
from trainers.setup.describe import describe_services
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan

OWN = "def four(logprobs, ref_logprobs, advantages, padding_mask):\n    return logprobs.sum()\n"
BETA = ("--grpo.beta", "0.1")
REFERENCE = ("--services.ref_model.procs", "1")


def resolved(*arguments: str, page: str = "grpo") -> tuple[Objective, bool]:
    """The objective of these options, and whether a reference model is started."""
    algorithm = find_algorithm(f"trainers.{page}:{page.upper()}")
    plan = make_plan(parse(algorithm.config, list(arguments), SHORT_OPTIONS), algorithm)
    plan.check()
    assert plan.objective is not None
    assert ("ref_model on CPU" in describe_services(plan)) == plan.placement.has_reference
    return plan.objective, plan.placement.has_reference


def test_who_serves_as_the_reference() -> None:
    for arguments, expected in {
        (): ("", False),
        REFERENCE: ("", False),  # nothing needs it
        BETA: ("generator", False),
        (*BETA, *REFERENCE): ("model", True),
        (*BETA, *REFERENCE, "--grpo.kl_in", "reward"): ("model", True),
        ("--grpo.kl_in", "reward"): ("", False),
    }.items():
        made, is_started = resolved(*arguments)
        assert (made.kl_reference, is_started) == expected, arguments


def test_a_users_loss_gets_a_reference_if_it_names_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    names, plain = f"{tmp_path / 'mine.py'}:four", "trainers.losses:SFTLoss"
    assert resolved("--loss", names, *REFERENCE)[1] and resolved("--loss", names)[0].kl_reference == "generator"
    assert not resolved("--loss", plain, *BETA, *REFERENCE)[1], "the weight is the page's loss's, which is not used"
    assert resolved("--loss", plain, *BETA, *REFERENCE, "--grpo.kl_in", "reward")[1]


def test_the_penalty_is_in_one_place() -> None:
    made, _ = resolved(*BETA, *REFERENCE)
    assert made.reward.kl_penalty is None and (made.loss.beta, made.loss.kl) == (0.1, "k3")  # type: ignore[attr-defined]
    made, _ = resolved(*BETA, *REFERENCE, "--grpo.kl_in", "reward")
    assert made.reward.kl_penalty == KLPenalty(beta=0.1, kind="k1")
    assert made.loss.beta == 0  # type: ignore[attr-defined]
    made, _ = resolved(*BETA, *REFERENCE, "--grpo.kl_in", "reward", "--grpo.kl", "k3")
    assert made.reward.kl_penalty is not None and made.reward.kl_penalty.kind == "k3"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*BETA, "--grpo.kl_in", "reward"), r"needs a reference model.*--services\.ref_model\.procs 1"),
        (("--training.old_logprobs", "trainer", "--loss", "trainers.losses:SimpleGRPOLoss"), "does not name old_log"),
    ],
)
def test_settings_that_contradict_each_other(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        resolved(*arguments)


@pytest.mark.parametrize("page", ["grpo", "dapo", "gspo", "sapo", "cispo", "reinforce"])
def test_every_page_can_take_old_logprobs(page: str) -> None:
    assert resolved("--training.old_logprobs", "trainer", page=page)[0].kl_reference == ""
