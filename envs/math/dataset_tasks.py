"""Tasks from data sets of problems such as GSM8K, MATH and AIME, from the hub or from a local file."""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from envs.data_tasks import data_tasks, message_prompt
from envs.math.answers import last_boxed
from envs.task_splits import kind_of_row
from forge_env.core.types import Task
from forge_env.data.row import DataTasks
from forge_env.data.rows import BadRow, field_of, find_file

QUESTIONS = ("question", "problem", "prompt", "input", "query")
ANSWERS = (
    *("final_answer", "expected_answer", "answer", "target", "ground_truth"),
    *("reward_model.ground_truth", "solution", "output"),  # the first is of verl's rows
    *("info.answer", "extra_info.answer"),
)

Values = Mapping[str, Any]


def load_tasks(
    source: str,
    *,
    split: str = "train",
    count: int | None,
    seed: int = 0,
    question: str = "",
    answer: str = "",
    kind: str = "",
    streaming: bool = False,
) -> DataTasks:
    """Load `count` tasks with a question and a final answer; the same seed gives the same ones in the same order.

    An answer is the text of the file, digit by digit; a list with one element is that element. Rows without a question
    or an answer are left out.

    Args:
        source: a file, or a hub id; for it and the other options see `envs.data_tasks.data_tasks`.
        question: name of its column, or of a field in one, as "extra.question"; by default the first that has a usual
            name. It is a text, or a list of messages.
        answer: name of its column. The answer behind `####` or in the last `\\boxed{}` is the target, else
            the whole text.
        kind: name of the column with the kind of a problem, such as its subject; by default "kind", if there is one.
    """
    file = find_file(source, split)
    source_name = file.name if file else source

    def make(values: Values) -> Task:
        _, question_text = _column(values, question, QUESTIONS, what="question")
        column, answer_value = _column(values, answer, ANSWERS, what="answer")
        return Task(
            prompt=message_prompt(question_text),
            target=final_answer(_text(answer_value, column), where=f"its {column}"),
            metadata={"source": source_name, "format": "boxed"},
            kind=kind_of_row(values, kind),
        )

    return data_tasks(source, split, count=count, seed=seed, make=make, streaming=streaming, exact=True)


def final_answer(text: str, *, where: str) -> str:
    """Return the final answer of a worked solution: behind `####`, in the last box, or a short text as a whole."""
    if "####" in text:
        text = text.rpartition("####")[2]
    elif (box := last_boxed(text)) is not None:
        text = box
    elif len(text.strip()) > 200 or "\n" in text.strip():
        mark = "with #### or \\boxed{}"
        raise BadRow(f"{where} marks no final answer, {mark}: name the column of the answers with answer=")
    if not text.strip():
        raise BadRow(f"{where} is empty")
    return text.strip()


def _column(values: Values, choice: str, usual: Sequence[str], *, what: str) -> tuple[str, Any]:
    """The name and the value of a column: of the wanted one, else of the first usual one that holds something."""
    if choice:
        return choice, field_of(values, choice)
    by_name, empty = {name.strip().lower(): name for name in values}, list[tuple[str, Any]]()
    for name in usual:
        with suppress(BadRow):
            value = field_of(values, by_name.get(name, name))
            if value not in (None, ""):
                return name, value
            empty.append((name, value))
    if empty:
        return empty[0]
    raise BadRow(f"it has no column for the {what}: name one of {', '.join(values)} with {what}=")


def _text(value: Any, column: str) -> str:
    if isinstance(value, str) and value.startswith('["'):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, list):
        if len(value) != 1:
            raise BadRow(f"its {column} is a list of {len(value)} elements: an answer is one, so write it as one text")
        value = value[0]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, decimal.Decimal)):  # every number of a JSON file is a str
        return str(value)
    if isinstance(value, float) and math.isfinite(value):  # of a table, which has 18.0 where 18 was meant
        return str(int(value)) if value.is_integer() else repr(value)
    if value is None:
        raise BadRow(f"its {column} is null")
    raise BadRow(f"its {column} is {value!r:.60}, which is no answer")
