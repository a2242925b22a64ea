"""Tasks from data sets of problems such as GSM8K, MATH and AIME, from the hub or from a local file."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from envs.math.answers import last_boxed
from envs.task_kinds import kind_of_row
from envs.task_splits import bucket
from forge_env.core.errors import UserError, nearest
from forge_env.core.types import Message, Task

READERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
QUESTIONS = ("question", "problem", "prompt", "input", "query")
ANSWERS = ("final_answer", "expected_answer", "answer", "target", "ground_truth", "solution", "output")

_SHUFFLED_ROWS = 1000
"""Size of the shuffle buffer while a data set streams."""

Row = Mapping[str, Any]


def load_tasks(
    source: str,
    *,
    split: str = "train",
    count: int,
    seed: int = 0,
    question: str = "",
    answer: str = "",
    kind: str = "",
    streaming: bool = False,
) -> list[Task]:
    """Load `count` tasks with a question and a final answer; the same seed gives the same ones in the same order.

    Args:
        source: a hub id (in "openai/gsm8k:main" main is the configuration), or a local .parquet,
            .jsonl, .json or .csv file. A file with {split} in its name is one file per split. Any other file is split
            by content: one question in ten is "test", the others are "train", and "all" is the whole file.
        split: "train" or "test", or another one that the source has.
        count: how many.
        seed: which ones, and in which order.
        question: name of its column; by default the first that has a usual name.
        answer: name of its column. The answer behind `####` or in the last `\\boxed{}` is the target, else
            the whole text.
        kind: name of the column with the kind of a problem, such as its subject; by default "kind", if there is one.
        streaming: read only the rows that are needed; rows are then shuffled within a buffer.

    Raises:
        UserError: for a source, a split or a column that does not exist, and for too few tasks.
    """
    rows, by_content = _open(source, split=split, streaming=streaming)
    shuffled = _shuffled(rows, seed=seed, streaming=streaming)
    try:
        columns = (question, answer, kind)
        tasks = list(islice(_tasks(shuffled, source, columns, split if by_content else "all"), count))
    except UserError:
        raise
    except Exception as error:  # invalid JSON, a broken parquet file, a hub that stops answering
        raise UserError(f"{source} cannot be read: {_first_line(error)}") from error
    if len(tasks) < count:
        raise UserError(f"{count} {split} tasks were asked for, {source} has {len(tasks)}: ask for fewer")
    return tasks


def final_answer(text: str, *, where: str) -> str:
    """Return the final answer of a worked solution: behind `####`, in the last box, or a short text as a whole.

    Raises:
        UserError: for a long text, or one of several lines, without a marked answer.
    """
    if "####" in text:
        return text.rpartition("####")[2].strip()
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    text = text.strip()
    if not text or len(text) > 200 or "\n" in text:
        raise UserError(
            f"{where} marks no final answer, with #### or \\boxed{{}}: name the column of the answers with answer="
        )
    return text


def _open(source: str, *, split: str, streaming: bool) -> tuple[Any, bool]:
    """Return the rows, and whether the caller must split them by content."""
    if Path(source).suffix in READERS:
        return _open_file(source, split)
    return _open_hub(source, split, streaming), False


def _open_file(source: str, split: str) -> tuple[Any, bool]:
    by_content = "{split}" not in source
    path = Path(source.replace("{split}", split)).expanduser()
    if not path.is_file():
        raise UserError(f"there is no file {path}; a data source is a hub id or a {', '.join(READERS)} file")
    if by_content and split not in ("train", "test", "all"):
        raise UserError(f"there is no split {split!r} of {path}; the splits of one file are train, test and all")
    # streamed even when all of it is read, so that no copy is left in a cache
    if path.stat().st_size == 0:
        raise UserError(f"the file {path} is empty")
    rows = _load_dataset(str(path), READERS[path.suffix], data_files=str(path), split="train", streaming=True)
    return rows, by_content


def _open_hub(source: str, split: str, streaming: bool) -> Any:
    if source.count("/") != 1 or any(c.isspace() for c in source) or source.startswith((".", "/", "~")):
        raise UserError(
            f"{source!r} is no data source: give a hub id like openai/gsm8k:main or a {', '.join(READERS)} file"
        )
    name, _, config = source.partition(":")
    return _load_dataset(source, name, config or None, split=split, streaming=streaming)


def _load_dataset(source: str, *args: Any, **kwargs: Any) -> Any:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise UserError("data sets are read by the package datasets: pip install 'forge-env[data]'") from error
    try:
        return datasets.load_dataset(*args, **kwargs)
    except (
        Exception
    ) as error:  # unreachable, unknown, a missing configuration or split: the message of the library says which
        raise UserError(f"the data set {source} cannot be loaded: {_first_line(error)}") from error


def _shuffled(rows: Any, *, seed: int, streaming: bool) -> Iterator[Row]:
    if streaming:
        yield from rows.shuffle(seed=seed, buffer_size=_SHUFFLED_ROWS)
        return
    table: Sequence[Row] = rows if hasattr(rows, "__len__") else list(rows)
    order = list(range(len(table)))
    random.Random(seed).shuffle(order)
    for index in order:
        yield table[index]


def _tasks(rows: Iterable[Row], source: str, columns: tuple[str, str, str], split: str) -> Iterator[Task]:
    """Make tasks of rows, each question once; `columns` are those of question, answer and kind."""
    question, answer, kind = columns
    seen: set[str] = set()
    for row in rows:
        question_of_row = row[_column(row, question, QUESTIONS, source=source, what="question")]
        key = str(question_of_row)
        held_out = bucket(key, 10) == 0
        if key in seen or (split != "all" and held_out != (split == "test")):
            continue
        seen.add(key)
        column = _column(row, answer, ANSWERS, source=source, what="answer")
        where = f"{source}: the {column} {str(row[column])[:60]!r}"
        yield Task(
            prompt=_prompt(question_of_row, where=f"{source}: a question"),
            target=final_answer(_text(row[column]), where=where),
            metadata={"source": source, "format": "boxed"},
            kind=kind_of_row(row, kind, where=source),
        )


def _column(row: Row, wanted: str, usual: Sequence[str], *, source: str, what: str) -> str:
    if wanted:
        if wanted not in row:
            raise UserError(f"{source} has no column {wanted!r}. {nearest(wanted, row)}")
        return wanted
    by_name = {name.lower(): name for name in row}
    for name in usual:
        if by_name.get(name) is not None and row[by_name[name]] is not None:
            return by_name[name]
    raise UserError(f"{source} has no column for the {what}: name one of {', '.join(row)} with {what}=")


def _prompt(question: Any, *, where: str) -> tuple[Message, ...]:
    if isinstance(question, str) and question.strip():
        return ({"role": "user", "content": question},)
    if (
        isinstance(question, list)
        and question
        and all(isinstance(m, dict) and m.keys() >= {"role", "content"} for m in question)
    ):
        return tuple({"role": m["role"], "content": m["content"]} for m in question)
    raise UserError(f"{where} is neither text nor a list of messages: {question!r:.80}")


def _text(value: Any) -> str:
    """Write an answer as text: 18.0 of a column of floats is 18."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
