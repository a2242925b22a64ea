"""DropCounts: rows end as they should, a checkpoint restores every count, and a run without a gradient says why."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from forge_env.core.episode import Group
from forge_env.core.errors import NothingTrained, ServiceError
from forge_env.core.faults import MAX_FAULTS_IN_A_ROW
from forge_env.core.types import Outcome, Task
from forge_env.evaluation.kinds import Kinds
from tests.trainers.controller.test_loop import group
from tests.trainers.episodes import episode, turn
from trainers.controller.drop_counts import MAX_FLAT_IN_A_ROW, DropCounts, SignalCounts


def test_a_checkpoint_restores_every_count() -> None:
    drops = DropCounts()
    drops.add_outcomes(group(0, [Outcome.TIMEOUT, Outcome.ENV_FAULT, Outcome.TIMEOUT]))
    drops.add_outcomes(group(1, [Outcome.ENV_FAULT, Outcome.ENV_FAULT]))
    drops.drop_flat("", "same", 0.5, most=0)
    drops.drop_faulty("", "gone")
    restored = DropCounts(**json.loads(json.dumps(asdict(drops))))
    assert restored == drops and restored.outcomes == {"timeout": 2, "env_fault": 3}
    assert len(restored.broken) == 1, "the other task also had time-outs"
    counts = {"episodes_timed_out": 2, "episodes_unjudged": 0, "groups_dropped": 1, "groups_without_signal": 1}
    assert restored.metrics == counts


def test_a_flat_group_ends_a_row_of_faulty_ones_and_not_the_other_way_round() -> None:
    drops = DropCounts()
    for _ in range(MAX_FAULTS_IN_A_ROW - 1):
        drops.drop_faulty("", "gone")
    drops.drop_flat("", "failed", 0.0, most=2)
    drops.drop_faulty("", "gone")
    assert (drops.faulty_in_a_row, drops.silent_in_a_row) == ({"": 1}, 1)
    with pytest.raises(NothingTrained, match="2 groups in a row were dropped: never rewarded"):
        drops.drop_flat("", "failed", 0.0, most=2)
    drops.keep("", has_signal=False)
    assert (drops.faulty_in_a_row, drops.silent_in_a_row) == ({"": 0}, 2)
    drops.keep("", has_signal=True)
    assert drops.silent_in_a_row == 0


def step(*fates: str, reward: float = 0.0, **values: float) -> dict[str, float]:
    """The metrics of a step without a gradient."""
    counts = {f"signal/{fate}": float(fates.count(fate)) for fate in ("failed", "solved", "same")}
    return {"skipped": 0.0, "tokens": 9.0, "training_reward": reward, **counts, **values}


def test_a_run_that_had_one_gradient_has_trained() -> None:
    drops = DropCounts()
    drops.train(step("failed"), has_gradient=False, most=2)
    drops.train(step(), has_gradient=True, most=2)
    for _ in range(3):
        drops.train(step("failed"), has_gradient=False, most=2)
    drops.check_trained()
    with pytest.raises(ServiceError, match="512 groups in a row"):
        for _ in range(MAX_FLAT_IN_A_ROW):
            drops.drop_flat("", "failed", 0.0, most=2)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (step("failed", "failed"), "all 2 steps had no gradient: never rewarded, all 4 groups"),
        (
            step("failed", "failed", reward=0.5),
            r"each of 4 groups had one reward .*, 0\.5 in the last, 4 of them without",
        ),
        (step("solved", "solved", reward=1.0), "always rewarded, all 4 groups had successes only"),
        (step("failed", "solved", reward=0.5), "2 of them without a success, 2 with successes only and 0 with both"),
        (step("failed", skipped=1.0), "loss or gradient was not finite"),
        (step(skipped=1.0, tokens=0.0), "no episode had a token to learn from"),
    ],
)
def test_a_run_without_any_gradient_has_trained_nothing(metrics: dict[str, float], words: str) -> None:
    drops = DropCounts()
    for _ in range(2):
        drops.train(metrics, has_gradient=False, most=0)
    with pytest.raises(NothingTrained, match=words):
        drops.check_trained()


def test_faults_beside_groups_without_a_signal_are_named() -> None:
    drops = DropCounts()
    drops.drop_faulty("", "gone")
    with pytest.raises(
        NothingTrained, match="the only step had no gradient: .* reward 0, and 1 more were dropped with"
    ):
        drops.train(step("failed"), has_gradient=False, most=1)


# ---- signals ----


def test_groups_are_counted_by_outcome_and_by_kind() -> None:
    counts = SignalCounts(Kinds(names=("add",)))

    def group(kind: str, *rewards: float) -> Group:
        members = tuple(episode(turn(1), reward=reward, name=str(i)) for i, reward in enumerate(rewards))
        return Group(task=Task(prompt=(), kind=kind), episodes=members, id=kind)

    counts.add(group("add", 0.0, 1.0), [0.0, 1.0])
    counts.add(group("add", 0.0, 0.0), [0.0, 0.0])
    counts.add(group("add", 1.0, 1.0), [1.0, 1.0])
    counts.add(group("", 0.0, 1.0), [0.5, 0.5])  # a reward of the user's that is the same for both
    assert counts.metrics == {
        "signal/groups": 4,
        "signal/failed": 1,
        "signal/solved": 1,
        "signal/same": 1,
        "signal/share": 0.25,
        "signal/groups/add": 3,
        "signal/failed/add": 1,
        "signal/solved/add": 1,
        "signal/groups/no_kind": 1,
        "signal/same/no_kind": 1,
    }
    counts.clear()
    assert set(counts.metrics.values()) == {0}
