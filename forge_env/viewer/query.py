"""Pages of episodes and groups: filters and orders of the page, as SQL over the index."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_env.core.errors import UserError
from forge_env.utils.statistics import Estimate, clustered_share

PAGE = 200
"""Rows of an answer at most."""
_FROM = "FROM episodes JOIN files USING (file)"
_VARIANCE = "max(0, avg(reward * reward) - avg(reward) * avg(reward))"

EPISODE_ORDERS = {
    "written": "n",
    "newest": "started IS NULL, started + seconds DESC, n DESC",
    "reward": "reward IS NULL, reward, n",
    "reward_down": "reward IS NULL, reward DESC, n",
    "turns": "turns DESC, n",
    "tokens": "sampled DESC, n",
    "seconds": "seconds DESC, n",
    "step": "step IS NULL, step DESC, n",
}
GROUP_ORDERS = {
    "spread": "spread IS NULL, spread DESC, first",
    "reward": "mean IS NULL, mean, first",
    "reward_down": "mean IS NULL, mean DESC, first",
    "written": "first",
    "newest": "ended IS NULL, ended DESC, first DESC",
    "size": "size DESC, first",
}
_TERMS = {
    "phase": "phase = ?",
    "outcome": "outcome = ?",
    "env": "env = ?",
    "group": "group_id = ?",
    "task": "task = ?",
    "step": "step = ?",
    "version": "? BETWEEN version_low AND version_high",
    "reward_from": "reward >= ?",
    "reward_to": "reward <= ?",
    "fault": "fault = ?",
    "error": "error = ?",
}
_NUMBERS = {"step": int, "version": int, "reward_from": float, "reward_to": float}
_HAS = {
    "fault": "fault <> ''",
    "tool_error": "tool_errors > 0",
    "tools": "tools <> ''",
    "no_tools": "tools = ''",
    "success": "success = 1",
    "failure": "reward IS NOT NULL AND success = 0",
}
_PHASES = ("episodes", "demonstrations", "before", "train", "evaluation", "after", "tool_off")
"""As a run goes through them; others come after."""
FILTERS = frozenset({*_TERMS, "tool", "has", "id"})


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions in SQL, and their values."""

    sql: str
    values: tuple[Any, ...]

    def and_numbers(self, numbers: Sequence[int]) -> Where:
        """Those of the given episodes only."""
        return Where(f"{self.sql} AND n IN ({', '.join(map(str, numbers)) or 'NULL'})", self.values)


def where(wanted: Mapping[str, str]) -> Where:
    """Return the conditions for the filters that are named; others are passed over.

    Raises:
        UserError: for a value that makes no sense.
    """
    terms, values = ["kind <> 'trained'"], []
    for name, text in wanted.items():
        if name not in FILTERS or not text:
            continue
        if name == "has":
            if text not in _HAS:
                raise UserError(f"the filter has={text!r} is none of {', '.join(_HAS)}")
            terms.append(_HAS[text])
        elif name == "tool":
            terms.append("instr(tools, ?) > 0")
            values.append(f",{text},")
        elif name == "id":
            terms.append("instr(id, ?) > 0")
            values.append(text)
        else:
            terms.append(_TERMS[name])
            values.append(_value(name, text))
    return Where(" AND ".join(terms), tuple(values))


def episodes(db: sqlite3.Connection, that: Where, order: str, offset: int, limit: int) -> dict[str, Any]:
    """A page of episodes: {"total": all that match, "rows": those of the page}.

    Raises:
        UserError: for an unknown order.
    """
    by = _order(EPISODE_ORDERS, order)
    total = db.execute(f"SELECT count(*) {_FROM} WHERE {that.sql}", that.values).fetchone()[0]
    sql = f"SELECT episodes.*, phase {_FROM} WHERE {that.sql} ORDER BY {by} LIMIT ? OFFSET ?"
    rows = db.execute(sql, (*that.values, min(limit, PAGE), offset))
    return {"total": total, "rows": [brief(row) for row in rows]}


