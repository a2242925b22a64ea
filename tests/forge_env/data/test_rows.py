"""Rows of files: values are what stands in the file, and every row that cannot be read is named."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import UserError
from forge_env.data.rows import BadRow, LeftOut, find_file, open_data
from forge_env.data.tables import _exact, read_hub
from tests.helpers.packages import needs

Rows = Sequence[Mapping[str, Any]]


def json_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def json_list(rows: Rows) -> bytes:
    return json.dumps(rows, indent=1).encode()


def json_object(rows: Rows) -> bytes:
    return json.dumps({"version": 1, "data": rows}, ensure_ascii=False).encode()


def csv_file(rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet(rows: Rows) -> bytes:
    import pyarrow
    import pyarrow.parquet

    table = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), table)
    return table.getvalue()


FORMATS: Mapping[str, Callable[[Rows], bytes]] = {
    "a.jsonl": json_lines,
    "a.ndjson": json_lines,
    "a.json": json_list,
    "object.json": json_object,
    "lines.json": json_lines,
    "a.csv": csv_file,
    "a.parquet": parquet,
    "a.jsonl.gz": lambda rows: gzip.compress(json_lines(rows)),
    "a.csv.gz": lambda rows: gzip.compress(csv_file(rows)),
}
ADDRESSED = [
    *("007", "True", "NA", "None", "NaN", "null", "1e5", "2024-03-01"),
    *(" a ", "a,b", 'a"b', "a\r\nb", "\u2028", ""),
]
TEXTS = st.text(st.characters(exclude_categories=("Cs",))) | st.sampled_from(ADDRESSED)


def read(path: Path | str, **options: Any) -> list[Any]:
    """The values of the rows, or of a bad one its place and reason."""
    return [
        f"{row.where}: {row.values}" if isinstance(row.values, BadRow) else dict(row.values)
        for row in open_data(str(path), **options)
    ]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@needs("pyarrow")
@pytest.mark.parametrize("name", FORMATS)
@given(answers=st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_comes_back_as_it_was_written(name: str, answers: list[str]) -> None:
    rows = [{"question": f"q{i}", "answer": answer} for i, answer in enumerate(answers)]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / name, FORMATS[name](rows))
        assert read(path) == rows


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@given(values=st.lists(st.dictionaries(TEXTS, JSON, min_size=1, max_size=3), min_size=1, max_size=3))
def test_any_json_comes_back_as_it_was_written(name: str, values: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert read(write(Path(folder) / name, FORMATS[name](values))) == values


@given(st.decimals(allow_nan=False, allow_infinity=False) | st.integers(-(10**40), 10**40))
def test_an_exact_number_is_the_digits_of_the_file(number: decimal.Decimal | int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.jsonl", f'{{"answer": {number}}}\n')
        assert read(path, exact=True) == [{"answer": str(number)}]


@needs("pyarrow")
def test_a_table_has_dates_and_decimals_as_exact_text(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(
        {
            "date": [datetime.date(2024, 3, 1)],
            "time": [datetime.datetime(2024, 3, 1, 12, 30)],
            "decimal": [decimal.Decimal("2954312706550833698643.10")],
            "whole": [2**62 + 1],
            "short": pyarrow.array([0.1], pyarrow.float32()),
            "nothing": pyarrow.array([None], pyarrow.string()),
            "nested": [{"days": [datetime.date(2024, 3, 2)]}],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [
        {
            "date": "2024-03-01",
            "time": "2024-03-01T12:30:00",
            "decimal": "2954312706550833698643.10",
            "whole": 2**62 + 1,
            "short": 0.1,
            "nothing": None,
            "nested": {"days": ["2024-03-02"]},
        }
    ]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.jsonl", '{"a": 1}\n\n{"a": \n{"a": 2}\n', [{"a": 1}, "line 3: it is no JSON", {"a": 2}]),
        ("a.jsonl", '[1]\n{"a": 1, "a": 2}\n', ["line 1: it is [1], not an object", "line 2: it has 'a' twice"]),
        ("a.jsonl", "[" * 100_000 + "\n", ["line 1: it is "]),
        ("a.jsonl", '{"a": ' + "9" * 5000 + "}\n", ["line 1: it cannot be read: Exceeds the limit"]),
        ("a.json", '[{"a": 1, "a": 2},\n 3, {"a": 1}]', ["row 1: it has 'a' twice", "row 2: it is 3", {"a": 1}]),
        ("a.json", '{"messages": [{"role": "user"}]}', [{"messages": [{"role": "user"}]}]),
        ("a.json", "[]", []),
        ("a.json", '{"a": ' * 100_000, ["line 1: it is "]),
        ("a.csv", "a,b\n1,2\n3\n\n4,5,6\n", [{"a": "1", "b": "2"}, "line 3: it has 1 cells", "line 5: it has 3 cells"]),
        (
            "a.csv",
            'a,b\n"x\ny",2\n"z"z,3\n4,5\n',
            [{"a": "x\ny", "b": "2"}, "line 4: it is no CSV", {"a": "4", "b": "5"}],
        ),
        ("a.csv", 'a,b\n1,2\n"open,3\n4,5\n', [{"a": "1", "b": "2"}, "line 3: it is no CSV"]),
        ("a.csv", "\ufeffa\nx\n", [{"a": "x"}]),
        ("a.jsonl", '\ufeff{"a": 1}\r\n\ufeff{"a": 2}\r\n\0\0', [{"a": 1}, {"a": 2}]),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: str, rows: list[Any]) -> None:
    found = read(write(tmp_path / name, content))
    assert len(found) == len(rows)
    for got, expected in zip(found, rows, strict=True):
        assert got.startswith(expected) if isinstance(expected, str) else got == expected


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"a": "x"}\n{"a": "\xe9"}\n', r"a\.jsonl, line 2: byte 8 of the line is no UTF-8"),
        ("a.csv", "a\nü\n".encode("utf-16"), r"a\.csv, line 1: byte 1 of the line is no UTF-8"),
        ("a.json", b'[{"a": 1},\n {"a" 2}]', r"a\.json is no JSON: .* in line 2, column 7"),
        ("a.json", b'[{"a": 1}', r"a\.json is no JSON: .* in line 1"),
        ("a.csv", b"a,a\n1,2\n", "two columns of the name 'a'"),
        ("a.jsonl.gz", b"no gzip", "cannot be read: not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b"{}\n" * 1000, mtime=0)[:20], "cannot be read"),
        ("a.parquet", b"PAR1", "cannot be read"),
        ("a.txt", b"", r"ends in none of \.jsonl"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match=words) as refused:
        read(write(tmp_path / name, content))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["p[1].jsonl", "p*.jsonl", "p?.jsonl", "{split}.jsonl", "a:b.jsonl", "P.JSONL"])
def test_a_file_that_exists_is_that_file(tmp_path: Path, name: str) -> None:
    for other in ("p1.jsonl", "pp.jsonl", "train.jsonl"):
        write(tmp_path / other, '{"a": "other"}\n')
    assert read(write(tmp_path / name, '{"a": "this"}\n')) == [{"a": "this"}]


def test_a_file_is_told_from_a_hub_id(tmp_path: Path) -> None:
    write(tmp_path / "tasks", "")
    assert find_file(str(tmp_path / "tasks")) == tmp_path / "tasks"
    assert find_file("a/{split}.jsonl", "dev") == Path("a/dev.jsonl")
    assert find_file("openai/gsm8k:main") is None and find_file("") is None
    assert open_data("openai/gsm8k:main").file is None
    with pytest.raises(UserError, match="is a folder"):
        open_data(str(tmp_path))


def test_left_out_rows_are_counted_by_reason_and_the_first_are_named() -> None:
    left_out = LeftOut()
    for number in range(1, 6):
        left_out.add(f"line {number}", "it is empty")
    left_out.add("line 9", "it is no JSON")
    text = "6 left out (line 1, line 2, line 3 and 2 more: it is empty; line 9: it is no JSON)"
    assert str(left_out) == text
    for number in range(8):
        left_out.add(f"line {number + 10}", f"reason {number}")
    assert str(left_out).endswith("; 5 more for other reasons)")
    assert left_out.record()["rows"] == 14 and left_out.record()["reasons"][0]["rows"] == 5


MIXED = [
    {"q": "a", "answer": "007", "on": "2024-01-01", "in": {"truth": "1.50", "all": ["1", 2]}},
    {"q": "b", "answer": "null", "on": "2024-01-02", "in": {"truth": 3, "all": []}},
    {"q": "c", "answer": 3, "on": "2024-01-03T00:00", "in": {"truth": "true", "all": ["null"]}},
]
CELLS = [
    {"q": "a", "answer": "007"},
    {"q": "b", "answer": "NA"},
    {"q": "c", "answer": "1.50"},
    {"q": "d", "answer": ""},
]
OF_HUB: Mapping[str, tuple[bytes, Rows]] = {
    "train.jsonl": (json_lines(MIXED), MIXED),
    "train.json": (json_list(MIXED), MIXED),
    "train.jsonl.gz": (gzip.compress(json_lines(MIXED)), MIXED),
    "train.csv": (csv_file(CELLS), CELLS),
    "train.tsv": (csv_file(CELLS).replace(b",", b"\t"), CELLS),
}


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], str]:
    monkeypatch.chdir(tmp_path)

    def put(name: str, content: bytes) -> str:
        folder = Path("own", name.replace(".", "_"))
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        return str(folder)

    return put


@needs("datasets")
@pytest.mark.parametrize(
    ("name", "streaming"), [*((name, False) for name in OF_HUB), ("train.jsonl", True), ("train.csv", True)]
)
def test_a_file_of_the_hub_is_read_as_it_stands(
    dataset: Callable[[str, bytes], str], name: str, streaming: bool
) -> None:
    content, rows = OF_HUB[name]
    found = list(read_hub(dataset(name, content), split="train", streaming=streaming))
    assert [row.read() for row in found] == rows
    assert [row.where for row in found] == [f"row {number}" for number in range(1, len(rows) + 1)]


@needs("datasets")
def test_floats_of_parquet_are_as_short_as_they_were_written(dataset: Callable[[str, bytes], str]) -> None:
    import pyarrow
    import pyarrow.parquet

    kind = pyarrow.struct([("x", pyarrow.float32()), ("all", pyarrow.list_(pyarrow.float32()))])
    row = {"answer": "007", "score": 0.1, "in": {"x": 0.2, "all": [0.3]}}
    columns = {
        "answer": ["007"],
        "score": pyarrow.array([0.1], pyarrow.float32()),
        "in": pyarrow.array([row["in"]], kind),
    }
    table = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), table)
    name = dataset("train.parquet", table.getvalue())
    assert [each.read() for each in read_hub(name, split="train", streaming=True)] == [row]
    assert read(Path(name, "train.parquet")) == [row]


@needs("pyarrow")
def test_small_floats_are_short_in_every_kind_of_column(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    short = pyarrow.float32()
    kinds = [pyarrow.large_list(short), pyarrow.list_(short, 2), pyarrow.list_view(short)]
    columns = {str(kind): pyarrow.array([[0.1, 0.2]], kind) for kind in kinds}
    columns["map"] = pyarrow.array([[("a", 0.1)]], pyarrow.map_(pyarrow.string(), short))
    columns["half"] = pyarrow.array([np.float16(0.1)])
    columns["largest"] = pyarrow.array([3.4028235e38], short)
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    lists = {str(kind): [0.1, 0.2] for kind in kinds}
    assert read(tmp_path / "a.parquet") == [{**lists, "map": [["a", 0.1]], "half": 0.1, "largest": 3.4028235e38}]


@needs("pyarrow")
def test_what_the_package_has_guessed_is_refused_by_name() -> None:
    import pyarrow

    with pytest.raises(UserError, match=r"the column 'in.truth' holds texts and other values"):
        _exact({"truth": 7}, pyarrow.struct([("truth", pyarrow.json_())]), "in")
    assert _exact({"any": [1]}, pyarrow.json_(), "in") == {"any": [1]}


@needs("datasets")
def test_a_split_that_a_dataset_has_not_is_named(dataset: Callable[[str, bytes], str]) -> None:
    with pytest.raises(UserError, match="has no split 'tran'. Did you mean train"):
        next(read_hub(dataset("train.csv", csv_file(CELLS)), split="tran", streaming=False))
