"""Limits of an episode that an environment's expert needs: defaults grow, and a limit that was given is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.rollout.factory import make
from trainers import sft
from trainers.algorithm import Algorithm
from trainers.dapo import DAPO
from trainers.grpo import GRPO
from trainers.model.make import make_model
from trainers.setup import expert_need
from trainers.setup.describe import describe_plan
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan

CABINET = f"{Path(__file__).parents[3]}/examples/filing_cabinet.py:FilingCabinet"
GIVEN = "--model=Qwen/Qwen3-8B"
SLOW = """
import time
from forge_env import Task, ToolEnv, reward

class Slow(ToolEnv):
    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        return [Task(prompt=({"role": "user", "content": str(i)},)) for i in range(count)]

    def setup(self):
        time.sleep(2)

    @reward
    def always(self):
        return 1.0

    @staticmethod
    def expert(messages):
        return {"role": "assistant", "content": "done " * 100}
"""


def plan_of(*arguments: str, algorithm: Algorithm = GRPO) -> RunPlan:
    return make_plan(read_config(algorithm.config, [f"--env={CABINET}", *arguments]), algorithm)


def test_default_limits_are_what_the_expert_needs(tmp_path: Path) -> None:
    plan = plan_of()
    env = plan.config.env
    assert (env.max_turns, env.max_turn_tokens, env.max_tokens) == (4, 32, 512)
    said = [text for name, text in describe_plan(plan) if name == "defaults"]
    assert any("env.max_turns 4 (what the expert of" in text for text in said)
    (tmp_path / "long.py").write_text(SLOW.replace("time.sleep(2)", "pass"))
    limits = make_plan(read_config(GRPO.config, [f"--env={tmp_path}/long.py:Slow"]), GRPO).config.env
    assert (limits.max_turns, limits.max_turn_tokens) == (3, 160)
    given = plan_of(GIVEN)
    assert (given.config.env.max_turns, given.config.env.max_turn_tokens) == (8, 512), "there is room"
    assert plan_of("--env.max_turn_tokens=40").config.env.max_turn_tokens == 40
    whole = plan_of(algorithm=DAPO).objective
    assert whole is not None and whole.reward.addition is not None
    assert whole.reward.addition.__self__.length == 4 * 32  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", [[], [GIVEN, "--warmup.steps=5"]])
@pytest.mark.parametrize("algorithm", [GRPO, sft.SFT])
def test_a_limit_that_ends_the_experts_episodes_is_refused(arguments: Sequence[str], algorithm: Algorithm) -> None:
    words = r"the expert of .* needs 4 turns, and --env\.max_turns is 3: set it to 4 or more"
    with pytest.raises(UserError, match=words):
        plan_of("--env.max_turns=3", *arguments, algorithm=algorithm)


def test_a_run_without_demonstrations_may_have_fewer_turns() -> None:
    assert plan_of("--env.max_turns=3", GIVEN).config.env.max_turns == 3


def test_a_plan_does_not_wait_for_a_slow_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setattr(expert_need, "SECONDS", 0.05)
    plan = make_plan(read_config(GRPO.config, [f"--env={tmp_path}/slow.py:Slow"]), GRPO)
    assert plan.config.env.max_turn_tokens == 32, "its expert, which writes more, was not waited for"


async def test_the_start_names_the_limit_of_an_environment_that_a_plan_does_not_play(tmp_path: Path) -> None:
    assert make_plan(read_config(GRPO.config, ["--env=math"]), GRPO).config.env.max_turns == 3, "it shares a process"
    limits = make("math").episode_limits()
    with pytest.raises(UserError, match=r"the expert of math needs 2 turns, and --env\.max_turns is 1"):
        await make_model(tmp_path / "model", make("math"), seed=0, limits=type(limits)(max_turns=1))
