"""Exports the viewer as one HTML file that holds its data: for an issue, a mail, or a machine without a server."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from contrib.viewer import query, summaries
from contrib.viewer.episode_detail import read_detail
from contrib.viewer.library import Library
from contrib.viewer.page import render_page, to_json
from contrib.viewer.report import run_data
from contrib.viewer.stored_runs import StoredRun
from contrib.viewer.viewed_run import ViewedRun
from contrib.viewer.views import VIEWS
from forge_env.core.errors import UserError
from forge_env.utils.atomic import replace_file

MAX_BYTES = 64 << 20
"""Of the episodes in one file, which a browser loads whole."""
MAX_METRICS = 200
REPORT = "report.html"
REPORT_EPISODES, REPORT_BYTES = 40, 4 << 20
"""Of report.html: its episodes and their bytes."""


def write_page(folder: Path) -> Path:
    """Write report.html of a training run, or replace it: its page from the present content of its folder.

    Of long files of episodes only the end is read: a run writes this page when it ends, which takes seconds.
    """
    run_data.check_training(folder)
    path = folder / REPORT
    stored_run = StoredRun(path=folder, name=folder.resolve().name, kind="training")
    with tempfile.TemporaryDirectory() as temporary:
        run = ViewedRun(0, stored_run, None, Path(temporary), run_data.MAX_BYTES)
        try:
            page, _, _ = _render([run], stored_run.name, REPORT_EPISODES, REPORT_BYTES)
        finally:
            run.close()
    try:
        replace_file(path, page)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    return path


def export(library: Library, path: Path, *, episodes: int) -> tuple[int, int]:
    """Write the viewer into one file; returns how many episodes it holds, and how many there are.

    If there are more than `episodes`, each run has an equal share of them: first the episodes of its overview and some
    faults, then complete groups from each phase in turn, groups with the widest spread of rewards first.
    """
    if episodes < 1:
        raise UserError(f"--episodes {episodes} leaves nothing to show: it is 1 or more")
    page, count, total = _render(library.runs, library.paths[0].resolve().name, episodes, MAX_BYTES)
    try:
        replace_file(path.expanduser(), page)
    except OSError as error:
        raise UserError(f"--export {path} cannot be written: {error.strerror}") from None
    return count, total


def unreadable_lines(library: Library) -> int:
    """Return how many lines of the indexed files hold no episode."""
    total = 0
    for run in library.runs:
        with run.index.reading() as db:
            total += sum(file["bad"] for file in summaries.bad_lines(db)["files"])
    return total


def _render(runs: Sequence[ViewedRun], place: str, max_episodes: int, max_bytes: int) -> tuple[str, int, int]:
    """The page of some runs, how many episodes it holds, and how many there are in the index."""
    views: dict[str, Any] = {}
    count = total = 0
    for run in runs:
        run.open()
        run.update_index()
        if run.index_error:
            raise UserError(run.index_error)
        view = _run_views(run)
        samples = [sample[when] for sample in view["report"].get("samples", ()) for when in sample if when != "change"]
        with run.index.reading() as db:
            rows, details = _select_episodes(
                run, db, samples, max(1, max_episodes // len(runs)), max_bytes // len(runs)
            )
            total += db.execute("SELECT count(*) FROM episodes").fetchone()[0]
        count += len(rows)
        views[str(run.number)] = view | {"rows": rows, "details": details}
    note = f"{count:,} of {total:,} episodes"
    data = {"place": place, "note": note, "runs": [run.summary() for run in runs], "views": views}
    return render_page(data), count, total


def _run_views(run: ViewedRun) -> dict[str, Any]:
    """The answers to all that the page may request of a run, without its episodes."""
    run.metrics.update()
    metrics = run.metrics.metrics_by_phase()
    views = {name: VIEWS[name](run, {}) for name in ("overview", "report", "faults", "timeline", "settings", "console")}
    curves = {phase: run.metrics.read_curves(phase, names[:MAX_METRICS]) for phase, names in metrics.items()}
    return {**views, "curves": curves, "console": {**views["console"], "logs": []}}


def _select_episodes(
    run: ViewedRun, db: sqlite3.Connection, samples: Sequence[str], max_episodes: int, max_bytes: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The list entries of the exported episodes, in the order of the files, and their details by key."""
    entries: list[dict[str, Any]] = []
    details: dict[str, Any] = {}
    for row in islice(_most_informative(db, samples, max_episodes), max_episodes):
        entry = query.list_entry(row)
        try:
            detail = read_detail(run.run, db, entry["key"], run.model)
        except UserError:
            continue  # just cut off or deleted
        size = len(to_json(detail))
        if size > max_bytes:
            continue
        max_bytes -= size
        entries.append(entry)
        details[entry["key"]] = {**detail, "commands": {}}  # they name paths of this machine
    for detail in details.values():
        detail["siblings"] = [sibling for sibling in detail["siblings"] if sibling["key"] in details]
    return sorted(entries, key=lambda entry: (entry["phase"], int(entry["key"].rpartition("/")[2]))), details


def _most_informative(db: sqlite3.Connection, samples: Sequence[str], max_episodes: int) -> Iterator[sqlite3.Row]:
    """Each once: the samples, the newest faults, then the groups of each phase, the widest spread of rewards first."""
    numbers: set[int] = set()
    for key in samples:
        row = query.find_episode(db, key)
        numbers.add(row["n"])
        yield row
    faults = f"fault <> '' ORDER BY {query.EPISODE_ORDERS['newest']} LIMIT ?"
    for row in query.select_rows(db, faults, (max(1, max_episodes // 4),)):
        if row["n"] not in numbers:
            numbers.add(row["n"])
            yield row
    groups_by_file: dict[int, list[sqlite3.Row]] = {}
    groups = "SELECT file, group_id FROM episodes GROUP BY file, group_id"
    for group in db.execute(f"{groups} ORDER BY {query.REWARD_VARIANCE} DESC, min(n)"):
        groups_by_file.setdefault(group["file"], []).append(group)
    for one_of_each_file in zip_longest(*groups_by_file.values()):
        for group in filter(None, one_of_each_file):
            for row in query.select_rows(db, "file = ? AND group_id = ? ORDER BY n", tuple(group)):
                if row["n"] not in numbers:
                    yield row
