"""Reads the rows of `--sft.data` one by one: Episodes, or the chats of a file or of a dataset of the hub."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_env.core.episode import Episode, Row
from forge_env.core.errors import InvariantError, UserError
from forge_env.core.types import Message, ToolSpec
from forge_env.records.exports.run_facts import imported_facts
from trainers.sft.shapes import BadChat, find_shape, tools_of

if TYPE_CHECKING:
    from trainers.sft.config import SFTConfig

TEXT = (".jsonl", ".ndjson", ".json")
TABLES = {".csv": "csv", ".parquet": "parquet"}
SUFFIXES = ", ".join((*TEXT, *TABLES))
UNREADABLE = "that cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One conversation to learn from."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    rows: tuple[Row, ...] = ()
    """The token rows that an Episode brings along; empty where it is to be rendered."""
    env: str = ""
    """The environment of an Episode, which has the tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A row that is not learned from, and why."""

    reason: str
    detail: str


Raw = str | Mapping[str, Any]
"""A line of a text file, or a row of a table."""


class Source:
    """The rows of one dataset, as often as they are iterated over; each with its place, "line 7" or "row 7"."""

    def __init__(self, rows: Callable[[], Iterator[tuple[str, Raw]]], name: str, config: SFTConfig) -> None:
        self._rows = rows
        first = next((row for _, raw in rows() if isinstance(row := _object(raw), Mapping)), None)
        if first is None:
            where, raw = next(rows(), ("", ""))
            why = _object(raw)
            detail = f"{where}: {why}" if where else "it is empty"
            raise UserError(f"{name} holds no row that can be read; {detail}")
        if {"schema_version", "turns", "outcome"} <= first.keys():
            self.about = "Episodes"
            self._example: Callable[[Raw], Example | LeftOut] = lambda raw: _episode(raw, config.min_reward)
        else:
            shape = find_shape(first.keys(), source=name, messages_field=config.messages_field)
            self.about = f"chats in {shape.columns}"
            self._example = lambda raw: _chat(raw, shape.read)

    def __iter__(self) -> Iterator[tuple[str, Example | LeftOut]]:
        for where, raw in self._rows():
            yield where, self._example(raw)


def open_source(config: SFTConfig) -> Source:
    """Open a file, or a dataset of the hub: "name", "owner/name" or "owner/name:configuration".

    Raises:
        UserError: when there is no such file or dataset, or its rows are of no shape that is known.
    """
    name = config.data
    path = Path(name).expanduser()
    if path.suffix not in (*TEXT, *TABLES) and not path.exists():
        return Source(_hub_rows(config), name, config)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"--sft.data {name} {what}; it must be a {SUFFIXES} file or the id of a hub dataset")
    if path.suffix in TABLES:
        return Source(lambda: _table_rows(path), name, config)
    if path.suffix not in TEXT:
        raise UserError(f"--sft.data {name} is no {SUFFIXES} file")
    listed = _json_list(path) if path.suffix == ".json" else None
    if listed is not None:
        return Source(lambda: ((f"entry {n}", row) for n, row in enumerate(listed, 1)), name, config)
    return Source(lambda: _lines(path), name, config)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"line {number}", line


def _json_list(path: Path) -> list[Any] | None:
    """The entries of a .json file, or None where it holds JSON lines, as such files often do."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _table_rows(path: Path) -> Iterator[tuple[str, Raw]]:
    # Streamed even when all of it is read: that leaves no second copy in a cache.
    table = _load(str(path), TABLES[path.suffix], data_files=str(path), split="train", streaming=True)
    return _numbered(table)


def _hub_rows(config: SFTConfig) -> Callable[[], Iterator[tuple[str, Raw]]]:
    name, _, subset = config.data.partition(":")
    if name.count("/") > 1 or name.startswith((".", "/", "~")) or any(letter.isspace() for letter in name):
        raise UserError(
            f"there is no file {config.data}, and a hub id looks like HuggingFaceH4/ultrachat_200k or "
            "owner/name:configuration"
        )
    table = _load(config.data, name, subset or None, split=config.split, streaming=config.streaming)
    return lambda: _numbered(table)


def _load(source: str, *args: Any, **kwargs: Any) -> Any:
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError("datasets are read by the package datasets: pip install 'forge-env[data]'") from None
    try:
        return datasets.load_dataset(*args, **kwargs)
    except Exception as error:  # unreachable, unknown, a missing configuration or split: the library's text names it
        raise UserError(f"the dataset {source} cannot be loaded: {_first_line(error)}") from None


def _numbered(table: Any) -> Iterator[tuple[str, Raw]]:
    rows = iter(table)
    for number in itertools.count(1):
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # a broken file, or the hub went away: the library's text says which
            raise UserError(f"row {number} of the dataset cannot be read: {_first_line(error)}") from None
        yield f"row {number}", _without_nulls(row)


def _without_nulls(value: Any) -> Any:
    """Leave out what a table only holds because another row has it: its columns are the union of all rows' keys."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _object(raw: Raw) -> Mapping[str, Any] | str:
    """The object that a row holds, or in words what it holds instead."""
    value: Any = raw
    if isinstance(raw, str):
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            return f"it is no JSON: {error}"
    return value if isinstance(value, Mapping) else f"it is a {type(value).__name__}, not an object"


def _chat(raw: Raw, read: Callable[[Mapping[str, Any]], Any]) -> Example | LeftOut:
    row = _object(raw)
    if isinstance(row, str):
        return LeftOut(reason=UNREADABLE, detail=row)
    try:
        chat = read(row)
    except BadChat as error:
        return LeftOut(reason=UNREADABLE, detail=str(error))
    return Example(messages=chat.messages, tools=chat.tools)


def _episode(raw: Raw, min_reward: float) -> Example | LeftOut:
    try:
        episode = Episode.from_json(raw if isinstance(raw, str) else json.dumps(raw))
    except (UserError, InvariantError) as error:
        return LeftOut(reason=UNREADABLE, detail=str(error))
    if episode.reward is None:
        return LeftOut(reason="without a reward", detail=f"its outcome is {episode.outcome}")
    if episode.reward < min_reward:
        return LeftOut(reason=f"of a reward below {min_reward:g} (--sft.min_reward)", detail=f"{episode.reward:g}")
    if not episode.turns:
        return LeftOut(reason="without a turn", detail=f"its outcome is {episode.outcome}")
    has_tokens = all(turn.kind != "text" for turn in episode.turns)
    rows: Sequence[Row] = episode.supervised_rows if has_tokens else ()
    try:  # an imported Episode brings its tools along
        tools = tools_of(imported_facts(episode))
    except BadChat as error:
        return LeftOut(reason=UNREADABLE, detail=str(error))
    return Example(messages=tuple(episode.messages), tools=tools, rows=tuple(rows), env=episode.env)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
