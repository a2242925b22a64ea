"""Tasks of rows: the same rows are left out whatever the seed, both splits have tasks, answers are text of the file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.data_tasks import data_tasks, message_prompt
from envs.math.dataset_tasks import load_tasks
from forge_env.core.errors import TooFewTasks, UserError
from forge_env.core.types import Task
from forge_env.data.row import DataTasks
from forge_env.data.rows import BadRow


def make(values: Mapping[str, Any]) -> Task:
    if "a" not in values:
        raise BadRow("it has no a")
    return Task(prompt=message_prompt(values["q"]), target=values["a"], metadata=values.get("metadata") or {})


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"q": f"question {i}", "a": i} for i in range(count)]


def draw(source: str, split: str = "all", count: int | None = None, seed: int | None = 0) -> DataTasks:
    return data_tasks(source, split, count=count, seed=seed, make=make)


def targets(tasks: DataTasks) -> list[Any]:
    return [task.target for task in tasks]


def test_the_same_rows_are_left_out_and_named_whatever_the_seed_and_the_count(tmp_path: Path) -> None:
    good = numbered(5)
    rows = [*good[:3], "{no json", {"q": "x"}, {"q": "", "a": 1}, good[0], *good[3:], {"q": "y", "a": float("nan")}]
    source = write(tmp_path / "a.jsonl", *rows)
    for seed, count in ((0, None), (1, 2), (2, 5)):
        found = draw(source, count=count, seed=seed).rows
        assert (found.rows, found.repeated, found.left_out.total) == (10, 1, 4)
        named = found.left_out.first_places
        for words in ("line 4: it is no JSON", "line 5: it has no a", "line 6: its prompt is", "line 10: its target"):
            assert words in named


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 60), st.integers(0, 5))
def test_both_splits_have_tasks_and_none_in_common(count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder) / "a.jsonl", *numbered(count))
        train, test = (draw(source, split, seed=seed) for split in ("train", "test"))
        assert train and test and train.rows.tasks == test.rows.tasks == {"train": len(train), "test": len(test)}
        assert sorted(targets(train) + targets(test)) == list(range(count))
        first = draw(source, "train", count=1, seed=seed)
        assert targets(first) == targets(train)[:1]


def test_the_seed_gives_the_order_and_a_smaller_count_its_beginning(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", *numbered(400))
    whole = targets(draw(source, seed=3))
    assert sorted(whole) == list(range(400)) != whole
    assert targets(draw(source, count=7, seed=3)) == whole[:7]
    assert targets(draw(source, count=7, seed=4)) != whole[:7]
    assert targets(draw(source, seed=None)) == list(range(400))


def test_more_tasks_than_there_are_are_refused_with_their_number(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", *numbered(3), "{")
    with pytest.raises(
        TooFewTasks, match=r"4 all tasks were asked for, .*a\.jsonl has 3: ask for fewer; 1 left out"
    ) as few:
        draw(source, count=4)
    assert few.value.there_are == 3


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "is empty"),
        (["{"], r"no row of .* can be used: 1 left out \(line 1: it is no JSON"),
        (numbered(1), "has no test task: it has 1 train, 0 test|has no train task"),
    ],
)
def test_a_file_without_tasks_is_one_sentence(tmp_path: Path, rows: list[Any], words: str) -> None:
    source = write(tmp_path / "a.jsonl", *rows)
    with pytest.raises(UserError, match=words) as refused:
        [draw(source, split) for split in ("train", "test")]
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        ("2024-03-01", "2024-03-01"),
        ("NaN", "NaN"),
        ("007", "007"),
        (["2"], "2"),
        (2954312706550833698643, "2954312706550833698643"),
        (1.50, "1.5"),
        (True, "true"),
    ],
)
def test_an_answer_of_math_is_what_stands_in_the_file(tmp_path: Path, answer: Any, target: str) -> None:
    source = write(tmp_path / "a.jsonl", {"problem": "p", "final_answer": answer}, {"problem": "q", "final_answer": 4})
    assert sorted(task.target for task in load_tasks(source, split="all", count=2)) == sorted([target, "4"])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "its answer is null"),
        ("", "its answer is empty"),
        (["2", "3"], "its answer is a list of 2 elements"),
        (float("nan"), "its answer is nan, which is no answer"),
        ({"value": 2}, "its answer is {'value': '2'}, which is no answer"),
        ("a\nb", "its answer marks no final answer"),
    ],
)
def test_a_row_of_math_without_an_answer_is_left_out(tmp_path: Path, answer: Any, reason: str) -> None:
    source = write(
        tmp_path / "a.jsonl", *({"question": f"q{i}", "answer": a} for i, a in enumerate(("1", answer, "3")))
    )
    for seed in range(3):
        tasks = load_tasks(source, split="all", count=2, seed=seed)
        assert sorted(task.target for task in tasks) == ["1", "3"]
        assert f"1 left out (line 2: {reason}" in str(tasks.rows)
