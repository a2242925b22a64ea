"""Groups with and without a signal are counted by their outcome and by kind of task."""

from __future__ import annotations

from forge_env.core.episode import Group
from forge_env.core.types import Task
from forge_env.evaluation.kinds import Kinds
from tests.trainers.episodes import episode, turn
from trainers.controller.drop_counts import SignalCounts


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
