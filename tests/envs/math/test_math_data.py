"""Data sets of problems, from real local files of every kind; mistakes are told in one sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.math import Math
from envs.math.dataset_tasks import final_answer, load_tasks
from envs.math.rewards import MathReward
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.data.rows import BadRow
from tests.helpers.packages import needs

pytestmark = needs("datasets")
ROOT = Path(__file__).parents[3]
Rows = Sequence[Mapping[str, Any]]

GSM8K = [
    {"question": f"Tom has {i} pens and buys 1000. How many?", "answer": f"{i}+1000={i + 1000}\n#### {i + 1000:,}"}
    for i in range(300)
]
MATH = [
    {
        "problem": f"Halve ${i}$.",
        "level": "Level 1",
        "type": "Algebra",
        "solution": f"We write $\\boxed{{?}}$.\nThen it is $\\boxed{{\\frac{{{i}}}{{2}}}}$.",
    }
    for i in range(1, 40, 2)
]
AIME = [{"ID": f"2024-I-{i}", "Problem": f"Find {i}.", "Solution": "Long.\nVery.", "Answer": i} for i in range(30)]


def write(path: Path, rows: Rows) -> Path:
    import datasets

    table = datasets.Dataset.from_list([dict(row) for row in rows])
    if path.suffix == ".parquet":
        table.to_parquet(str(path))
    elif path.suffix == ".csv":
        table.to_csv(str(path), index=False)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions(tasks: Sequence[Task]) -> list[str]:
    return [message["content"] for task in tasks for message in task.prompt]


@pytest.mark.parametrize(("suffix", "streaming"), [(".jsonl", True), (".parquet", False), (".csv", False)])
def test_gsm8k_from_files(tmp_path: Path, suffix: str, streaming: bool) -> None:
    path = write(tmp_path / f"gsm8k{suffix}", GSM8K)
    tasks = load_tasks(str(path), split="all", count=300, streaming=streaming)
    assert sorted(questions(tasks)) == sorted(row["question"] for row in GSM8K)
    for task in tasks:
        number = int(task.prompt[0]["content"].split()[2])
        assert task.target == f"{number + 1000:,}"
        assert MathReward()("", f"It is \\boxed{{{number + 1000}}}.", task.target) == 1.0


def test_aime_has_capital_columns_and_whole_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "aime.jsonl", AIME)
    tasks = load_tasks(str(path), split="all", count=30)
    assert {task.target for task in tasks} == {str(i) for i in range(30)}


def test_a_prompt_of_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    for prompt in (messages, json.dumps(messages)):
        path = write(tmp_path / "chat.jsonl", [{"prompt": prompt, "target": 2.0}])
        [task] = load_tasks(str(path), split="all", count=1)
        assert (list(task.prompt), task.target) == (messages, "2.0")


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        ({}, ""),
        ({"question": "prompt", "answer": "reward_model.ground_truth", "kind": "extra_info.level"}, ""),
        ({"answer": "extra_info.truth"}, ""),  # an object that is written as text
        ({"answer": "reward_model.truth"}, "in its reward_model, it has no column 'truth'. Available: ground_truth."),
        ({"answer": "prompt.content"}, "it has no column 'prompt.content'"),
    ],
)
def test_rows_of_verl_and_nested_fields(tmp_path: Path, names: dict[str, str], left_out: str) -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 3 + 4?"}]
    extra = json.dumps({"level": "easy", "truth": "007"})
    rows = [{"prompt": asked, "solution": "7.", "reward_model": {"ground_truth": "007"}, "extra_info": extra}]
    path = str(write(tmp_path / "dapo.jsonl", rows))
    if left_out:
        with pytest.raises(UserError, match=re.escape(left_out)):
            load_tasks(path, split="all", count=1, **names)
        return
    [task] = load_tasks(path, split="all", count=1, **names)
    assert (list(task.prompt), task.target, task.kind) == (asked, "007", "easy" if "kind" in names else "")


@pytest.mark.parametrize(
    ("row", "target"),
    [
        ({"info": {"answer": "5"}}, "5"),
        ({"extra_info": '{"answer": "5"}'}, "5"),
        ({"answer": None, "info": {"answer": "5"}}, "5"),
        ({"answer": "", "extra_info": {"answer": 5}}, "5"),
        ({"reward_model": {"ground_truth": '["5"]'}}, "5"),
        ({"answer": '["5", "6"'}, '["5", "6"'),
        ({"answer": "6", "info": {"answer": "5"}}, "6"),
    ],
)
def test_an_answer_inside_of_a_column_counts_if_no_column_holds_one(
    tmp_path: Path, row: dict[str, Any], target: str
) -> None:
    path = write(tmp_path / "rows.jsonl", [{"question": "What is 2 + 3?", **row}])
    assert [task.target for task in load_tasks(str(path), split="all", count=1)] == [target]


def test_the_seed_decides_which_and_in_which_order_of_a_stream(tmp_path: Path) -> None:
    source = str(write(tmp_path / "gsm8k.jsonl", GSM8K))
    first = load_tasks(source, count=20, seed=1, streaming=True)
    assert load_tasks(source, count=20, seed=1, streaming=True) == first
    assert load_tasks(source, count=20, seed=2, streaming=True) != first
    assert load_tasks(source, count=10, seed=1, streaming=True) == first[:10]


def test_a_file_per_split(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", GSM8K[:10])
    write(tmp_path / "test.jsonl", GSM8K[10:15])
    source = str(tmp_path / "{split}.jsonl")
    assert sorted(questions(load_tasks(source, split="train", count=10))) == sorted(r["question"] for r in GSM8K[:10])
    assert sorted(questions(load_tasks(source, split="test", count=5))) == sorted(r["question"] for r in GSM8K[10:15])
    with pytest.raises(UserError, match=r"there is no file .*valid\.jsonl"):
        load_tasks(source, split="valid", count=1)


def test_streaming_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    """The end of the file is no text: who reads that far notices."""
    path = tmp_path / "long.jsonl"
    rows = "".join(json.dumps({"question": f"What is {i}?", "answer": str(i)}) + "\n" for i in range(2000))
    path.write_bytes(rows.encode() + b"\xff\n")
    tasks = load_tasks(str(path), count=10, streaming=True)
    assert len(tasks) == 10 and tasks.rows.rows < 100 and not tasks.rows.is_complete
    with pytest.raises(UserError, match=r"long\.jsonl, line 2001: byte 1 of the line is no UTF-8"):
        load_tasks(str(path), count=10)


@pytest.mark.parametrize("source", ["problems.txt", "./a/b", "a b/c"])
def test_what_is_no_source(source: str) -> None:
    with pytest.raises(UserError, match="there is no file .*, and it is no hub id like openai/gsm8k:main"):
        load_tasks(source, count=1)


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    source = str(write(tmp_path / "own.jsonl", [{"text": "1 + 1?", "value": "2"}]))
    with pytest.raises(UserError, match="no column for the question: name one of text, value with question="):
        load_tasks(source, split="all", count=1)
    with pytest.raises(UserError, match="no column for the answer: name one of text, value with answer="):
        load_tasks(source, split="all", count=1, question="text")
    with pytest.raises(UserError, match=r"no column 'values'\. Did you mean value\?"):
        load_tasks(source, split="all", count=1, question="text", answer="values")


def test_a_split_that_there_is_not(tmp_path: Path) -> None:
    source = str(write(tmp_path / "gsm8k.jsonl", GSM8K))
    with pytest.raises(UserError, match="there is no split 'valid' of gsm8k.jsonl. Available: all, test, train"):
        load_tasks(source, split="valid", count=1)


def test_a_question_that_is_no_text(tmp_path: Path) -> None:
    source = str(write(tmp_path / "own.jsonl", [{"question": 7, "answer": "7"}]))
    with pytest.raises(UserError, match="line 1: its prompt is neither text nor a list of messages .*: '7'"):
        load_tasks(source, split="all", count=1)


@pytest.mark.parametrize("text", ["", "Line.\nLine.", "word " * 100])
def test_a_solution_without_an_answer(text: str) -> None:
    with pytest.raises(BadRow, match="its answer (marks no final answer|is empty)"):
        final_answer(text, where="its answer")


@pytest.mark.parametrize(
    ("text", "answer"),
    [("a\n#### 1\n#### 18 ", "18"), ("\\boxed{1} \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), (" 025 ", "025")],
)
def test_final_answers(text: str, answer: str) -> None:
    assert final_answer(text, where="its answer") == answer


@pytest.mark.timeout(120)
def test_a_hub_that_cannot_be_reached() -> None:
    code = (
        "from envs.math.dataset_tasks import load_tasks\n"
        "try: load_tasks('openai/gsm8k:main', count=1)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )
    [line] = done.stdout.splitlines()
    assert line.startswith("UserError the dataset openai/gsm8k:main cannot be loaded: "), done.stderr


def test_without_datasets_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"^datasets are read by the package datasets: pip install 'forge-env\[data\]'"):
        load_tasks("openai/gsm8k:main", count=1)


async def test_the_math_environment_asks_for_a_box(tmp_path: Path) -> None:
    source = str(write(tmp_path / "math.parquet", MATH))
    tasks = Math.tasks("all", count=len(MATH), data=source)
    assert {task.target for task in tasks} == {f"\\frac{{{i}}}{{2}}" for i in range(1, 40, 2)}, "of the last box"
    env = Math(calculator=False)
    messages, _ = await env.reset(seed=0, options={"task": tasks[0]})
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[0]["content"] == "Put the final answer in \\boxed{}."
