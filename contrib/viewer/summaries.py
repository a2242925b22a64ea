"""Summaries of a run from its index: faults, unreadable lines, values for the filters, evaluations."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contrib.viewer.query import FROM_EPISODES, episode_key
from forge_env.evaluation.kinds import NO_KIND
from forge_env.utils.statistics import clustered_share

_PHASES = ("episodes", "demonstrations", "before", "train", "evaluation", "after", "tool_off")
"""In the order of a run; other phases come after them."""
CHANGES = {
    (0, 1): "solved since training",
    (1, 0): "no longer solved",
    (0, 0): "not solved",
    (1, 1): "solved before and after",
}
"""By the success of a task before and after training."""
MAX_SAMPLES = 4
_UNREAD = {
    "reading": True,
    **dict.fromkeys(("success", "interval", "reward", "timeouts", "without_timeouts", "episodes", "tasks")),
}


def list_faults(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Environment faults, infrastructure faults and time-outs, by class and message, the most frequent first."""
    sql = (
        f"SELECT phase, fault, error, env, count(*) AS count, max(n) AS last {FROM_EPISODES} WHERE fault <> '' "
        f"GROUP BY phase, fault, error, env ORDER BY count DESC, last DESC LIMIT 500"
    )
    faults = [dict(row) for row in db.execute(sql)]
    for fault in faults:
        last = db.execute(f"SELECT phase, offset {FROM_EPISODES} WHERE n = ?", (fault.pop("last"),)).fetchone()
        fault["episode"] = episode_key(last)
    return faults


def bad_lines(db: sqlite3.Connection) -> dict[str, Any]:
    counts = [dict(row) for row in db.execute("SELECT phase, bad FROM files WHERE bad > 0 ORDER BY phase")]
    sql = "SELECT phase, offset, reason FROM bad JOIN files USING (file) ORDER BY file, offset LIMIT 100"
    return {"files": counts, "lines": [dict(row) for row in db.execute(sql)]}


def filter_choices(db: sqlite3.Connection) -> dict[str, Any]:
    """The values that the filters can have: phases with their counts, outcomes, environments, kinds, tools, ranges."""
    phases = [
        {"phase": row[0], "episodes": row[1]}
        for row in db.execute(
            "SELECT phase, count(n) FROM files LEFT JOIN episodes USING (file) WHERE kind <> 'trained' "
            "GROUP BY phase ORDER BY phase"
        )
    ]
    phases.sort(key=lambda phase: phase_order(phase["phase"]))
    version_low, version_high, step_low, step_high = db.execute(
        "SELECT min(version_low), max(version_high), min(step), max(step) FROM episodes"
    ).fetchone()
    tools = {name for row in db.execute("SELECT DISTINCT tools FROM episodes LIMIT 1000") for name in row[0].split(",")}
    kinds = db.execute("SELECT DISTINCT task_kind FROM episodes ORDER BY 1 LIMIT 200")
    return {
        "phases": phases,
        "outcomes": [row[0] for row in db.execute("SELECT DISTINCT outcome FROM episodes ORDER BY 1 LIMIT 20")],
        "envs": [row[0] for row in db.execute("SELECT DISTINCT env FROM episodes ORDER BY 1 LIMIT 200")],
        "kinds": [kind or NO_KIND for (kind,) in kinds],
        "tools": sorted(tools - {""}),
        "versions": [version_low, version_high],
        "steps": [step_low, step_high],
        "faults": db.execute("SELECT count(*) FROM episodes WHERE fault NOT IN ('', 'timeout')").fetchone()[0],
        "timeouts": db.execute("SELECT count(*) FROM episodes WHERE outcome = 'timeout'").fetchone()[0],
    }


