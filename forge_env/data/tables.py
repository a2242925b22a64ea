"""Rows of parquet files and of datasets of the hub. Values keep their types; dates and decimals become exact text."""

from __future__ import annotations

import datetime
import decimal
import itertools
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.data.row import BadRow, Row

_AT_ONCE = 64
"""Rows of a parquet file that are in memory together; each may have megabytes."""


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a parquet file.

    Raises:
        UserError: pyarrow is not installed, or the file cannot be read.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise UserError("parquet files are read by the package pyarrow: pip install 'forge-env[data]'") from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_AT_ONCE):
                short = {field.name for field in batch.schema if field.type in (pyarrow.float16(), pyarrow.float32())}
                for row in batch.to_pylist():
                    number += 1
                    yield _row(number, {name: _shortest(v) if name in short else v for name, v in row.items()})
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read after row {number}: {_first_line(error)}") from None


def read_hub(name: str, *, split: str, streaming: bool) -> Iterator[Row]:
    """Yield the rows of a dataset of the hub.

    Args:
        name: "owner/name", or "owner/name:configuration".
        split: one that the dataset has.
        streaming: download rows as they are read, and not all of them at first.

    Raises:
        UserError: datasets is not installed, there is no such dataset, or it cannot be read.
    """
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError("datasets are read by the package datasets: pip install 'forge-env[data]'") from None
    dataset, _, configuration = name.partition(":")
    number = 0
    try:
        table = datasets.load_dataset(dataset, configuration or None, split=split, streaming=streaming)
    except Exception as error:  # unreachable, unknown, a missing configuration or split: the library says which
        raise UserError(f"the dataset {name} cannot be loaded: {_first_line(error)}") from None
    rows = iter(table)
    for number in itertools.count(1):
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # a broken file, or the hub went away
            raise UserError(f"row {number} of the dataset {name} cannot be read: {_first_line(error)}") from None
        yield _row(number, row)


def _row(number: int, values: Mapping[str, Any]) -> Row:
    try:
        return Row(f"row {number}", {name: _plain(value) for name, value in values.items()})
    except BadRow as bad:
        return Row(f"row {number}", bad)


def _plain(value: Any) -> Any:
    """A value as JSON has it: dates and times in ISO's form, decimals digit by digit."""
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.timedelta):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise BadRow("it has bytes that are no UTF-8") from None
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _shortest(value: float | None) -> float | None:
    """The shortest number that a float of 32 bits stands for: 0.1, and not 0.10000000149011612."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return value
    written = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((number for number in written if struct.pack("f", number) == struct.pack("f", value)), value)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
