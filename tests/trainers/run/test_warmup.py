"""Which tasks the warm-up shows, and which are left for reinforcement learning."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.types import Task
from trainers.config import RunConfig, WarmupConfig
from trainers.run.warmup import demonstrated, tasks_after_warmup, undemonstrated_first

TASKS = [Task(prompt=(), id=str(number)) for number in range(10)]


def test_what_was_shown_comes_last() -> None:
    warmup = WarmupConfig(demonstrations=4, probe_tasks=2)
    assert [task.id for task in undemonstrated_first(TASKS, warmup)] == list("4567890123")


def test_where_all_that_may_be_is_shown_the_probe_s_tasks_come_first() -> None:
    warmup = WarmupConfig(demonstrations=100, probe_tasks=2)
    assert [task.id for task in undemonstrated_first(TASKS, warmup)] == list("8901234567")


@given(st.integers(1, 10), st.integers(0, 12), st.integers(1, 12))
def test_no_task_is_lost(tasks: int, probes: int, demonstrations: int) -> None:
    warmup = replace(WarmupConfig(), demonstrations=demonstrations, probe_tasks=probes)
    given, shown = TASKS[:tasks], demonstrated(TASKS[:tasks], warmup)
    ordered = undemonstrated_first(given, warmup)
    assert sorted(ordered, key=lambda task: task.id) == given
    assert ordered[len(ordered) - len(shown) :] == list(shown) and shown


def test_a_run_goes_through_them_in_this_order_after_a_warm_up_only() -> None:
    warmup = WarmupConfig(demonstrations=4, probe_tasks=2, steps=5)
    assert tasks_after_warmup(RunConfig(warmup=warmup), TASKS) == undemonstrated_first(TASKS, warmup)
    assert tasks_after_warmup(RunConfig(warmup=replace(warmup, steps=0)), TASKS) == TASKS
