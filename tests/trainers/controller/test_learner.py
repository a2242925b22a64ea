"""What counts as a step that has learned, and the metrics of a step."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest

from forge_env.core.episode import Episode, Group
from forge_env.core.types import Task
from forge_env.evaluation.kinds import Kinds
from tests.helpers.plans import plan_of
from trainers.controller.learner import Learner
from trainers.run.audit import Cheats

MOVED = {"skipped": 0.0, "grad_norm": 1e-7, "groups_with_signal": 0.0}


def test_the_metrics_of_a_step_have_the_parts_of_the_reward() -> None:
    records: list[dict[str, float]] = []
    record = SimpleNamespace(
        metrics=lambda phase, step, values: records.append(values), point=lambda *_: None, episodes=lambda *_: None
    )
    parts_of = [("a", {"form": 1.0, "right": 0.5}), ("a", {"form": 0.0}), ("b", {"form": 0.5})]
    episodes = [
        Episode(task=Task(prompt=(), id=str(i), kind=kind), reward=1.0, rewards=parts, id=str(i))
        for i, (kind, parts) in enumerate(parts_of)
    ]
    run = SimpleNamespace(
        record=record,
        num_replaced=0,
        rollouts=SimpleNamespace(envs={"": SimpleNamespace(client=SimpleNamespace(retries=0))}),
        kinds=Kinds(names=("a", "b")),
        cheats=Cheats(),
    )
    groups = [Group(task=episode.task, episodes=(episode,), id=episode.id) for episode in episodes]
    Learner.record_step(SimpleNamespace(run=run), 1, groups, {"seconds/step": 1.0})  # type: ignore[arg-type]
    [values] = records
    assert {name: value for name, value in values.items() if name.startswith("reward/")} == {
        "reward/a": 1.0,
        "reward/b": 1.0,
        "reward/form/mean": 0.5,
        "reward/form/std": pytest.approx((1 / 6) ** 0.5),
        "reward/form/episodes": 3.0,
        "reward/form/mean/a": 0.5,
        "reward/form/mean/b": 0.5,
        "reward/right/mean": 0.5,
        "reward/right/std": 0.0,
        "reward/right/episodes": 1.0,
        "reward/right/mean/a": 0.5,
    }


@pytest.mark.parametrize(
    ("algorithm", "options", "metrics", "has_learned"),
    [
        ("grpo", "", {"groups_with_signal": 1.0}, True),
        ("grpo", "", {"groups_with_signal": 1.0, "grad_norm": 0.0}, False),
        ("grpo", "", {"groups_with_signal": 1.0, "grad_norm": math.nan, "skipped": 1.0}, False),
        ("grpo", "--grpo.beta=0.1", {}, False),  # rounding of the KL penalty
        ("grpo", "--training.entropy_coef=0.1", {}, True),
        ("grpo", "--loss=trainers.losses:SFTLoss", {}, True),
        ("reinforce", "--reinforce.baseline=none", {}, True),
    ],
)
def test_what_counts_as_a_gradient(algorithm, options, metrics, has_learned) -> None:  # type: ignore[no-untyped-def]
    plan = plan_of(options, algorithm=algorithm)
    learner = cast(Learner, SimpleNamespace(run=SimpleNamespace(plan=plan), objective=plan.objective))
    assert Learner.has_gradient(learner, MOVED | metrics) == has_learned
