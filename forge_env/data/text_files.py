"""Rows of text files: JSON lines, JSON and CSV, each also packed by gzip. Values are what stands in the file."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.core.json_text import repeated_key
from forge_env.data.row import BadRow, NumberText, Row

_SPACE = re.compile(r"[ \t\r\n]*")
_BLANK = " \t\r\n\0\ufeff"  # files that are joined have several byte order marks
_LISTS = ("data", "rows", "examples", "items", "tasks")
"""Names under which an object holds a list of rows beside other values."""


def read_json_lines(path: Path, *, exact: bool = False) -> Iterator[Row]:
    """Yield the rows of a file with one JSON object in each line; empty lines count, and are not rows.

    Args:
        exact: numbers become `NumberText`, so that no digit is lost.
    """
    for number, line in enumerate(_lines(path), 1):
        if text := line.strip(_BLANK):
            yield Row(f"line {number}", _row_of(partial(_decoder(exact).decode, text)))


def read_json(path: Path, *, exact: bool = False) -> Iterator[Row]:
    """Yield the rows of a JSON file: a list of objects, an object with such a list, or JSON lines, as many have."""
    text = "".join(_lines(path))
    start = _after_space(text, 0)
    if text.startswith("[", start):
        yield from _entries(text, start + 1, path, exact)
        return
    try:
        whole = _decoder(exact).decode(text)
    except (ValueError, RecursionError):
        yield from read_json_lines(path, exact=exact)
        return
    inner_list = _list_within(whole)
    rows = [whole] if inner_list is None else inner_list
    for number, row in enumerate(rows, 1):
        yield Row(f"row {number}", _row_of(lambda row=row: row))  # type: ignore[misc]


def read_csv(path: Path, *, exact: bool = False, delimiter: str = ",") -> Iterator[Row]:
    """Yield the rows of a CSV file. Its first line names the columns. Every cell is text."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(_lines(path), strict=True, delimiter=delimiter)
    header: list[str] | None = None
    while True:
        where = f"line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if header is None:
                raise UserError(f"{path}, {where}: the names of the columns are no CSV: {error}") from None
            yield Row(where, BadRow(f"it is no CSV: {error}"))
            continue
        if not cells:
            continue
        if header is None:
            header = [name.strip() for name in cells]
            if twice := next((name for i, name in enumerate(header) if name in header[:i]), None):
                raise UserError(f"{path} has two columns of the name {twice!r}: rename one of them")
        elif len(cells) == len(header):
            yield Row(where, dict(zip(header, cells, strict=True)))
        else:
            yield Row(where, BadRow(f"it has {len(cells)} cells, and the first line names {len(header)} columns"))


TEXT_FILES: Mapping[str, Callable[..., Iterator[Row]]] = {
    suffix + packed: read
    for suffix, read in {
        ".jsonl": read_json_lines,
        ".ndjson": read_json_lines,
        ".json": read_json,
        ".csv": read_csv,
    }.items()
    for packed in ("", ".gz")
}
"""Suffix -> the function that reads such a file."""


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines with their ends, as UTF-8, without a byte order mark."""
    number = 0
    try:
        is_packed = path.name.lower().endswith(".gz")
        with path.open("rb") as raw, gzip.open(raw) if is_packed else nullcontext(raw) as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        where = f"{path}, line {number}: byte {error.start + 1} of the line"
        raise UserError(f"{where} is no UTF-8; write the file anew in UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path} cannot be read: {reason[:1].lower()}{reason[1:]}") from None


def _row_of(make: Callable[[], Any]) -> Mapping[str, Any] | BadRow:
    """The object that is a row, or why it is none."""
    try:
        value = make()
    except BadRow as bad:
        return bad
    except json.JSONDecodeError as error:
        return BadRow(f"it is no JSON: {error.msg} at character {error.pos + 1}")
    except RecursionError:
        return BadRow("it is JSON of too many levels")
    except ValueError as error:
        return BadRow(f"it cannot be read: {error}")
    if not isinstance(value, dict):
        return BadRow(f"it is {json.dumps(value)[:60]}, not an object with columns")
    return value


def _decoder(exact: bool) -> json.JSONDecoder:
    if exact:
        return json.JSONDecoder(object_pairs_hook=_object, parse_int=NumberText, parse_float=NumberText)
    return json.JSONDecoder(object_pairs_hook=_object)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise BadRow(f"it has {repeated_key(pairs)!r} twice")
    return mapping


def _entries(text: str, at: int, path: Path, exact: bool) -> Iterator[Row]:
    """Yield the entries of a JSON list; its first entry begins at a position."""
    decoder, plain = _decoder(exact), json.JSONDecoder()
    number, at = 0, _after_space(text, at)
    if text.startswith("]", at):
        return
    while True:
        number, start = number + 1, at
        try:
            try:
                value, at = decoder.raw_decode(text, start)
                yield Row(f"row {number}", _row_of(lambda: value))  # noqa: B023 (run at once)
            except BadRow as bad:
                _, at = plain.raw_decode(text, start)
                yield Row(f"row {number}", bad)
            at = _after_space(text, at)
            if text.startswith("]", at):
                return
            if not text.startswith(",", at):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
            at = _after_space(text, at + 1)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path} is no JSON: {error.msg} in line {error.lineno}, column {error.colno}; a file with one object "
                "in each line has the name .jsonl"
            ) from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: row {number} cannot be read: {error}") from None


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _list_within(value: Any) -> list[Any] | None:
    """The rows of an object that holds a list of them, as {"data": [...]}; None for an object that is a row itself."""
    if not isinstance(value, dict):
        return None
    lists = [v for name, v in value.items() if isinstance(v, list) and (name in _LISTS or len(value) == 1)]
    lists = [v for v in lists if all(isinstance(row, dict) and not row.keys() & {"role", "from"} for row in v)]
    return lists[0] if len(lists) == 1 else None
