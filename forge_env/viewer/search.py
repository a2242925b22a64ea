"""Text in episodes: the files are read from end to end, and only lines that may hold the text are parsed.

There is no index of words: a run of 200 MB is searched in about a second, and nothing has to be kept up to date.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge_env.viewer.index import Index
from forge_env.viewer.index_row import episode_of, parse

BLOCK = 1 << 20
MOST = 5000
"""Episodes that a search finds at most."""
WAIT_SECONDS = 0.4


class Search:
    """One text in one state of a run, looked for by a thread of its own. Upper and lower case of ASCII are one.

    Example: ``Search(index, "divide by zero").numbers``
    """

    def __init__(self, index: Index, text: str) -> None:
        self.text = text
        self.numbers: list[int] = []
        """Numbers of the episodes that hold it, found so far."""
        self.share = 0.0
        """How much of the run has been searched, up to 1."""
        self.stamp = index.stamp
        self._index = index
        self._ended = threading.Event()
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="viewer-search", daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        """Give it a moment: most searches have ended by then."""
        self._ended.wait(WAIT_SECONDS)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            with self._index.reading() as db:
                self._search(db)
        except (sqlite3.Error, OSError):
            pass  # the index or a file went away: what was found stays
        self.share = 1.0
        self._ended.set()

    def _search(self, db: sqlite3.Connection) -> None:
        files = db.execute("SELECT file, path, done FROM files WHERE kind <> 'trained'").fetchall()
        total = sum(row["done"] for row in files) or 1
        before = 0
        needle = json.dumps(self.text)[1:-1].encode().lower()
        wanted = self.text.lower()
        for row in files:
            places = db.execute("SELECT n, offset, length FROM episodes WHERE file = ? ORDER BY n", (row["file"],))
            for place, line in _lines_with(Path(row["path"]), needle, places.fetchall()):
                if self._stop.is_set() or len(self.numbers) >= MOST:
                    return
                self.share = (before + place["offset"]) / total
                if _holds(line, wanted):
                    self.numbers.append(place["n"])
            before += row["done"]


def _lines_with(path: Path, needle: bytes, places: list[sqlite3.Row]) -> Iterator[tuple[sqlite3.Row, bytes]]:
    """Lines whose bytes hold the needle, several lines being read at a time."""
    number = 0
    with path.open("rb") as file:
        while number < len(places):
            first = number
            size = 0
            while number < len(places) and (size < BLOCK or number == first):
                size = places[number]["offset"] + places[number]["length"] - places[first]["offset"]
                number += 1
            file.seek(places[first]["offset"])
            data = file.read(size)
            if needle not in data.lower():
                continue
            for place in places[first:number]:
                start = place["offset"] - places[first]["offset"]
                line = data[start : start + place["length"]]
                if needle in line.lower():
                    yield place, line


def _holds(line: bytes, wanted: str) -> bool:
    try:
        episode = episode_of(parse(line))
    except ValueError:
        return False
    return any(wanted in text.lower() for text in _texts(episode))


def _texts(episode: dict[str, Any]) -> Iterator[str]:
    """Everything of an episode that the page shows as text, names of fields and tokens left out."""
    task = episode["task"]
    yield from _strings([episode.get("id"), episode.get("error"), task.get("prompt"), task.get("target")])
    yield from _strings([episode.get("tail"), task.get("metadata"), episode.get("info")])
    for turn in episode["turns"]:
        yield from _strings([turn.get("observation"), turn.get("message"), turn.get("tool_calls")])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
