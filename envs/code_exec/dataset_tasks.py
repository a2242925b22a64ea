"""Tasks from data sets of programs in local files: HumanEval, MBPP, APPS, LiveCodeBench or the like."""

from __future__ import annotations

import gzip
import importlib
import json
import logging
import random
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from envs.code_exec.asserts import NotCalls
from envs.code_exec.dataset_rows import Row, task_of
from envs.task_splits import bucket
from forge_env.core.errors import UserError
from forge_env.core.types import Task

logger = logging.getLogger(__name__)

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")

_SHUFFLED_ROWS = 128
"""Size of the shuffle buffer. Rows can have megabytes of tests, so no file is read as a whole."""

_MAX_NAMED = 8
"""The most refused rows that a warning names."""


def load_tasks(source: str, *, split: str = "train", count: int, seed: int = 0, kind: str = "") -> list[Task]:
    """Load `count` tasks; the same seed gives the same ones in the same order. No more rows are read than are needed.

    Rows without tests are left out, and so are tests whose expected value is too large for a sandbox to hand back. Rows
    whose asserts are more than calls with fixed results are left out too, and a warning counts and names them.

    Args:
        source: a .jsonl, .jsonl.gz, .json (a list) or .parquet file. A file with {split} in its name is one file per
            split. Any other is split by content: one question in ten is "test", the others are "train", and "all" is
            the whole file.
        split: "train" or "test", or another one that has a file.
        count: how many.
        seed: of the order; rows are shuffled within a buffer.
        kind: name of the column with the kind of a problem, such as its difficulty; by default "kind", if there is one.

    Raises:
        UserError: for a source or a split that does not exist, an invalid row, and too few tasks.
    """
    path, by_content = _path(source, split)
    refused: list[str] = []
    try:
        rows = _shuffled(_rows(path), seed)
        tasks = list(islice(_tasks(rows, path, split if by_content else "all", kind, refused), count))
    except UserError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:  # invalid gzip, UTF-8 or parquet
        raise UserError(f"{path} cannot be read: {error}") from error
    left_out = left_out_rows(refused)
    if len(tasks) < count:
        raise UserError(f"{count} {split} tasks were asked for, {path} has {len(tasks)}: ask for fewer{left_out}")
    if left_out:
        _warn(f"{path}{left_out}")
    return tasks


def left_out_rows(refused: Sequence[str]) -> str:
    """Return the end of a sentence that counts the refused rows and names the first ones; empty without any."""
    if not refused:
        return ""
    more = f" and {len(refused) - _MAX_NAMED} more" if len(refused) > _MAX_NAMED else ""
    rows = ", ".join(refused[:_MAX_NAMED])
    return (
        f"; rows left out: {len(refused)}, as their asserts are more than calls with fixed arguments and results, and "
        f"could be forged: {rows}{more}; write them as plain asserts, one call each"
    )


@cache
def _warn(sentence: str) -> None:
    """Log a warning once, however often the tasks are drawn."""
    logger.warning(sentence)


def _path(source: str, split: str) -> tuple[Path, bool]:
    """Return the file, and whether the caller must split it by content."""
    by_content = "{split}" not in source
    path = Path(source.replace("{split}", split)).expanduser()
    if not path.name.endswith(SUFFIXES):
        raise UserError(f"{source!r} is no data file of code_exec; it ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise UserError(f"there is no file {path}; download the data set and give the path of its file")
    if by_content and split not in ("train", "test", "all"):
        raise UserError(f"there is no split {split!r} of {path}; the splits of one file are train, test and all")
    return path, by_content


def _tasks(rows: Iterator[tuple[int, Row]], path: Path, split: str, kind: str, refused: list[str]) -> Iterator[Task]:
    """Make tasks of rows, each question once. Rows whose asserts are more than calls are named in `refused`."""
    seen: set[str] = set()
    for number, row in rows:
        try:
            task = task_of(row, where=f"{path}: row {number}", kind=kind)
        except NotCalls as error:
            refused.append(f"row {number} ({error!s:.60})")
            continue
        if task is None:
            continue
        question = task.prompt[0]["content"]
        held_out = bucket(question, 10) == 0
        if question in seen or (split != "all" and held_out != (split == "test")):
            continue
        seen.add(question)
        yield task


def _shuffled(rows: Iterator[tuple[int, Row]], seed: int) -> Iterator[tuple[int, Row]]:
    rng = random.Random(seed)
    waiting = list(islice(rows, _SHUFFLED_ROWS))
    for row in rows:
        place = rng.randrange(len(waiting))
        waiting[place], row = row, waiting[place]
        yield row
    rng.shuffle(waiting)
    yield from waiting


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a file with their numbers, from 1."""
    if path.name.endswith(".parquet"):
        rows = _parquet(path)
    elif path.name.endswith(".json"):
        rows = iter(_whole(path))
    else:
        rows = _lines(path)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"{path}: row {number} is {row!r:.60} and not an object with fields")
        yield number, row


def _lines(path: Path) -> Iterator[Any]:
    open_file = gzip.open if path.name.endswith(".gz") else open
    with open_file(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)  # of bytes: a byte order mark at the start is no part of it
            except ValueError as error:
                raise UserError(f"{path}: line {number} is no JSON: {error}") from error


def _whole(path: Path) -> list[Any]:
    rows = json.loads(path.read_bytes())
    if not isinstance(rows, list):
        raise UserError(f"{path} is no list of rows; a file of one object a line has the name .jsonl")
    return rows


def _parquet(path: Path) -> Iterator[Any]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise UserError("parquet files are read by the package pyarrow: pip install 'forge-env[data]'") from error
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=16):
            yield from batch.to_pylist()
