"""Several environments in one run: how they are named, what each of them has, and that a resumed run has the same."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from tests.helpers.plans import plan_of
from tests.trainers.episodes import episode, turn
from trainers.config import SHORT_OPTIONS
from trainers.grpo import GRPO, Config
from trainers.settings.mixture import JOINT, Named, labels, read_names
from trainers.setup.options.parser import parse
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan, tasks_of
from trainers.setup.run_plan import RunPlan

SAME = ("--mixture.code_exec.options.level=2", "--mixture.code_exec.max_turns=5", "--mixture.math.n_samples=4")


def seen(plan: RunPlan) -> dict[str, tuple[object, ...]]:
    """What each environment has."""
    return {
        share.label: (share.config.env, share.config.dataset, share.config.evaluation, share.group_size, share.weight)
        for share in plan.environments
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("math", {"": Named("math")}),
        ("math:0.5", {"": Named("math", 0.5)}),
        ("file.py:Mine", {"": Named("file.py:Mine")}),
        ("a/file.py:Mine:2 + gymnasium:X-1", {"Mine": Named("a/file.py:Mine", 2), "X-1": Named("gymnasium:X-1")}),
        ("math + math:1e-1", {"math": Named("math"), "math_2": Named("math", 0.1)}),
        ("", {}),
    ],
)
def test_a_number_behind_the_colon_is_a_weight_and_anything_else_is_a_name(
    text: str, expected: dict[str, Named]
) -> None:
    assert read_names(text) == expected


def test_labels_are_different_and_can_be_settings() -> None:
    assert labels(["math", "a.py:X", "math", "b.py:X", "math_2", "m.od:a.b"]) == [
        *("math", "X", "math_2", "X_2", "math_2_2", "a_b")
    ]


def test_one_environment_is_what_it_was() -> None:
    """A weight alone changes nothing."""
    plain, weighted = plan_of("--env=math"), plan_of("--env", "math:3")
    (share,) = weighted.environments
    assert plain.config == weighted.config == share.config and share.label == "" and not weighted.has_several
    assert plain.share("math") is plain.environments[0]


def test_the_command_line_a_file_and_python_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "env: [{name: math, n_samples: 4}, {name: code_exec, weight: 0.5, options: {level: 2}, max_turns: 5}]\n"
    )
    listed = [{"name": "math", "n_samples": 4}]
    listed += [{"name": "code_exec", "weight": 0.5, "options": {"level": 2}, "max_turns": 5}]
    of_command = plan_of(SAME[2], "--env=math", *SAME[:2], "--env", "code_exec:0.5")
    of_file = plan_of(f"--config={tmp_path / 'run.yaml'}")
    of_python = make_plan(read_config(Config, [], [{"env": listed}]), GRPO)
    assert seen(of_file) == seen(of_python)
    for plan in (of_command, of_file):
        assert [share.group_size for share in plan.environments] == [4, 8]
        assert [share.config.env.max_turns for share in plan.environments] == [3, 5]
        assert [share.weight for share in plan.environments] == [1.0, 0.5]
        assert plan.share("code_exec").factory.options == {"level": 2}


def test_other_environments_on_the_command_line_replace_those_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("env: [{name: math, max_turns: 7}, code_exec]\n")
    assert plan_of(f"--config={tmp_path / 'run.yaml'}", "--env=math").config == plan_of("--env=math").config
    both = plan_of(f"--config={tmp_path / 'run.yaml'}", "--mixture.code_exec.max_turns=6")
    assert [share.config.env.max_turns for share in both.environments] == [7, 6]
    assert both.config.env.max_turns == 7, "engine and deadlines are sized by the largest"


def test_a_plan_says_everything_so_that_a_run_that_goes_on_has_the_same() -> None:
    first = plan_of("--env=math", "--env=code_exec:0.5", *SAME, "--env.max_turns=4", "--mixture.math.reward_scale=2")
    saved = asdict(first.config)
    again = make_plan(parse(Config, ["--env=math", "--env=code_exec:0.5"], SHORT_OPTIONS, old_values=saved), GRPO)
    assert again.config == first.config and seen(again) == seen(first)
    assert first.share("math").config.env.max_turns == 4 and first.share("code_exec").config.env.max_turns == 5


def test_demonstrations_and_held_out_tasks_are_of_every_environment() -> None:
    plan = plan_of(
        *("--env=math:2", "--env=code_exec", "--dataset.held_out=6", "--dataset.tasks=8"),
        *("--mixture.math.dataset.held_out=4", "--warmup.demonstrations=30"),
        *("--evaluation.sets.hard.env=math", "--evaluation.sets.hard.options.level=2"),
    )
    tasks, held_out = tasks_of(plan)
    assert {label: len(of_env.train) for label, of_env in tasks.items()} == {"math": 8, "code_exec": 8}
    assert [(part.env, len(part.tasks)) for part in held_out[""]] == [("math", 4), ("code_exec", 6)]
    assert [part.env for part in held_out["hard"]] == ["math"] and "hard.greedy" in held_out
    assert [share.config.warmup.demonstrations for share in plan.environments] == [20, 10]


def test_a_reward_is_punished_and_scaled_as_its_environment_says() -> None:
    options = ["--env=math", "--env=code_exec", "--mixture.math.max_turn_tokens=10", "--mixture.math.max_turns=1",
               "--mixture.code_exec.reward_scale=3", "--dapo.overlong_buffer=0"]  # fmt: skip
    plan = plan_of(*options, algorithm="dapo")
    assert plan.objective is not None
    long = episode(turn(*range(12)), reward=1.0)
    rewards = [plan.objective.reward(replace(long, env=env)) for env in ("math", "code_exec")]
    assert rewards == [0.0, 3.0], "12 tokens are too long for math only"


def test_the_only_environment_has_a_scale_too() -> None:
    plan, scaled = plan_of("--env=math"), plan_of("--env=math", "--env.reward_scale=2")
    assert plan.objective is not None and scaled.objective is not None and plan.objective.reward.scale is None
    half = replace(episode(turn(1), reward=0.5), env="math")
    assert (plan.objective.reward(half), scaled.objective.reward(half)) == (0.5, 1.0)


def test_supervised_training_learns_from_all_experts() -> None:
    plan = plan_of("--env=math", "--env=code_exec", algorithm="sft")
    assert [share.label for share in plan.environments] == ["math", "code_exec"] and plan.has_warmup


def test_a_mistake_in_a_list_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("env: [math, {weight: 2}]\n")
    with pytest.raises(UserError, match=r"env is a list, and an entry is \{'weight': 2\}: give a name"):
        plan_of(f"--config={tmp_path / 'run.yaml'}")
    assert JOINT == " + "
