"""The procedural tasks of math and code_exec: many, repeatable, and a test split that training has not seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from envs.task_splits import SYMBOLS, draw_tasks, kind_of_row
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.data.rows import BadRow
from forge_env.registry.registry import env_class

ENVS = ["math", "code_exec"]


def questions(tasks: Sequence[Task]) -> list[str]:
    return [message["content"] for task in tasks for message in task.prompt]


def pair(task: Task) -> tuple[str, int]:
    return task.metadata["operation"], task.metadata["constant"]


@pytest.mark.parametrize("env", ENVS)
def test_there_are_2000_distinct_training_tasks(env: str) -> None:
    tasks = env_class(env).tasks("train", count=2000, seed=0)
    assert len(set(questions(tasks))) == len({task.id for task in tasks}) == len(tasks) == 2000


@pytest.mark.parametrize("env", ENVS)
def test_the_test_split_is_new_in_content(env: str) -> None:
    """Whatever the two seeds: no question twice, and a third of the test tasks has a pair that training never shows."""
    tasks = env_class(env).tasks
    train = [task for seed in range(3) for task in tasks("train", count=4096, seed=seed)]
    for seed in range(3):
        test = tasks("test", count=256, seed=seed)
        assert len(set(questions(test))) == 256
        assert not set(questions(test)) & set(questions(train))
        assert not {task.id for task in test} & {task.id for task in train}
        known = {pair(task) for task in train}
        unseen = sum(pair(task) not in known for task in test)
        assert len(test) / 3 <= unseen < len(test)


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_seed_gives_the_same_tasks(env: str, split: str) -> None:
    tasks = env_class(env).tasks
    first = tasks(split, count=50, seed=7)
    assert tasks(split, count=50, seed=7) == first
    assert tasks(split, count=50, seed=8) != first


@pytest.mark.parametrize("env", ENVS)
def test_a_pair_is_what_the_question_asks_for(env: str) -> None:
    for task in env_class(env).tasks("test", count=50):
        operation, constant = pair(task)
        [question] = questions([task])
        assert str(constant) in question
        words = {"plus": ["plus", "added"], "minus": ["minus", "lost"], "times": ["times", "red and"]}[operation]
        assert any(word in question for word in words)


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
        assert [word for word in questions([task])[0].split() if word in SYMBOLS] == task.kind.split("_")


def test_the_kind_of_a_row_is_a_column_of_it() -> None:
    row = {"question": "2 + 2", "kind": " sum ", "level": 5, "subject": None}
    assert [kind_of_row(row, column) for column in ("", "kind", "level", "subject")] == ["sum", "sum", "5", ""]
    assert kind_of_row({"question": "2 + 2"}) == ""
    with pytest.raises(BadRow, match=r"^it has no column 'levle' for the kind. Did you mean level\?"):
        kind_of_row(row, "levle")
