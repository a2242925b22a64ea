"""Rows of parquet files and of datasets of the hub. Values keep their types; dates and decimals become exact text."""

from __future__ import annotations

import datetime
import decimal
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError, nearest
from forge_env.data.row import BadRow, Row
from forge_env.data.text_files import TEXT_FILES, read_csv, read_json_lines

_AT_ONCE = 64
"""Rows of a parquet file that are in memory together; each may have megabytes."""


def read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise UserError("parquet files are read by the package pyarrow: pip install 'forge-env[data]'") from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_AT_ONCE):
                types = {field.name: field.type for field in batch.schema}
                for row in batch.to_pylist():
                    number += 1
                    yield _row(number, {name: _exact(value, types[name], name) for name, value in row.items()})
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read after row {number}: {_first_line(error)}") from None


@dataclass(frozen=True, slots=True)
class _HubFile:
    """A file of a dataset, opened as a path is."""

    name: str
    url: str

    def open(self, mode: str) -> Any:
        from datasets.utils.file_utils import xopen

        return xopen(self.url, mode)

    def __str__(self) -> str:
        return self.name


def read_hub(name: str, *, split: str, streaming: bool, exact: bool = False) -> Iterator[Row]:
    """Yield the rows of a dataset of the hub.

    Files of JSON and CSV are read as local ones are: the package datasets would guess types, and make 7 of "007".

    Args:
        streaming: download rows as they are read, and not all of them at first.
    """
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError("datasets are read by the package datasets: pip install 'forge-env[data]'") from None
    dataset, _, configuration = name.partition(":")
    try:
        builder = datasets.load_dataset_builder(dataset, configuration or None)
        if (files := _text_files(builder, split, streaming)) is None:
            table = datasets.load_dataset(dataset, configuration or None, split=split, streaming=streaming)
            rows: Iterator[Any] = _typed_rows(table)
        else:
            rows = (row.values for file, read in files for row in read(file, exact=exact))
    except UserError:
        raise
    except Exception as error:  # unreachable, unknown, a missing configuration or split: the library says which
        raise UserError(f"the dataset {name} cannot be loaded: {_first_line(error)}") from None
    for number in itertools.count(1):
        try:
            row = next(rows)
        except StopIteration:
            return
        except UserError as error:
            raise UserError(f"row {number} of the dataset {name} cannot be read: {error}") from None
        except Exception as error:  # a broken file, or the hub went away
            raise UserError(f"row {number} of the dataset {name} cannot be read: {_first_line(error)}") from None
        yield Row(f"row {number}", row) if isinstance(row, BadRow) else _row(number, row)


def _text_files(
    builder: Any, split: str, streaming: bool
) -> list[tuple[_HubFile, Callable[..., Iterator[Row]]]] | None:
    """The files of a split, each with its reader; None for a dataset that is not of JSON or CSV as it is usual."""
    from datasets import DownloadConfig, DownloadManager, StreamingDownloadManager
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.json.json import Json

    config = builder.config
    if isinstance(builder, Json) and config.field is None and config.encoding == "utf-8":
        default: Callable[..., Iterator[Row]] = read_json_lines
    elif isinstance(builder, Csv) and config.header == "infer" and config.names is config.column_names is None:
        default = partial(read_csv, delimiter=config.sep)
    else:
        return None
    urls = {str(part): list(of_part) for part, of_part in config.data_files.items()}
    if split not in urls:
        raise UserError(f"the dataset {builder.dataset_name} has no split {split!r}. {nearest(split, urls)}")
    settings = DownloadConfig(token=builder.token, storage_options=builder.storage_options)
    manager = (StreamingDownloadManager if streaming else DownloadManager)(download_config=settings)
    files = []
    for url in urls[split]:
        stem = Path(url.partition("?")[0])
        read = next((TEXT_FILES[suffix] for suffix in stem.suffixes if suffix in TEXT_FILES), default)
        name = stem.name.removesuffix(".gz")  # the manager unpacks it
        of_url = manager.iter_files(manager.download_and_extract(url))
        files += [(_HubFile(name, path), default if isinstance(builder, Csv) else read) for path in of_url]
    return files


def _typed_rows(table: Any) -> Iterator[dict[str, Any]]:
    features = table.features
    fields = {} if features is None else {field.name: field.type for field in features.arrow_schema}
    for row in table:
        yield {name: _exact(value, fields.get(name), name) for name, value in row.items()}


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


def _exact(value: Any, kind: Any, column: str) -> Any:
    """A value of a type of pyarrow, as it was written."""
    import pyarrow

    if kind is None or value is None:
        return value
    if isinstance(kind, pyarrow.JsonType) and not isinstance(value, (Mapping, list)):
        raise UserError(
            f"the column {column!r} holds texts and other values, and the package datasets makes a number of a text "
            "such as '007': download its file, and give that"
        )
    if pyarrow.types.is_floating(kind) and kind.bit_width < 64 and isinstance(value, float):
        return _shortest(value, "e" if kind.bit_width == 16 else "f")
    if pyarrow.types.is_struct(kind) and isinstance(value, Mapping):
        types = {field.name: field.type for field in kind}
        return {name: _exact(item, types.get(name), f"{column}.{name}") for name, item in value.items()}
    if pyarrow.types.is_map(kind) and isinstance(value, list):
        return [(_exact(key, kind.key_type, column), _exact(item, kind.item_type, column)) for key, item in value]
    if pyarrow.types.is_nested(kind) and isinstance(value, list):  # lists of all kinds
        return [_exact(item, kind.value_type, column) for item in value]
    return value


def _shortest(value: float, form: str) -> float:
    """The shortest number that a small float stands for: 0.1, and not 0.10000000149011612.

    Args:
        form: of `struct`, "f" for 32 bits and "e" for 16.
    """
    if value != value or value in (float("inf"), float("-inf")):
        return value
    spellings = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((number for number in spellings if _packed(number, form) == _packed(value, form)), value)


def _packed(value: float, form: str) -> bytes:
    try:
        return struct.pack(form, value)
    except OverflowError:  # 3.403e38 is beyond 32 bits, and their largest number is 3.4028235e38
        return b""


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
