"""What counts as a step that has learned."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest

from trainers.config import SHORT_OPTIONS
from trainers.controller.learner import Learner
from trainers.grpo import GRPO
from trainers.reinforce import REINFORCE
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan

MOVED = {"skipped": 0.0, "grad_norm": 1e-7, "groups_with_signal": 0.0}


@pytest.mark.parametrize(
    ("algorithm", "options", "metrics", "has_learned"),
    [
        (GRPO, (), {"groups_with_signal": 1.0}, True),
        (GRPO, (), {"groups_with_signal": 1.0, "grad_norm": 0.0}, False),
        (GRPO, (), {"groups_with_signal": 1.0, "grad_norm": math.nan, "skipped": 1.0}, False),
        (GRPO, ("--grpo.beta", "0.1"), {}, False),  # rounding of the KL penalty
        (GRPO, ("--training.entropy_coef", "0.1"), {}, True),
        (GRPO, ("--loss", "trainers.losses:SFTLoss"), {}, True),
        (REINFORCE, ("--reinforce.baseline", "none"), {}, True),
    ],
)
def test_what_counts_as_a_gradient(algorithm, options, metrics, has_learned) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(parse(algorithm.config, list(options), SHORT_OPTIONS), algorithm)
    learner = cast(Learner, SimpleNamespace(run=SimpleNamespace(plan=plan), objective=plan.objective))
    assert Learner.has_gradient(learner, MOVED | metrics) == has_learned