def groups(db: sqlite3.Connection, that: Where, order: str, offset: int, limit: int) -> dict[str, Any]:
    """A page of groups with the rewards of their episodes, in order.

    Raises:
        UserError: for an unknown order.
    """
    by = _order(GROUP_ORDERS, order)
    grouped = f"{_FROM} WHERE {that.sql} GROUP BY file, group_id"
    total = db.execute(f"SELECT count(*) FROM (SELECT 1 {grouped})", that.values).fetchone()[0]
    sql = (
        f"SELECT file, phase, group_id, task, env, question, max(step) AS step, min(n) AS first, "
        f"max(started + seconds) AS ended, count(*) AS size, avg(reward) AS mean, min(reward) AS low, "
        f"max(reward) AS high, {_VARIANCE} AS spread, sum(reward IS NULL) AS faults {grouped} "
        f"ORDER BY {by} LIMIT ? OFFSET ?"
    )
    rows = [dict(row) for row in db.execute(sql, (*that.values, min(limit, PAGE), offset))]
    for row in rows:
        del row["ended"]
        inner = f"SELECT episodes.*, phase {_FROM} WHERE {that.sql} AND file = ? AND group_id = ? ORDER BY n LIMIT 256"
        found = db.execute(inner, (*that.values, row.pop("file"), row["group_id"]))
        row["episodes"] = [member(each) for each in found]
        row["spread"] = None if row["spread"] is None else math.sqrt(row["spread"])
    return {"total": total, "rows": rows}


