"""The index of a run: a SQLite file beside it that follows its files of lines, also while they are being written.

A file of lines is only ever appended to, or cut back when a run is resumed, so reading goes on where it stopped. That
the file still is the one that was read is checked by the bytes before that place; where it is not, its rows go, and it
is read from the start. The index can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from forge_env.viewer.folder import Run, RunFile
from forge_env.viewer.row import COLUMNS
from forge_env.viewer.scan import Scanned, scan
from forge_env.viewer.transaction import transaction

VERSION = 2
FIRST = 256 << 10
"""Bytes that are read before anything else: the first page is there at once."""
TAIL = 4096
BUSY_SECONDS = 30.0
MOST_BAD = 1000
_SCHEMA = f"""
CREATE TABLE files(file INTEGER PRIMARY KEY, path TEXT UNIQUE, phase TEXT, kind TEXT, inode INT, done INT, seen TEXT,
    tail TEXT, bad INT);
CREATE TABLE episodes(n INTEGER PRIMARY KEY, file INT, step INT, {", ".join(COLUMNS)});
CREATE INDEX by_group ON episodes(file, group_id);
CREATE TABLE trained(id TEXT PRIMARY KEY, step INT, offset INT, length INT) WITHOUT ROWID;
CREATE TABLE bad(file INT, offset INT, reason TEXT);
PRAGMA user_version = {VERSION};
"""
_SHIFT = 44
"""An episode's number is its file's and its offset: files are shorter than 16 TiB."""
_EVALUATION = re.compile(r"evaluation_(\d{1,15})")


class Index:
    """Follows the files of one run. `update` is for one thread at a time, `reading` for any.

    Args:
        run: whose files.
        place: of the SQLite file; its folder is there.
    """

    def __init__(self, run: Run, place: Path) -> None:
        self.run = run
        self.place = place
        self.stamp = 0
        """Counts the changes that this process has seen."""
        self.complete = False
        self._closed = threading.Event()
        self._state: list[sqlite3.Row] = []
        if not _usable(place):
            for suffix in ("", "-wal", "-shm", "-journal"):
                place.with_name(place.name + suffix).unlink(missing_ok=True)
        with closing(self._connect()) as db:
            if not db.execute("PRAGMA user_version").fetchone()[0]:
                db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        self._inode = place.stat().st_ino

    @property
    def is_there(self) -> bool:
        """Whether its file still is the one that was opened: it may be deleted, and made again by another process."""
        try:
            return self.place.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """End an update that runs, at its next stretch."""
        self._closed.set()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the index and cannot change it."""
        with closing(self._connect()) as db:
            db.execute("PRAGMA query_only = 1")
            yield db

    def update(self) -> bool:
        """Read what is new in the files; returns whether anything had changed."""
        with closing(self._connect()) as db:
            changed = self._forget_missing(db)
            files = sorted(self.run.files(), key=lambda file: file.kind == "trained")
            for first in (True, False):  # the beginning of every file, and then all of them
                for file in files:
                    changed |= self._follow(db, file, FIRST if first else None)
            if changed:
                self._join_steps(db)
            state = db.execute("SELECT path, inode, done FROM files ORDER BY file").fetchall()
        changed |= state != self._state  # another process may have written
        self._state = state
        self.complete = not self._closed.is_set()
        self.stamp += changed
        return changed

    def progress(self) -> tuple[int, int]:
        """Bytes that are indexed, and bytes that there are."""
        with self.reading() as db:
            done: int = db.execute("SELECT coalesce(sum(done), 0) FROM files").fetchone()[0]
        total = 0
        for file in self.run.files():
            try:
                total += file.path.stat().st_size
            except OSError:
                pass  # deleted while the viewer looks at it
        return min(done, total), total

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.place, timeout=BUSY_SECONDS, isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # it can be made again from the files
        return db

    def _follow(self, db: sqlite3.Connection, file: RunFile, most: int | None) -> bool:
        """Read what is new in one file, at most so many bytes of it."""
        changed = False
        try:
            status = file.path.stat()
            number, start, reset = self._begin(db, file, status)
            changed |= reset
            end = status.st_size if most is None else min(status.st_size, start + most)
            if start >= status.st_size or (most is not None and start > 0):
                return changed
            for found in scan(file.path, file.kind, start, end):
                if not self._add(db, file, number, start, found):
                    return True  # another process was quicker
                start, changed = found.end, True
                self.stamp += 1
                if self._closed.is_set():
                    break
        except OSError:
            pass  # deleted, or taken away for a moment: it is looked at again
        return changed

    def _begin(self, db: sqlite3.Connection, file: RunFile, status: os.stat_result) -> tuple[int, int, bool]:
        """Number of a file, where to read on, and whether its old rows had to go."""
        with transaction(db):
            known = db.execute("SELECT * FROM files WHERE path = ?", (str(file.path),)).fetchone()
            if known is None:
                values = (str(file.path), file.phase, file.kind, status.st_ino)
                made = db.execute("INSERT INTO files VALUES(NULL, ?, ?, ?, ?, 0, '', '', 0)", values)
                return int(made.lastrowid or 0), 0, False
            same = known["inode"] == status.st_ino and known["done"] <= status.st_size
            seen = f"{status.st_size} {status.st_mtime_ns}"
            if same and known["seen"] == seen:
                return known["file"], known["done"], False
            if same and known["tail"] == _tail(file.path, known["done"]):
                db.execute("UPDATE files SET seen = ? WHERE file = ?", (seen, known["file"]))
                return known["file"], known["done"], False
            _forget(db, known["file"], known["kind"])
            again = "UPDATE files SET inode = ?, done = 0, seen = '', tail = '', bad = 0 WHERE file = ?"
            db.execute(again, (status.st_ino, known["file"]))
            return known["file"], 0, True

    def _add(self, db: sqlite3.Connection, file: RunFile, number: int, start: int, found: Scanned) -> bool:
        tail = _tail(file.path, found.end)
        with transaction(db):
            known = db.execute("SELECT done, bad FROM files WHERE file = ?", (number,)).fetchone()
            if known is None or known["done"] != start:
                return False
            if file.kind == "trained":
                db.executemany("INSERT OR REPLACE INTO trained VALUES(?, ?, ?, ?)", found.rows)
            else:
                step = _EVALUATION.fullmatch(file.phase)
                own = (number, int(step[1]) if step else None)
                places = ", ".join("?" * (3 + len(COLUMNS)))
                rows = (((number << _SHIFT) + row[0], *own, *row) for row in found.rows)
                db.executemany(f"INSERT OR REPLACE INTO episodes VALUES({places})", rows)
            room = max(0, MOST_BAD - known["bad"])
            db.executemany("INSERT INTO bad VALUES(?, ?, ?)", [(number, *each) for each in found.bad[:room]])
            values = (found.end, tail, len(found.bad), number)
            db.execute("UPDATE files SET done = ?, tail = ?, bad = bad + ? WHERE file = ?", values)
        return True

    def _forget_missing(self, db: sqlite3.Connection) -> bool:
        there = {str(file.path) for file in self.run.files()}
        gone = [row for row in db.execute("SELECT file, path, kind FROM files") if row["path"] not in there]
        for row in gone:
            with transaction(db):
                _forget(db, row["file"], row["kind"])
                db.execute("DELETE FROM files WHERE file = ?", (row["file"],))
        return bool(gone)

    def _join_steps(self, db: sqlite3.Connection) -> None:
        """The step that trained on an episode, where trained.jsonl says so."""
        with transaction(db):
            db.execute(
                "UPDATE episodes SET step = (SELECT step FROM trained WHERE trained.id = episodes.id) "
                "WHERE step IS NULL AND id IN (SELECT id FROM trained) "
                "AND file IN (SELECT file FROM files WHERE phase = 'train')"
            )


def _forget(db: sqlite3.Connection, number: int, kind: str) -> None:
    if kind == "trained":
        db.execute("DELETE FROM trained")
        db.execute("UPDATE episodes SET step = NULL WHERE file IN (SELECT file FROM files WHERE phase = 'train')")
    db.execute("DELETE FROM episodes WHERE file = ?", (number,))
    db.execute("DELETE FROM bad WHERE file = ?", (number,))


def _tail(path: Path, end: int) -> str:
    """Hash of the bytes before a place in a file; empty for its start."""
    if not end:
        return ""
    with path.open("rb") as file:
        file.seek(max(0, end - TAIL))
        return hashlib.blake2b(file.read(min(end, TAIL)), digest_size=8).hexdigest()


def _usable(place: Path) -> bool:
    if not place.exists():
        return False
    try:
        with closing(sqlite3.connect(place, timeout=BUSY_SECONDS)) as db:
            return bool(db.execute("PRAGMA user_version").fetchone()[0] in (0, VERSION))
    except sqlite3.DatabaseError:
        return False
