"""One HTML file that holds the page and what it shows: for an issue, a mail, or a place without a server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.utils.atomic import replace_file
from forge_env.viewer import query
from forge_env.viewer.library import Library, Opened
from forge_env.viewer.page import page, to_json
from forge_env.viewer.record import read_record

MOST_BYTES = 64 << 20
"""Of episodes in one file: browsers open it at once."""
MOST_METRICS = 60


def export(library: Library, to: Path, *, episodes: int) -> tuple[int, int]:
    """Write a library into one file; returns how many episodes it holds, and how many there are.

    Where there are more than `episodes`, each run has its share: some of its faults, and then, from each phase in turn,
    whole groups, those with the widest spread of rewards first.

    Raises:
        UserError: when the file cannot be written, or `episodes` makes no sense.
    """
    if episodes < 1:
        raise UserError(f"--episodes {episodes} leaves nothing to show: it is 1 or more")
    share = max(1, episodes // len(library.runs))
    views: dict[str, Any] = {}
    held = there = 0
    for opened in library.runs:
        opened.open()
        opened.follow()
        view, total = _view(opened, share, MOST_BYTES // len(library.runs))
        views[str(opened.number)] = view
        held, there = held + len(view["rows"]), there + total
    data = {
        "place": library.place.resolve().name,
        "note": f"{held:,} of {there:,} episodes",
        "runs": [opened.summary() for opened in library.runs],
        "views": views,
    }
    try:
        replace_file(to.expanduser(), page(data))
    except OSError as error:
        raise UserError(f"--export {to} cannot be written: {error.strerror}") from None
    return held, there


def _view(opened: Opened, most: int, room: int) -> tuple[dict[str, Any], int]:
    """What the page may ask of one run, and how many episodes that run has."""
    rows: list[dict[str, Any]] = []
    records: dict[str, Any] = {}
    with opened.index.reading() as db:
        total: int = db.execute("SELECT count(*) FROM episodes").fetchone()[0]
        for row in islice(_telling(db, most), most):
            brief = query.brief(row)
            try:
                record = read_record(opened.run, db, brief["key"], opened.model)
            except UserError:
                continue  # cut off or deleted meanwhile
            room -= len(to_json(record))
            if room < 0:
                break
            rows.append(brief)
            records[brief["key"]] = {**record, "commands": {}}
    for record in records.values():
        record["siblings"] = [each for each in record["siblings"] if each["key"] in records]
    view = {
        "overview": opened.view("overview", {}),
        "curves": {
            phase: opened.series.read(phase, names[:MOST_METRICS]) for phase, names in opened.series.names().items()
        },
        "faults": opened.view("faults", {}),
        "timeline": opened.view("timeline", {}),
        "console": {**opened.view("console", {}), "logs": []},
        "rows": sorted(rows, key=lambda each: (each["phase"], int(each["key"].rpartition("/")[2]))),
        "records": records,
    }
    return view, total


def _telling(db: sqlite3.Connection, most: int) -> Iterator[sqlite3.Row]:
    """The episodes that say most about a run, each once."""
    seen: set[int] = set()
    faults = f"fault <> '' ORDER BY {query.EPISODE_ORDERS['newest']} LIMIT ?"
    for row in _rows(db, faults, (max(1, most // 4),)):
        seen.add(row["n"])
        yield row
    phases: dict[int, list[sqlite3.Row]] = {}
    groups = "SELECT file, group_id FROM episodes GROUP BY file, group_id"
    spread = "avg(reward * reward) - avg(reward) * avg(reward)"
    for group in db.execute(f"{groups} ORDER BY {spread} DESC, min(n)"):
        phases.setdefault(group["file"], []).append(group)
    for turn in zip_longest(*phases.values()):
        for group in filter(None, turn):
            for row in _rows(db, "file = ? AND group_id = ? ORDER BY n", tuple(group)):
                if row["n"] not in seen:
                    yield row


def _rows(db: sqlite3.Connection, condition: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
    sql = f"SELECT episodes.*, phase FROM episodes JOIN files USING (file) WHERE {condition}"
    return db.execute(sql, values).fetchall()
