"""The order of the tasks: each once in a pass, and another order in each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.types import Task
from trainers.controller.task_order import TaskOrder


def passes(count: int, **settings: int) -> TaskOrder:
    tasks = [Task(prompt=(), target=number) for number in range(count)]
    return TaskOrder(tasks=tasks, **{"seed": 0, **settings})


def order(given: TaskOrder, number: int) -> list[object]:
    """The tasks of a pass, by their places in the first one."""
    count = len(given.tasks)
    return [given.task(number * count + place).target for place in range(count)]


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 2**31))
def test_each_pass_has_every_task_once(count: int, number: int, seed: int) -> None:
    assert sorted(order(passes(count, seed=seed), number)) == list(range(count))


def test_the_first_pass_is_in_the_given_order_and_no_two_later_ones_are_alike() -> None:
    orders = [order(passes(50), number) for number in range(5)]
    assert orders[0] == list(range(50))
    assert len({*map(tuple, orders)}) == 5
    assert order(passes(50, seed=1), 1) != orders[1]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_a_number_is_one_task_whatever_was_asked_before(numbers: list[int]) -> None:
    """So it is in a run that goes on, and for groups of two passes that are open at once."""
    asked = passes(7)
    assert [asked.task(n) for n in numbers] == [passes(7).task(n) for n in numbers]
