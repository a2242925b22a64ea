"""One SQLite database per episode: its tables, how it is filled, and its state as data for scoring."""

from __future__ import annotations

import functools
import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from contrib.apis.shop.content import REFUND_DAYS, Shop
from contrib.common.transaction import transaction

SCHEMA = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
# The tables of the state, with the columns of their keys. `replies` is used by the service only.
KEYS = {
    "shop": ("id",),
    "customers": ("customer_id",),
    "products": ("sku",),
    "orders": ("order_id",),
    "order_items": ("order_id", "sku"),
}

State = dict[str, dict[str, dict[str, Any]]]
"""Table -> key of a row -> its other columns, such as ``state["orders"]["1042"]["status"]``."""


def session_path(folder: Path, token: str) -> Path:
    """Return the path of a session's database. Its name is a hash, so that no token is written to the disk."""
    return folder / f"{hashlib.sha256(token.encode(errors='surrogateescape')).hexdigest()}.db"


@functools.cache
def _empty() -> bytes:
    """The file of a database without rows: copying it takes a fraction of the time of creating the tables."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript(SCHEMA)
        return db.serialize()


@contextmanager
def memory_database(shop: Shop) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(_empty())
        with transaction(db):
            db.execute("INSERT INTO shop VALUES (1, ?, ?)", (shop.today, REFUND_DAYS))
            for table in ("customers", "products", "orders", "order_items"):
                rows = getattr(shop, table)
                db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        yield db


def write_database(shop: Shop, path: Path) -> None:
    with memory_database(shop) as db:
        content = db.serialize()
    path.unlink(missing_ok=True)  # a new file: some file systems flush when a file is overwritten or renamed
    path.write_bytes(content)


def open_database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=5.0)
    # An episode does not survive a crash of its machine, so nothing is flushed, and the journal is in memory.
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA journal_mode = MEMORY")
    return db


def read_state(db: sqlite3.Connection) -> State:
    """Return all that the shop holds, as data that compares equal when two shops are the same."""
    return {table: dict(_rows(db, table, keys)) for table, keys in KEYS.items()}


def _rows(db: sqlite3.Connection, table: str, keys: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    cursor = db.execute(f"SELECT * FROM {table} ORDER BY {', '.join(keys)}")
    columns = [column[0] for column in cursor.description]
    for values in cursor:
        row = dict(zip(columns, values, strict=True))
        yield "/".join(str(row.pop(key)) for key in keys), row