def faults(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Faults of ours by class and message, the most frequent first."""
    sql = (
        f"SELECT phase, fault, error, env, count(*) AS count, max(n) AS last {_FROM} WHERE fault <> '' "
        f"GROUP BY phase, fault, error, env ORDER BY count DESC, last DESC LIMIT 500"
    )
    found = [dict(row) for row in db.execute(sql)]
    for row in found:
        last = db.execute(f"SELECT phase, offset {_FROM} WHERE n = ?", (row.pop("last"),)).fetchone()
        row["episode"] = f"{last['phase']}/{last['offset']}"
    return found


def bad_lines(db: sqlite3.Connection) -> dict[str, Any]:
    """Lines that are no episode: how many in each file, and the first of them."""
    counts = [dict(row) for row in db.execute("SELECT phase, bad FROM files WHERE bad > 0 ORDER BY phase")]
    sql = "SELECT phase, offset, reason FROM bad JOIN files USING (file) ORDER BY file, offset LIMIT 100"
    return {"files": counts, "lines": [dict(row) for row in db.execute(sql)]}


def choices(db: sqlite3.Connection) -> dict[str, Any]:
    """What the filters can be set to: phases with their counts, outcomes, environments, tools, ranges."""
    phases = [
        {"phase": row[0], "episodes": row[1]}
        for row in db.execute(
            "SELECT phase, count(n) FROM files LEFT JOIN episodes USING (file) WHERE kind <> 'trained' "
            "GROUP BY phase ORDER BY phase"
        )
    ]
    phases.sort(key=lambda each: _place(each["phase"]))
    low, high, first, last, step_low, step_high = db.execute(
        "SELECT min(reward), max(reward), min(version_low), max(version_high), min(step), max(step) FROM episodes"
    ).fetchone()
    tools = {name for row in db.execute("SELECT DISTINCT tools FROM episodes LIMIT 1000") for name in row[0].split(",")}
    return {
        "phases": phases,
        "outcomes": [row[0] for row in db.execute("SELECT DISTINCT outcome FROM episodes ORDER BY 1 LIMIT 20")],
        "envs": [row[0] for row in db.execute("SELECT DISTINCT env FROM episodes ORDER BY 1 LIMIT 200")],
        "tools": sorted(tools - {""}),
        "reward": [low, high],
        "versions": [first, last],
        "steps": [step_low, step_high],
        "faults": db.execute("SELECT count(*) FROM episodes WHERE fault NOT IN ('', 'timeout')").fetchone()[0],
        "timeouts": db.execute("SELECT count(*) FROM episodes WHERE outcome = 'timeout'").fetchone()[0],
    }


def evaluations(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Success of every phase that measures, with its 95% interval by task; a time-out is no success."""
    sql = (
        "SELECT phase, step, task, avg(success) AS share, "
        "avg(CASE WHEN reward IS NOT NULL THEN success END) AS share_without, "
        f"avg(reward) AS reward, count(*) AS episodes, count(*) - count(reward) AS timeouts {_FROM} "
        "WHERE kind = 'episodes' AND (reward IS NOT NULL OR outcome = 'timeout') "
        "AND phase NOT IN ('train', 'demonstrations') GROUP BY file, task"
    )
    phases: dict[tuple[str, int | None], list[sqlite3.Row]] = {}
    for row in db.execute(sql):
        phases.setdefault((row["phase"], row["step"]), []).append(row)
    found = [_measured(phase, step, rows) for (phase, step), rows in phases.items()]
    return sorted(found, key=lambda each: (_place(each["phase"]), each["step"] or 0))


def siblings(db: sqlite3.Connection, row: sqlite3.Row) -> list[dict[str, Any]]:
    """The episodes of the same group in the same file, in order."""
    sql = f"SELECT episodes.*, phase {_FROM} WHERE file = ? AND group_id = ? ORDER BY n LIMIT 256"
    return [member(each) for each in db.execute(sql, (row["file"], row["group_id"]))]


def find(db: sqlite3.Connection, phase: str, offset: int) -> sqlite3.Row | None:
    """The row of the episode at a place, which is what links name."""
    sql = f"SELECT episodes.*, phase, path, files.kind AS file_kind {_FROM} WHERE phase = ? AND offset = ?"
    found: sqlite3.Row | None = db.execute(sql, (phase, offset)).fetchone()
    return found


def neighbours(db: sqlite3.Connection, that: Where, order: str, n: int) -> dict[str, Any]:
    """Where an episode stands in a list: {"previous": key, "next": key, "place": from 1, "listed": how many there are}.

    Of one that is not in the list there is no place.

    Raises:
        UserError: for an unknown order.
    """
    sql = f"SELECT n, phase, offset {_FROM} WHERE {that.sql} ORDER BY {_order(EPISODE_ORDERS, order)}"
    rows = db.execute(sql, that.values).fetchall()
    place = next((i for i, row in enumerate(rows) if row["n"] == n), None)

    def key(i: int) -> str | None:
        return f"{rows[i]['phase']}/{rows[i]['offset']}" if 0 <= i < len(rows) else None

    found = {"previous": None, "next": None, "place": None, "listed": len(rows)}
    return found if place is None else found | {"previous": key(place - 1), "next": key(place + 1), "place": place + 1}


def brief(row: sqlite3.Row) -> dict[str, Any]:
    """What the list shows of an episode."""
    left_out = ("n", "file", "offset", "length", "path", "file_kind", "tools")
    shown = {name: row[name] for name in row.keys() if name not in left_out}  # noqa: SIM118  (a Row iterates over values)
    return shown | {
        "key": f"{row['phase']}/{row['offset']}",
        "tools": [name for name in row["tools"].split(",") if name],
    }


def member(row: sqlite3.Row) -> dict[str, Any]:
    """What is shown of an episode beside its siblings."""
    shown = {name: row[name] for name in ("id", "reward", "outcome", "success")}
    return {"key": f"{row['phase']}/{row['offset']}"} | shown


def _measured(phase: str, step: int | None, rows: Sequence[sqlite3.Row]) -> dict[str, Any]:
    success = clustered_share([row["share"] for row in rows], attempts=sum(row["episodes"] for row in rows))
    return {
        "phase": phase,
        "step": step,
        "success": success.value,
        "interval": _finite(success),
        "reward": _mean([row["reward"] for row in rows]),
        "timeouts": sum(row["timeouts"] for row in rows),
        "without_timeouts": _mean([row["share_without"] for row in rows]),
        "episodes": sum(row["episodes"] for row in rows),
        "tasks": success.tasks,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Of the tasks that have the value."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _place(phase: str) -> int:
    name = phase.partition("_")[0] if phase.startswith("evaluation_") else phase
    return _PHASES.index(name) if name in _PHASES else len(_PHASES)


def _finite(estimate: Estimate) -> list[float]:
    return [estimate.low, estimate.high]


def _order(orders: Mapping[str, str], name: str) -> str:
    if name not in orders:
        raise UserError(f"the order {name!r} is none of {', '.join(orders)}")
    return orders[name]


def _value(name: str, text: str) -> Any:
    if name not in _NUMBERS:
        return text
    try:
        value = _NUMBERS[name](text)
        if math.isfinite(value) and abs(value) < 2**62:
            return value
    except (ValueError, OverflowError):
        pass
    raise UserError(f"the filter {name}={text!r:.40} is no number")
