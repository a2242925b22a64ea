"""Limits of an episode that an environment's expert needs: defaults grow, and a limit that was given is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from forge_env.rollout.factory import make
from tests.helpers.plans import plan_of, refusal
from trainers.model.make import make_model
from trainers.setup import expert_need

CABINET = f"{Path(__file__).parents[3]}/examples/filing_cabinet.py:FilingCabinet"
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


def test_default_limits_are_what_the_expert_needs(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(SLOW.replace("time.sleep(2)", "pass"))
    limits = plan_of(f"--env={tmp_path}/long.py:Slow").config.env
    assert (limits.max_turns, limits.max_turn_tokens) == (3, 160)
    whole = plan_of(f"--env={CABINET}", algorithm="dapo").objective
    assert whole is not None and whole.reward.addition is not None
    assert whole.reward.addition.__self__.length == 4 * 32  # type: ignore[attr-defined]


@pytest.mark.parametrize("more", ["", "--model=Qwen/Qwen3-8B --warmup.steps=5"])
@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
def test_a_limit_that_ends_the_experts_episodes_is_refused(more: str, algorithm: str) -> None:
    found = refusal(f"--env={CABINET}", "--env.max_turns=3", more, algorithm=algorithm)
    assert found.endswith("needs 4 turns, and --env.max_turns is 3: set it to 4 or more")


def test_a_plan_does_not_wait_for_a_slow_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setattr(expert_need, "SECONDS", 0.05)
    plan = plan_of(f"--env={tmp_path}/slow.py:Slow")
    assert plan.config.env.max_turn_tokens == 32, "its expert, which writes more, was not waited for"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("raise OSError(level)", "Own() ({file}:23): OSError: 1"),
        ("pass", "Own.__init__ does not call super().__init__(): write it as its first line"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused(body: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{SLOW}\nclass Own(Slow):\n    def __init__(self, level=1):\n        {body}\n")
    name = f"{tmp_path}/own.py:Own"
    sentence = f"no instance of the environment {name} can be made: {fault.format(file=tmp_path / 'own.py')}"
    assert refusal(f"--env={name}", "--model=Qwen/Qwen3-8B") == sentence


async def test_the_start_names_the_limit_of_an_environment_that_a_plan_does_not_play(tmp_path: Path) -> None:
    assert plan_of("--env=math").config.env.max_turns == 3, "it shares a process"
    limits = make("math").episode_limits()
    with pytest.raises(UserError, match=r"the expert of math needs 2 turns, and --env\.max_turns is 1"):
        await make_model(tmp_path / "model", make("math"), seed=0, limits=type(limits)(max_turns=1))
