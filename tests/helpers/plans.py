"""Plans of runs, from the options of their commands."""

from __future__ import annotations

import pytest

from forge_env.core.errors import UserError
from trainers import cispo, dapo, gspo, reinforce, sapo, sft
from trainers.algorithm import Algorithm
from trainers.grpo import GRPO
from trainers.setup.describe import describe_plan
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan

MADE = (GRPO, cispo.CISPO, dapo.DAPO, gspo.GSPO, reinforce.REINFORCE, sapo.SAPO, sft.SFT)
ALGORITHMS = {algorithm.name: algorithm for algorithm in MADE}


def plan_of(*options: str, algorithm: Algorithm | str = GRPO) -> RunPlan:
    """A text may hold several options, with spaces between them."""
    found = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    return make_plan(read_config(found.config, " ".join(options).split()), found)


def refusal(*options: str, algorithm: Algorithm | str = GRPO) -> str:
    """The sentence that refuses these options."""
    with pytest.raises(UserError) as caught:
        plan_of(*options, algorithm=algorithm).check()
    return str(caught.value)


def lines_of(plan: RunPlan, name: str = "defaults") -> list[str]:
    """What a plan says in its lines of this name."""
    return [text for line, text in describe_plan(plan) if line == name]
