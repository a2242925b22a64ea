"""Options that change nothing in a run are named in its plan, with the reason; options that count are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.utils.settings import leaves
from tests.helpers.plans import plan_of
from tests.helpers.rows import rows
from trainers import dapo, reinforce, sft
from trainers.algorithm import Algorithm
from trainers.grpo import GRPO
from trainers.setup.checks.no_effect import no_effect, rules

NAMED = rows(__file__, "no_effect.tsv")


def found(options: str, algorithm: Algorithm = GRPO) -> list[str]:
    return no_effect(plan_of(options, algorithm=algorithm))


@pytest.mark.parametrize(("options", "sentence"), NAMED)
def test_an_option_without_effect_is_named_with_the_reason(options: str, sentence: str) -> None:
    assert found(options) == ([sentence] if sentence else [])


def test_other_algorithms_and_supervised_training(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    assert found("--reinforce.kl=k1", reinforce.REINFORCE) == [
        "--reinforce.kl k1, because --reinforce.beta is 0, and there is no KL penalty"
    ]
    assert found("--dapo.overlong_penalty=0 --dapo.overlong_buffer=0.5", dapo.DAPO) == [
        "--dapo.overlong_buffer 0.5, because --dapo.overlong_penalty is 0"
    ]
    assert found("", sft.SFT) == [] == found(f"--sft.data={chats}", sft.SFT)
    named = found(f"--sft.data={chats} --warmup.batch_size=4 --env.max_turns=2", sft.SFT)
    assert named == [
        "--env.max_turns 2, because there is no environment",
        "--warmup.batch_size 4, because --sft.data has the demonstrations",
    ]


def test_every_rule_names_settings_that_there_are() -> None:
    names = {
        setting.name.replace(algorithm.config().algorithm_name, "grpo", 1)
        for algorithm in (GRPO, dapo.DAPO, reinforce.REINFORCE)
        for setting in leaves(algorithm.config())
    }
    plan = plan_of("--env=math")
    named = {name for rule in rules(plan) for name in rule.names.split()}
    unknown = {name for name in named if not any(f"{known}.".startswith(f"{name.rstrip('.')}.") for known in names)}
    assert unknown == set()
