"""The procedural tasks of math and code_exec: many, repeatable, and a test split that training has not seen."""

from __future__ import annotations

import functools
import json

import pytest

from envs.task_splits import SYMBOLS, draw_tasks, kind_of_row
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.data.rows import BadRow
from forge_env.registry.registry import env_class


def pair(task: Task) -> tuple[str, int]:
    return task.metadata["operation"], task.metadata["constant"]


def question(task: Task) -> str:
    return task.prompt[0]["content"]


@pytest.mark.parametrize(
    ("env", "level", "count"),
    [
        *(("math", level, 2000) for level in (1, 2, 3, 4)),
        ("code_exec", 1, 2000),
        *(("code_exec", n, 300) for n in (2, 3, 4)),
    ],
)
def test_tasks_are_many_and_repeatable_and_those_of_the_test_split_are_new(env: str, level: int, count: int) -> None:
    """No question twice, and a third of the test tasks has a pair that training never shows."""
    tasks = functools.partial(env_class(env).tasks, level=level)
    train, test = tasks("train", count=count, seed=1), tasks("test", count=count // 10, seed=2)
    texts = [{question(task) for task in tasks_} for tasks_ in (train, test)]
    assert (len(texts[0]), len(texts[1]), texts[0] & texts[1]) == (count, count // 10, set())
    assert len({task.id for task in (*train, *test)}) == count + count // 10
    pairs = {pair(task) for task in train}
    assert 0.3 * len(test) <= sum(pair(task) not in pairs for task in test) < len(test)
    json.dumps([task.target for task in train])
    for split in ("train", "test"):
        first = tasks(split, count=20, seed=7)
        assert tasks(split, count=20, seed=7) == first != tasks(split, count=20, seed=8)
    if level == 1:
        words = {"plus": ["plus", "added"], "minus": ["minus", "lost"], "times": ["times", "red and"]}
        for task in test:
            operation, constant = pair(task)
            assert str(constant) in question(task) and any(word in question(task) for word in words[operation])


def draw(split: str, count: int) -> list[Task]:
    """Draw from a hundred contents: (plus, 0) to (plus, 99)."""
    return draw_tasks(
        split,
        count=count,
        seed=0,
        draw=lambda rng: ("plus", rng.randint(0, 99)),
        pair=lambda content: content,
        make=lambda content: Task(prompt=(), target=content),
    )


def test_more_tasks_than_there_are_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match=r"999 distinct train tasks were asked for, [5-9][0-9] were found"):
        draw("train", 999)
    assert len({task.target for task in draw("train", 50)}) == 50


def test_an_unknown_split_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match=r"'valid'.*test, train"):
        draw("valid", 1)


@pytest.mark.parametrize(
    ("env", "options", "kinds"),
    [
        ("math", {}, "plus minus times"),
        ("math", {"level": 2}, "stock rows shares bags"),
        ("code_exec", {"level": 2}, "sum rest frame swap join"),
        ("code_exec", {"level": 3}, "run unique turn filter lines totals"),
        ("code_exec", {"level": 4}, "total largest spread last"),
    ],
)
def test_every_task_has_the_kind_that_it_was_drawn_as(env: str, options: dict[str, int], kinds: str) -> None:
    tasks = env_class(env).tasks("train", count=60, seed=0, **options)
    assert {task.kind for task in tasks} == set(kinds.split())
    for task in tasks:
        assert task.kind in (task.metadata.get("operation"), task.metadata.get("kind"))


def test_a_kind_of_the_first_level_of_code_exec_names_both_operations() -> None:
    tasks = env_class("code_exec").tasks("train", count=200, seed=0)
    assert len({task.kind for task in tasks}) == 9
    for task in tasks:
        assert [word for word in question(task).split() if word in SYMBOLS] == task.kind.split("_")


def test_the_kind_of_a_row_is_a_column_of_it() -> None:
    row = {"question": "2 + 2", "kind": " sum ", "level": 5, "subject": None}
    assert [kind_of_row(row, column) for column in ("", "kind", "level", "subject")] == ["sum", "sum", "5", ""]
    assert kind_of_row({"question": "2 + 2"}) == ""
    with pytest.raises(BadRow, match=r"^it has no column 'levle' for the kind. Did you mean level\?"):
        kind_of_row(row, "levle")
