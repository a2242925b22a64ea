"""Queries of the index: lists of episodes and groups, with the filters and orders of the page; single episodes."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_env.core.errors import UserError
from forge_env.core.reward_value import TOLERANCE
from forge_env.evaluation.kinds import NO_KIND

MAX_ROWS = 200
"""Rows of one answer."""
MAX_GROUP = 256
"""Episodes of a group that are listed."""
FROM_EPISODES = "FROM episodes JOIN files USING (file)"
REWARD_VARIANCE = (
    f"CASE WHEN max(reward) - min(reward) <= {TOLERANCE} * max(abs(min(reward)), abs(max(reward))) THEN 0 "
    "ELSE max(0, avg(reward * reward) - avg(reward) * avg(reward)) END"
)
"""Rewards that differ by rounding alone have no spread, see `are_same`."""

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
    "kind": "task_kind = ?",
    "step": "step = ?",
    "version": "? BETWEEN version_low AND version_high",
    "reward_from": f"reward >= ? - {TOLERANCE}",
    "reward_to": f"reward <= ? + {TOLERANCE}",
    "fault": "fault = ?",
    "error": "error = ?",
    "tool": "instr(tools, ',' || ? || ',') > 0",
    "id": "instr(id, ?) > 0",
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
FILTERS = frozenset({*_TERMS, "has"})


@dataclass(frozen=True, slots=True)
class Condition:
    sql: str
    values: tuple[Any, ...]

    def and_numbers(self, numbers: Sequence[int]) -> Condition:
        return Condition(f"{self.sql} AND n IN ({', '.join(map(str, numbers)) or 'NULL'})", self.values)


def condition_of(params: Mapping[str, str]) -> Condition:
    terms, values = ["kind <> 'trained'"], []
    for name, text in params.items():
        if name not in FILTERS or not text:
            continue
        if name == "has":
            if text not in _HAS:
                raise UserError(f"the filter has={text!r} is none of {', '.join(_HAS)}")
            terms.append(_HAS[text])
        else:
            terms.append(_TERMS[name])
            values.append(_filter_value(name, text))
    return Condition(" AND ".join(terms), tuple(values))


def list_episodes(db: sqlite3.Connection, condition: Condition, order: str, offset: int, limit: int) -> dict[str, Any]:
    """A page of episodes: {"total": all that match, "rows": the page's}."""
    order_sql = _order_sql(EPISODE_ORDERS, order)
    total = db.execute(f"SELECT count(*) {FROM_EPISODES} WHERE {condition.sql}", condition.values).fetchone()[0]
    sql = f"{condition.sql} ORDER BY {order_sql} LIMIT ? OFFSET ?"
    rows = select_rows(db, sql, (*condition.values, min(limit, MAX_ROWS), offset))
    return {"total": total, "rows": [list_entry(row) for row in rows]}


def list_groups(db: sqlite3.Connection, condition: Condition, order: str, offset: int, limit: int) -> dict[str, Any]:
    order_sql = _order_sql(GROUP_ORDERS, order)
    source = f"{FROM_EPISODES} WHERE {condition.sql} GROUP BY file, group_id"
    total = db.execute(f"SELECT count(*) FROM (SELECT 1 {source})", condition.values).fetchone()[0]
    sql = (
        f"SELECT file, phase, group_id, question, max(step) AS step, min(n) AS first, "
        f"max(started + seconds) AS ended, count(*) AS size, avg(reward) AS mean, min(reward) AS low, "
        f"max(reward) AS high, {REWARD_VARIANCE} AS spread {source} "
        f"ORDER BY {order_sql} LIMIT ? OFFSET ?"
    )
    groups = [dict(row) for row in db.execute(sql, (*condition.values, min(limit, MAX_ROWS), offset))]
    for group in groups:
        del group["ended"]
        group["episodes"] = _members(db, condition, group.pop("file"), group["group_id"])
        group["spread"] = None if group["spread"] is None else math.sqrt(group["spread"])
    return {"total": total, "rows": groups}


def siblings(db: sqlite3.Connection, row: sqlite3.Row) -> list[dict[str, Any]]:
    return _members(db, Condition("TRUE", ()), row["file"], row["group_id"])


def _members(db: sqlite3.Connection, condition: Condition, file: int, group_id: str) -> list[dict[str, Any]]:
    sql = f"{condition.sql} AND file = ? AND group_id = ? ORDER BY n LIMIT {MAX_GROUP}"
    names = ("id", "reward", "outcome", "success")
    rows = select_rows(db, sql, (*condition.values, file, group_id))
    return [{"key": episode_key(row)} | {name: row[name] for name in names} for row in rows]


def find_episode(db: sqlite3.Connection, key: str) -> sqlite3.Row:
    phase, _, offset = key.rpartition("/")
    sql = f"SELECT episodes.*, phase, path, files.kind AS file_kind {FROM_EPISODES} WHERE phase = ? AND offset = ?"
    row: sqlite3.Row | None = None
    if offset.isdecimal() and len(offset) < 16:
        row = db.execute(sql, (phase, int(offset))).fetchone()
    if row is None:
        raise UserError("this episode is not there: its file was cut back, deleted, or is still being read")
    return row


def neighbours(db: sqlite3.Connection, condition: Condition, order: str, number: int) -> dict[str, Any]:
    """An episode's place in a list: {"previous": key, "next": key, "place": from 1, "listed": rows of the list}."""
    sql = f"SELECT n, phase, offset {FROM_EPISODES} WHERE {condition.sql} ORDER BY {_order_sql(EPISODE_ORDERS, order)}"
    rows = db.execute(sql, condition.values).fetchall()
    place = next((i for i, row in enumerate(rows) if row["n"] == number), None)
    if place is None:
        return {"previous": None, "next": None, "place": None, "listed": len(rows)}
    previous = episode_key(rows[place - 1]) if place > 0 else None
    following = episode_key(rows[place + 1]) if place + 1 < len(rows) else None
    return {"previous": previous, "next": following, "place": place + 1, "listed": len(rows)}


def select_rows(db: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    """The rows of episodes under a condition in SQL, which an order and a limit may follow."""
    return db.execute(f"SELECT episodes.*, phase {FROM_EPISODES} WHERE {sql}", values).fetchall()


def list_entry(row: sqlite3.Row) -> dict[str, Any]:
    hidden = ("n", "file", "offset", "length", "path", "file_kind", "tools", "digest")
    entry = {name: row[name] for name in row.keys() if name not in hidden}  # noqa: SIM118  (a Row iterates over values)
    return entry | {"key": episode_key(row), "tools": [name for name in row["tools"].split(",") if name]}


def episode_key(row: sqlite3.Row) -> str:
    return f"{row['phase']}/{row['offset']}"


def _order_sql(orders: Mapping[str, str], name: str) -> str:
    if name not in orders:
        raise UserError(f"the order {name!r} is none of {', '.join(orders)}")
    return orders[name]


def _filter_value(name: str, text: str) -> Any:
    if name == "kind" and text == NO_KIND:
        return ""
    if name not in _NUMBERS:
        return text
    try:
        value = _NUMBERS[name](text)
        if math.isfinite(value) and abs(value) < 2**62:
            return value
    except (ValueError, OverflowError):
        pass
    raise UserError(f"the filter {name}={text!r:.40} is no number")
