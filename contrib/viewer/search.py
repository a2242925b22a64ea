"""Search for a text in episodes: the files are read from start to end, and only lines that may match are parsed.

There is no word index: 200 MB take about a second to search, and nothing has to be kept up to date.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from contrib.viewer.index import EpisodeIndex
from contrib.viewer.index_row import episode_from
from contrib.viewer.lenient_json import parse_json

BLOCK_BYTES = 1 << 20
MAX_RESULTS = 5000
WAIT_SECONDS = 0.4


class Search:
    """A search for one text in one state of a run, in its own thread. The case of ASCII letters is ignored."""

    def __init__(self, index: EpisodeIndex, text: str) -> None:
        self.text = text
        self.numbers: list[int] = []
        """Numbers of the matching episodes so far."""
        self.share = 0.0
        """The share of the run that has been searched, up to 1."""
        self.stamp = index.stamp
        self._index = index
        self._end = threading.Event()
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="viewer-search", daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._end.is_set()

    def wait(self) -> None:
        self._end.wait(WAIT_SECONDS)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            with self._index.reading() as db:
                self._search(db)
        except (sqlite3.Error, OSError):
            pass  # the index or a file is gone: the results so far stay
        self.share = 1.0
        self._end.set()

    def _search(self, db: sqlite3.Connection) -> None:
        files = db.execute("SELECT file, path, done FROM files WHERE kind <> 'trained'").fetchall()
        total = sum(file["done"] for file in files) or 1
        bytes_before = 0
        needle = json.dumps(self.text)[1:-1].encode().lower()
        text = self.text.lower()
        for file in files:
            rows = db.execute("SELECT n, offset, length FROM episodes WHERE file = ? ORDER BY n", (file["file"],))
            for row, line in _lines_with(Path(file["path"]), needle, rows.fetchall()):
                if self._stop.is_set() or len(self.numbers) >= MAX_RESULTS:
                    return
                self.share = (bytes_before + row["offset"]) / total
                with suppress(ValueError):
                    if any(text in field.lower() for field in _texts(episode_from(parse_json(line)))):
                        self.numbers.append(row["n"])
            bytes_before += file["done"]


def _lines_with(path: Path, needle: bytes, rows: list[sqlite3.Row]) -> Iterator[tuple[sqlite3.Row, bytes]]:
    end = 0
    with path.open("rb") as file:
        while end < len(rows):
            first, end, size = end, end + 1, rows[end]["length"]
            while end < len(rows) and size < BLOCK_BYTES:
                size = rows[end]["offset"] + rows[end]["length"] - rows[first]["offset"]
                end += 1
            file.seek(rows[first]["offset"])
            data = file.read(size)
            if needle not in data.lower():
                continue
            for row in rows[first:end]:
                start = row["offset"] - rows[first]["offset"]
                line = data[start : start + row["length"]]
                if needle in line.lower():
                    yield row, line


def _texts(episode: dict[str, Any]) -> Iterator[str]:
    task = episode["task"]
    yield from _strings([episode.get("id"), episode.get("error"), task.get("prompt"), task.get("target")])
    yield from _strings([episode.get("tail"), task.get("metadata"), episode.get("info")])
    for turn in episode["turns"]:
        yield from _strings([turn.get("observation"), turn.get("message"), turn.get("tool_calls")])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
