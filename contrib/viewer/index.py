"""The index of a run: a temporary SQLite file that follows its files, also while they are being written.

A file of episodes is only ever appended to, or cut back when a run is resumed, so reading continues at its last place.
The bytes before that place show whether the file is still the same one. If it is not, its rows are deleted and it is
read from the start. An index that was kept would save 2.4 s for 50,000 episodes, in which their list can be used.
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

from contrib.common.transaction import transaction
from contrib.viewer.index_row import COLUMNS, ScannedBlock, scan_file
from contrib.viewer.stored_runs import RunFile, StoredRun

FIRST_BYTES = 256 << 10
"""How much of each file of all runs is read before the rest of any, so that the first page appears at once."""
TAIL_BYTES = 4096
BUSY_SECONDS = 30.0
MAX_BAD_LINES = 1000
_SCHEMA = f"""
CREATE TABLE files(file INTEGER PRIMARY KEY, path TEXT UNIQUE, phase TEXT, kind TEXT, inode INT, done INT, seen TEXT,
    tail TEXT, bad INT);
CREATE TABLE episodes(n INTEGER PRIMARY KEY, file INT, step INT, {", ".join(COLUMNS)});
CREATE INDEX by_group ON episodes(file, group_id);
CREATE INDEX by_task ON episodes(task, id, file, outcome, success, reward);
CREATE TABLE trained(id TEXT PRIMARY KEY, step INT, offset INT, length INT) WITHOUT ROWID;
CREATE TABLE bad(file INT, offset INT, reason TEXT);
"""
# files.done: bytes that are indexed; files.seen: size and time of the last look; files.tail: hash of the bytes before
# done; files.bad: lines that cannot be read.
_OFFSET_BITS = 44
"""The number of an episode consists of its file and its offset: files are shorter than 16 TiB."""
_EVALUATION = re.compile(r"evaluation_(\d{1,15})")


class EpisodeIndex:
    """The index of one run. Any thread may call its methods."""

    def __init__(self, run: StoredRun, path: Path, max_bytes: int | None = None) -> None:
        self.run = run
        self._max_bytes = max_bytes
        self.cut_phases: set[str] = set()
        """Phases with first episodes that are not in the index."""
        self.path = path
        self.stamp = 0
        """Counts the changes."""
        self.is_complete = False
        """Whether every file has been read to its end once."""
        self._close_event = threading.Event()
        self._updating = threading.Lock()
        with closing(self._connect()) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)

    def close(self) -> None:
        """End a running update at its next block."""
        self._close_event.set()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that cannot change the index."""
        with closing(self._connect()) as db:
            db.execute("PRAGMA query_only = 1")
            yield db

    def update(self, max_bytes: int | None = None) -> bool:
        """Read what is new; with `max_bytes`, only the first bytes of files of which nothing has been read."""
        with self._updating, closing(self._connect()) as db:
            has_changed = self._forget_missing_files(db)
            for file in sorted(self.run.files(), key=lambda file: file.kind == "trained"):
                has_changed |= self._follow(db, file, max_bytes)
            if has_changed:
                self._join_steps(db)
        self.is_complete |= max_bytes is None and not self._close_event.is_set()
        self.stamp += has_changed
        return has_changed

    def progress(self) -> tuple[int, int]:
        with self.reading() as db:
            done: int = db.execute("SELECT coalesce(sum(done), 0) FROM files").fetchone()[0]
        total = 0
        for file in self.run.files():
            try:
                total += file.path.stat().st_size
            except OSError:
                pass  # just deleted
        return min(done, total), total

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA synchronous = OFF")  # a lost index is made again from the files
        return db

    def _follow(self, db: sqlite3.Connection, file: RunFile, max_bytes: int | None) -> bool:
        """Read what is new in one file; for `max_bytes` see `update`."""
        has_changed = False
        try:
            status = file.path.stat()
            number, start, was_reset = self._begin(db, file, status)
            has_changed |= was_reset
            end = status.st_size if max_bytes is None else min(status.st_size, start + max_bytes)
            if start >= status.st_size or (max_bytes is not None and start > 0):
                return has_changed
            for block in scan_file(file.path, file.kind, start, end):
                self._add_block(db, file, number, block)
                has_changed = True
                self.stamp += 1
                if self._close_event.is_set():
                    break
        except OSError:
            pass  # deleted, or unavailable for a moment: the next update tries again
        return has_changed

    def _begin(self, db: sqlite3.Connection, file: RunFile, status: os.stat_result) -> tuple[int, int, bool]:
        """The number of a file, where to continue reading, and whether its old rows were deleted."""
        with transaction(db):
            file_row = db.execute("SELECT * FROM files WHERE path = ?", (str(file.path),)).fetchone()
            if file_row is None:
                start = self._start(file, status.st_size)
                tail = _tail_hash(file.path, start)
                values = (str(file.path), file.phase, file.kind, status.st_ino, start, tail)
                cursor = db.execute("INSERT INTO files VALUES(NULL, ?, ?, ?, ?, ?, '', ?, 0)", values)
                return int(cursor.lastrowid or 0), start, False
            may_be_same = file_row["inode"] == status.st_ino and file_row["done"] <= status.st_size
            stamp = f"{status.st_size} {status.st_mtime_ns}"
            if may_be_same and file_row["seen"] == stamp:
                return file_row["file"], file_row["done"], False
            if may_be_same and file_row["tail"] == _tail_hash(file.path, file_row["done"]):
                db.execute("UPDATE files SET seen = ? WHERE file = ?", (stamp, file_row["file"]))
                return file_row["file"], file_row["done"], False
            _delete_rows(db, file_row["file"], file_row["kind"])
            reset = "UPDATE files SET inode = ?, done = 0, seen = '', tail = '', bad = 0 WHERE file = ?"
            db.execute(reset, (status.st_ino, file_row["file"]))
            return file_row["file"], 0, True

    def _start(self, file: RunFile, size: int) -> int:
        """Where the first line begins that is read."""
        if self._max_bytes is None or size <= self._max_bytes:
            return 0
        self.cut_phases.add(file.phase)
        with file.path.open("rb") as stream:
            stream.seek(size - self._max_bytes)
            stream.readline()
            return stream.tell()

    def _add_block(self, db: sqlite3.Connection, file: RunFile, number: int, block: ScannedBlock) -> None:
        tail = _tail_hash(file.path, block.end)
        with transaction(db):
            if file.kind == "trained":
                db.executemany("INSERT OR REPLACE INTO trained VALUES(?, ?, ?, ?)", block.rows)
            else:
                evaluation = _EVALUATION.fullmatch(file.phase)
                step = int(evaluation[1]) if evaluation else None
                placeholders = ", ".join("?" * (3 + len(COLUMNS)))
                rows = (((number << _OFFSET_BITS) + row[0], number, step, *row) for row in block.rows)
                db.executemany(f"INSERT OR REPLACE INTO episodes VALUES({placeholders})", rows)
            bad = db.execute("SELECT bad FROM files WHERE file = ?", (number,)).fetchone()[0]
            lines = block.bad_lines[: max(0, MAX_BAD_LINES - bad)]
            db.executemany("INSERT INTO bad VALUES(?, ?, ?)", [(number, *line) for line in lines])
            values = (block.end, tail, len(block.bad_lines), number)
            db.execute("UPDATE files SET done = ?, tail = ?, bad = bad + ? WHERE file = ?", values)

    def _forget_missing_files(self, db: sqlite3.Connection) -> bool:
        paths = {str(file.path) for file in self.run.files()}
        missing = [row for row in db.execute("SELECT file, path, kind FROM files") if row["path"] not in paths]
        for row in missing:
            with transaction(db):
                _delete_rows(db, row["file"], row["kind"])
                db.execute("DELETE FROM files WHERE file = ?", (row["file"],))
        return bool(missing)

    def _join_steps(self, db: sqlite3.Connection) -> None:
        """Set the optimizer step that trained on each episode, as far as trained.jsonl says it."""
        with transaction(db):
            db.execute(
                "UPDATE episodes SET step = (SELECT step FROM trained WHERE trained.id = episodes.id) "
                "WHERE step IS NULL AND id IN (SELECT id FROM trained) "
                "AND file IN (SELECT file FROM files WHERE phase = 'train')"
            )


def _delete_rows(db: sqlite3.Connection, number: int, kind: str) -> None:
    if kind == "trained":
        db.execute("DELETE FROM trained")
        db.execute("UPDATE episodes SET step = NULL WHERE file IN (SELECT file FROM files WHERE phase = 'train')")
    db.execute("DELETE FROM episodes WHERE file = ?", (number,))
    db.execute("DELETE FROM bad WHERE file = ?", (number,))


def _tail_hash(path: Path, end: int) -> str:
    """The hash of the bytes before a place in a file; "" at its start."""
    if not end:
        return ""
    with path.open("rb") as file:
        file.seek(max(0, end - TAIL_BYTES))
        return hashlib.blake2b(file.read(min(end, TAIL_BYTES)), digest_size=8).hexdigest()