def evaluations(db: sqlite3.Connection, *, is_indexed: bool) -> list[dict[str, Any]]:
    """The success of every evaluation, with its 95% interval clustered by task. A time-out counts as no success.

    An evaluation whose file is still being read has no figures, and "reading" is True. "finished" and "planned" are
    those of a complete run. "faults" are None for an evaluation with a file of faults.
    """
    reading = () if is_indexed else [row["phase"] for row in db.execute("SELECT * FROM files") if _is_longer(row)]
    sql = (
        "SELECT phase, step, task, avg(success) AS share, "
        "avg(CASE WHEN reward IS NOT NULL THEN success END) AS share_without, "
        f"avg(reward) AS reward, count(*) AS episodes, count(*) - count(reward) AS timeouts {FROM_EPISODES} "
        "WHERE kind = 'episodes' AND (reward IS NOT NULL OR outcome = 'timeout') "
        "AND phase NOT IN ('train', 'demonstrations') GROUP BY file, task"
    )
    tasks_by_phase: dict[tuple[str, int | None], list[sqlite3.Row]] = {}
    for row in db.execute(sql):
        tasks_by_phase.setdefault((row["phase"], row["step"]), []).append(row)
    faults = dict(db.execute(f"SELECT phase, count(*) {FROM_EPISODES} WHERE reward IS NULL GROUP BY phase"))
    results = [
        (result := _evaluation(phase, step, tasks))
        | {"faults": None if phase == "episodes" else faults.get(phase, 0) - result["timeouts"]}
        | {"reading": False, "finished": True, "planned": None}
        | (_UNREAD if phase in reading else {})
        for (phase, step), tasks in tasks_by_phase.items()
    ]
    return sorted(results, key=lambda result: phase_order(result["phase"]))


def samples(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """A few tasks with the key of the first episode before and after training: {"change", "before", "after"}.

    One task of every change that occurs comes first, and then more of them.
    """
    sql = (
        f"SELECT task, phase, offset, success, min(n) {FROM_EPISODES} "
        "WHERE phase IN ('before', 'after') GROUP BY phase, task ORDER BY n"
    )
    by_task: dict[str, dict[str, sqlite3.Row]] = {}
    for row in db.execute(sql):
        by_task.setdefault(row["task"], {})[row["phase"]] = row
    by_change: dict[str, list[dict[str, Any]]] = {}
    pairs = [rows for rows in by_task.values() if len(rows) == 2] or [*by_task.values()]
    for rows in pairs:
        change = CHANGES.get(tuple(rows[phase]["success"] for phase in ("before", "after") if phase in rows), "")
        keys = {phase: episode_key(row) for phase, row in rows.items()}
        by_change.setdefault(change, []).append({"change": change, **keys})
    first = [by_change[change][0] for change in ("", *CHANGES.values()) if change in by_change]
    return (first + [sample for of_change in by_change.values() for sample in of_change[1:]])[:MAX_SAMPLES]


def _is_longer(file: sqlite3.Row) -> bool:
    try:
        return bool(Path(file["path"]).stat().st_size > file["done"])
    except OSError:
        return False


def _evaluation(phase: str, step: int | None, tasks: Sequence[sqlite3.Row]) -> dict[str, Any]:
    success = clustered_share([task["share"] for task in tasks], attempts=sum(task["episodes"] for task in tasks))
    return {
        "phase": phase,
        "step": step,
        "success": success.value,
        "interval": [success.low, success.high],
        "reward": _mean_of_known([task["reward"] for task in tasks]),
        "timeouts": sum(task["timeouts"] for task in tasks),
        "without_timeouts": _mean_of_known([task["share_without"] for task in tasks]),
        "episodes": sum(task["episodes"] for task in tasks),
        "tasks": success.tasks,
    }


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return math.fsum(finite) / len(finite) if finite else None


def phase_order(phase: str) -> tuple[int, str, str]:
    """By the course of a run; a further set, such as the greedy one, comes after its evaluation."""
    evaluation = phase.partition(".")[0]
    name = "evaluation" if evaluation.startswith("evaluation_") else evaluation
    return _PHASES.index(name) if name in _PHASES else len(_PHASES), evaluation, phase
