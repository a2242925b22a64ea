"""The schedule alone, against random latencies, drops, slow engines and slow training: 100,000 simulated groups."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import InvariantError, UserError
from trainers.controller.schedule import Schedule


@dataclass
class Simulation:
    """A run in simulated time: the real schedule, random clocks for rollouts, training and weight updates."""

    batch_size: int
    staleness: int
    sync_interval: int
    seed: int
    drop_share: float = 0.1
    again_share: float = 0.1
    """Groups whose environment dies: they begin once more, at the same place of the schedule."""
    in_windows: bool = False
    """Whether the groups of all steps until the next update are taken before the first of them trains."""
    admitted: dict[int, int] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)

    def run(self, steps: int) -> None:
        rng = random.Random(self.seed)
        schedule: Schedule[int] = Schedule(batch_size=self.batch_size, staleness=self.staleness)
        events: list[tuple[float, int, str, int]] = []  # (time, order, kind, group or version)
        now, order, version, trains, next_group = 0.0, 0, 0, False, 0
        done = 0  # steps that are trained; those that are taken are schedule.step
        pulls, due = False, 0  # whether an update is in flight, and the version that waits for it to end

        def at(delay: float, kind: str, value: int) -> None:
            nonlocal order
            order += 1
            heapq.heappush(events, (now + delay, order, kind, value))

        def takes() -> bool:
            if trains or due or schedule.step >= steps:
                return False
            return schedule.step == done or (self.in_windows and schedule.step % self.sync_interval != 0)

        def is_whole() -> bool:
            return not self.in_windows or schedule.step % self.sync_interval == 0 or schedule.step == steps

        while done < steps:
            while schedule.admits(version):
                schedule.admit(next_group, version)
                self.admitted[next_group] = version
                at(rng.lognormvariate(0, 1.5), "finished", next_group)
                next_group += 1
            assert schedule.open <= (self.staleness + 1) * self.batch_size
            if not pulls and due:  # published, and taken over while the next step trains
                at(rng.lognormvariate(0, 1.5), "synced", due)
                pulls, due = True, 0
            if takes() and (groups := schedule.take()) is not None:
                assert len(groups) == self.batch_size
                for group in groups:
                    assert group not in self.trained and group not in self.dropped
                    self.trained[group] = schedule.step - 1
                continue
            if not trains and not due and done < schedule.step and is_whole():
                trains = True
                at(rng.lognormvariate(0, 0.5), "trained", done + 1)
                continue
            assert events, f"deadlock: {schedule.open} open, {schedule.ready} ready, before step {schedule.step}"
            now, _, kind, value = heapq.heappop(events)
            if kind == "trained":
                trains, done = False, value
                if value % self.sync_interval == 0:
                    due = value
            elif kind == "synced":
                version, pulls = value, False
            elif rng.random() < self.again_share:
                at(rng.lognormvariate(0, 1.5), "finished", value)
            elif rng.random() < self.drop_share:
                schedule.drop(value)
                self.dropped.add(value)
            else:
                schedule.finish(value)

    def check(self) -> None:
        assert all(0 <= step - self.admitted[group] <= self.staleness for group, step in self.trained.items())


@pytest.mark.parametrize("staleness", [0, 1, 2, 3, 8])
def test_the_bound_holds_and_nothing_deadlocks_over_many_groups(staleness: int) -> None:
    """Five times 20,000 trained groups and those dropped beside them."""
    for seed, batch_size in enumerate((1, 3, 8, 32)):
        simulation = Simulation(batch_size, staleness, 1 + seed % (staleness + 1), seed)
        simulation.run(5000 // batch_size)
        simulation.check()


@given(
    batch_size=st.integers(1, 6),
    staleness=st.integers(0, 6),
    interval=st.integers(1, 7),
    seed=st.integers(0, 2**20),
    drop_share=st.floats(0, 0.9),
    again_share=st.floats(0, 0.5),
    in_windows=st.booleans(),
)
def test_no_setting_deadlocks(
    batch_size: int, staleness: int, interval: int, seed: int, drop_share: float, again_share: float, in_windows: bool
) -> None:
    pace = staleness, min(interval, staleness + 1)
    simulation = Simulation(batch_size, *pace, seed, drop_share, again_share, in_windows)
    simulation.run(40)
    simulation.check()


def test_quick_groups_overtake_a_slow_one_until_its_deadline() -> None:
    schedule: Schedule[str] = Schedule(batch_size=1, staleness=2)
    for name in ("slow", "a", "b"):
        schedule.admit(name, 0)
    assert not schedule.admits(0)
    schedule.finish("a")
    assert schedule.take() == ["a"]
    assert schedule.admits(1)
    schedule.finish("b")
    assert schedule.take() == ["b"]
    assert schedule.overdue() == ["slow"]
    schedule.admit("c", 2)
    schedule.finish("c")
    assert schedule.take() is None, "slow is due in this step"
    schedule.finish("slow")
    assert schedule.take() == ["slow"]


def test_a_dropped_straggler_frees_the_step() -> None:
    schedule: Schedule[str] = Schedule(batch_size=1, staleness=0)
    schedule.admit("slow", 0)
    assert not schedule.admits(0)
    schedule.drop("slow")
    assert schedule.admits(0) and schedule.open == 0


def test_groups_that_are_too_old_to_begin_wait_for_new_weights() -> None:
    schedule: Schedule[str] = Schedule(batch_size=1, staleness=1)
    for name in ("a", "b"):
        schedule.admit(name, 0)
        schedule.finish(name)
    assert schedule.take() == ["a"] and schedule.take() == ["b"]
    assert not schedule.admits(0), "step 2 starts from version 2, two ahead of version 0"
    assert schedule.admits(1)


def test_what_was_ready_at_a_stop_keeps_its_deadline() -> None:
    before: Schedule[str] = Schedule(batch_size=1, staleness=1)
    for name in ("a", "b"):
        before.admit(name, 0)
        before.finish(name)
    assert before.take() == ["a"]
    schedule: Schedule[str] = Schedule(batch_size=1, staleness=1, step=before.step)
    schedule.restore("b", before.deadline("b"))
    assert schedule.deadline("b") == before.deadline("b") == 1
    assert schedule.admits(1)
    schedule.admit("c", 1)
    schedule.finish("c")
    assert schedule.take() == ["b"], "it is due in this step, and c in the next one"
    with pytest.raises(InvariantError, match="cannot be restored"):
        schedule.restore("late", before.step)
    schedule = Schedule(batch_size=1, staleness=2, step=1)
    schedule.restore("last", 3)
    with pytest.raises(InvariantError, match="deadline 4 cannot be restored before step 1"):
        schedule.restore("far", 4)


def test_mistakes_are_noticed() -> None:
    schedule: Schedule[str] = Schedule(batch_size=1, staleness=0)
    schedule.admit("a", 0)
    with pytest.raises(InvariantError, match="not to be admitted"):
        schedule.admit("b", 0)
    schedule.finish("a")
    with pytest.raises(InvariantError, match="twice"):
        schedule.finish("a")
    with pytest.raises(UserError, match="batch_size is 0"):
        Schedule(batch_size=0, staleness=0)
