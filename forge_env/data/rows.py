"""open_data: the rows of a local file, or of a dataset of the hub.

    data = open_data("problems.jsonl")
    for row in data:
        print(row.where, row.read())

A file that exists is that file, whatever characters its name has. `{split}` in a name stands for the name of the split.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from forge_env.core.errors import UserError
from forge_env.data.row import BadRow, LeftOut, NumberText, Row, field_of, text_problem
from forge_env.data.tables import read_hub, read_parquet
from forge_env.data.text_files import TEXT_FILES

__all__ = [
    "SUFFIXES",
    "BadRow",
    "Data",
    "LeftOut",
    "NumberText",
    "Row",
    "field_of",
    "find_file",
    "open_data",
    "shuffled",
    "text_problem",
]

T = TypeVar("T")

SUFFIXES = (*TEXT_FILES, ".parquet")
"""Of the files that are read."""
_NAMED = ".jsonl, .json, .csv or .parquet"
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.+-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A file or a dataset of the hub; each iteration reads it again, row by row."""

    name: str
    """For people: the name of the file without its folder, or the id of the dataset."""
    file: Path | None
    """None for a dataset of the hub."""
    split: str
    is_divided: bool
    """Whether the rows are the split's already; otherwise they are the rows of all splits."""
    streaming: bool = False
    exact: bool = False

    @property
    def is_table(self) -> bool:
        """Whether all rows have the same columns, so that null may mean that a row has not got one."""
        return self.file is None or _suffix(self.file.name) == ".parquet"

    def __iter__(self) -> Iterator[Row]:
        if self.file is None:
            return read_hub(self.name, split=self.split, streaming=self.streaming, exact=self.exact)
        if _suffix(self.file.name) == ".parquet":
            return read_parquet(self.file)
        return TEXT_FILES[_suffix(self.file.name)](self.file, exact=self.exact)


def open_data(source: str, *, split: str = "train", streaming: bool = False, exact: bool = False) -> Data:
    """Find a file, or a dataset of the hub; nothing is read yet.

    Args:
        source: a .jsonl, .ndjson, .json or .csv file, also packed as .gz, or a .parquet file; or a hub id,
            "owner/name" or "owner/name:configuration".
        split: of a dataset of the hub; and what `{split}` in the name of a file stands for.
        streaming: download no more of a dataset of the hub than is read.
        exact: numbers of JSON files become `NumberText`: the digits that stand there.
    """
    file = find_file(source, split)
    if file is None:
        if not _HUB_ID.fullmatch(source):
            raise UserError(
                f"there is no file {source}, and it is no hub id like openai/gsm8k:main; data is a {_NAMED} file, or "
                "a dataset of the hub"
            )
        return Data(name=source, file=None, split=split, is_divided=True, streaming=streaming)
    if file.is_dir():
        raise UserError(f"{file} is a folder; data is a {_NAMED} file in it, or a dataset of the hub")
    if not file.exists():
        raise UserError(f"there is no file {file}")
    if not _suffix(file.name):
        raise UserError(f"the name of the data file {file} ends in none of {', '.join(SUFFIXES)}: rename it")
    is_divided = "{split}" in source and not Path(source).expanduser().exists()
    return Data(name=file.name, file=file, split=split, is_divided=is_divided, exact=exact)


def find_file(source: str, split: str = "train") -> Path | None:
    """Return the local file that a source names, existing or not; None for "" and for a hub id."""
    if not source:
        return None
    path = Path(source).expanduser()
    if not path.exists():
        path = Path(source.replace("{split}", split)).expanduser()
    return path if path.exists() or _suffix(path.name) else None


def shuffled(items: Iterable[T], rng: random.Random, *, buffer: int) -> Iterator[T]:
    """Yield the items in a random order; at most `buffer` of them are held at once."""
    window: list[T] = []
    for item in items:
        if len(window) < buffer:
            window.append(item)
            continue
        place = rng.randrange(buffer)
        yield window[place]
        window[place] = item
    rng.shuffle(window)
    yield from window


def _suffix(name: str) -> str:
    return next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
