"""Two evaluations side by side: the tasks of both with their pairs of episodes, and what changed by kind of task.

Pairs and statistics are those of `forge_env.evaluation.compare`.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from contrib.viewer.index_row import COLUMNS, scan_file
from contrib.viewer.query import MAX_GROUP, MAX_ROWS, episode_key, select_rows
from contrib.viewer.stored_runs import RunFile, StoredRun
from contrib.viewer.summaries import phase_order
from contrib.viewer.viewed_run import ViewedRun
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from forge_env.evaluation.compare import Key, Result, compare_results, finite, nothing_common
from forge_env.evaluation.digests import changed_parts

NOT_EVALUATED = ("train", "demonstrations")
"""Phases that are compared only if the reader chooses them."""
ORDERS = {
    "regressions": "change, reward_change, first",
    "improvements": "change DESC, reward_change DESC, first",
    "written": "first",
}
CHANGES = {"": "TRUE", "worse": "change < 0", "better": "change > 0", "same": "change = 0"}
_ATTEMPTS = ", ".join(f"'{outcome}'" for outcome in Outcome if outcome.is_attempt)
_PAIRS = (  # in the order of the index, which has all columns: no row of a table is read
    "main.episodes a INDEXED BY by_task "
    "CROSS JOIN other.episodes b INDEXED BY by_task ON b.task = a.task AND b.id = a.id AND b.file = ? "
    f"WHERE a.file = ? AND a.outcome IN ({_ATTEMPTS}) AND +b.outcome IN ({_ATTEMPTS})"
)
_COLUMNS_OF_RESULT = ("task", "id", "env", "task_kind", "seed", "success", "reward", "digest")


@dataclass(frozen=True, slots=True)
class Side:
    """A phase of a run."""

    run: ViewedRun
    file: RunFile

    @property
    def name(self) -> str:
        """As sentences name it."""
        return str(self.file.path if self.run.run.kind == "training" else self.run.run.path)

    def number(self, db: sqlite3.Connection, schema: str = "main") -> int:
        """Of its file in the index; -1 if nothing of it was read yet."""
        row = db.execute(f"SELECT file FROM {schema}.files WHERE path = ?", (str(self.file.path),)).fetchone()
        return -1 if row is None else int(row[0])

    def results(self) -> dict[Key, Result]:
        columns = ", ".join(_COLUMNS_OF_RESULT)
        sql = f"SELECT {columns} FROM episodes WHERE file = ? AND outcome IN ({_ATTEMPTS})"
        with self.run.index.reading() as db:
            db.row_factory = None
            return {row[:2]: Result(*row) for row in db.execute(sql, (self.number(db),))}

    def progress(self) -> str:
        """What is missing of an evaluation, in one sentence; "" if nothing is."""
        if self.run.summary()["complete"]:
            return ""
        with self.run.index.reading() as db:
            sql = f"SELECT count(*), max(step) FROM episodes WHERE file = ? AND outcome IN ({_ATTEMPTS})"
            count, step = db.execute(sql, (self.number(db),)).fetchone()
        state = self.run.evaluation_state(self.file.phase, step)
        plan = f" of {state['planned']:,} planned" if state["planned"] else ""
        return "" if state["finished"] else f"{self.name} is not finished: it has {count:,}{plan} episodes"


def phases_of(run: StoredRun) -> dict[str, RunFile]:
    """The files of episodes by phase, in the order of a run; those of its evaluations come first."""
    files = [file for file in run.files() if file.kind == "episodes"]
    files.sort(key=lambda file: (file.phase in NOT_EVALUATED, phase_order(file.phase)))
    return {file.phase: file for file in files}


def sides_of(first: ViewedRun, second: ViewedRun, params: Mapping[str, str]) -> tuple[Side, Side]:
    """What `phase` and `other_phase` name.

    Without them: the first and the last evaluation of one run, or the last one that two runs have in common.
    """
    a, b = phases_of(first.run), phases_of(second.run)
    for run, phases in ((first, a), (second, b)):
        if not phases:
            raise UserError(f"{run.run.path} has no episodes yet: wait for the first one")
    evaluations = [[phase for phase in phases if phase not in NOT_EVALUATED] or [*phases] for phases in (a, b)]
    if first is second:
        defaults = evaluations[0][0], evaluations[0][-1]
    else:
        common = [phase for phase in evaluations[0] if phase in evaluations[1]]
        defaults = (common[-1], common[-1]) if common else (evaluations[0][-1], evaluations[1][-1])
    names = params.get("phase") or defaults[0], params.get("other_phase") or defaults[1]
    for run, phases, name in ((first, a, names[0]), (second, b, names[1])):
        if name not in phases:
            raise UserError(f"{run.run.path} has no phase {name!r:.60}: it has {', '.join(phases)}")
    return Side(first, a[names[0]]), Side(second, b[names[1]])


def check_common(sides: tuple[Side, Side]) -> None:
    """Refuse evaluations without a common attempt. It reads both files only as far as the first one.

    Raises:
        UserError: there is none, and both evaluations are finished; or its task is another one.
    """
    digests: tuple[dict[Key, str], dict[Key, str]] = ({}, {})
    task, id_, digest = (COLUMNS.index(name) for name in ("task", "id", "digest"))
    scans = [scan_file(side.file.path, "episodes", 0, side.file.path.stat().st_size) for side in sides]
    for blocks in zip_longest(*scans):
        for digest_of, block in zip(digests, blocks, strict=True):
            digest_of |= {(row[task], row[id_]): row[digest] for row in (block.rows if block else ())}
        if common := digests[0].keys() & digests[1].keys():
            if others := [key for key in common if digests[0][key] != digests[1][key]]:
                raise _another_task(sides, min(others)[0])
            return
    if all(side.run.summary()["complete"] for side in sides):
        raise nothing_common(*(side.name for side in sides))


def _another_task(sides: tuple[Side, Side], task: str) -> UserError:
    names = [side.name for side in sides]
    return UserError(
        f"the task {task!r:.80} of {names[0]} is another one in {names[1]}: compare runs of the same tasks"
    )


def list_tasks(sides: tuple[Side, Side], params: Mapping[str, str], offset: int, limit: int) -> dict[str, Any]:
    """A page of the tasks that both have, with the share of successes of each and their pairs of episodes."""
    order, change = params.get("order") or "regressions", params.get("change", "")
    if order not in ORDERS or change not in CHANGES:
        choices = ORDERS if order not in ORDERS else CHANGES
        raise UserError(f"{order if choices is ORDERS else change!r:.40} is none of {', '.join(filter(None, choices))}")
    kind = params.get("kind", "")
    with _both(sides) as (db, numbers):
        sql = (
            "SELECT a.task, avg(a.success) AS share, avg(b.success) AS other_share, "
            "avg(b.success) - avg(a.success) AS change, avg(b.reward) - avg(a.reward) AS reward_change, "
            f"min(a.n) AS first, count(*) AS pairs FROM {_PAIRS} GROUP BY a.task"
        )
        tasks = db.execute(
            f"SELECT *, count(*) OVER () AS total FROM ({sql}) WHERE {CHANGES[change]} "
            f"{'AND first IN (SELECT n FROM episodes WHERE task_kind = ?) ' if kind else ''}"
            f"ORDER BY {ORDERS[order]} LIMIT ? OFFSET ?",
            (*numbers, *([kind] if kind else []), min(limit, MAX_ROWS), offset),
        ).fetchall()
        rows, another = _with_pairs(db, sides[1].run, numbers, tasks)
        is_empty = not tasks and not db.execute(f"SELECT 1 FROM {_PAIRS} LIMIT 1", numbers).fetchone()
    reading = not all(side.run.index.is_complete for side in sides)
    refusal = nothing_common(*(side.name for side in sides)) if is_empty and not reading else ""
    return {
        "total": tasks[0]["total"] if tasks and not another else 0,
        "rows": [] if another else rows,
        "reading": reading,
        "refusal": str(_another_task(sides, another) if another else refusal),
        "phases": [[*phases_of(side.run.run)] for side in sides],
        "chosen": [side.file.phase for side in sides],
        "stamp": [side.run.index.stamp for side in sides],
    }


def differences(sides: tuple[Side, Side]) -> dict[str, Any]:
    """The paired difference of success, of all tasks and of each kind, and what the reader has to know of it."""
    first, second = sides
    results = first.results()
    comparisons = compare_results((first.name, results), (second.name, second.results()), measures=("success",))
    notes = [*filter(None, [side.progress() for side in dict.fromkeys(sides)]), *_older(sides), *comparisons[0].notes()]
    kinds = sorted({result.kind for result in results.values()} - {""})
    return {"rows": [finite(asdict(comparison)) for comparison in comparisons], "notes": notes, "kinds": kinds}


@contextmanager
def _both(sides: tuple[Side, Side]) -> Iterator[tuple[sqlite3.Connection, tuple[int, int]]]:
    """A connection to both indexes, the second one as `other`; and the number of the second file, then of the first."""
    with sides[0].run.index.reading() as db:
        db.execute("ATTACH DATABASE ? AS other", (str(sides[1].run.index.path),))
        yield db, (sides[1].number(db, "other"), sides[0].number(db))


def _with_pairs(
    db: sqlite3.Connection, second: ViewedRun, numbers: tuple[int, int], tasks: list[sqlite3.Row]
) -> tuple[list[dict[str, Any]], str]:
    """The tasks with their pairs, and the name of one that is not the same in both; "" if all are."""
    pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for task in tasks:
        sql = f"SELECT a.n, b.n FROM {_PAIRS} AND a.task = ? ORDER BY a.n LIMIT {MAX_GROUP}"
        pairs[task["task"]] += [tuple(row) for row in db.execute(sql, (*numbers, task["task"]))]
    a, b = ([pair[i] for group in pairs.values() for pair in group] for i in (0, 1))
    with second.index.reading() as other:
        firsts, seconds = ({row["n"]: row for row in _rows(of, n)} for of, n in ((db, a), (other, b)))
    another = next(
        (of for of, group in pairs.items() for x, y in group if firsts[x]["digest"] != seconds[y]["digest"]), ""
    )
    rows = [
        {
            **{name: task[name] for name in ("task", "share", "other_share", "pairs")},
            "question": firsts[task["first"]]["question"],
            "kind": firsts[task["first"]]["task_kind"],
            "episodes": [[_entry(firsts[x]), _entry(seconds[y])] for x, y in pairs[task["task"]]],
        }
        for task in tasks
    ]
    return rows, another


def _rows(db: sqlite3.Connection, numbers: list[int]) -> list[sqlite3.Row]:
    return select_rows(db, f"n IN ({', '.join(map(str, numbers)) or 'NULL'})", ())


def _entry(row: sqlite3.Row) -> dict[str, Any]:
    return {"key": episode_key(row)} | {name: row[name] for name in ("id", "reward", "outcome", "success")}


def _older(sides: tuple[Side, Side]) -> Iterator[str]:
    """Yield a sentence if the code or the data of the environment changed between the evaluations."""
    kinds = [side.run.run.kind for side in sides]
    if kinds != ["evaluation", "evaluation"] or sides[0].run is sides[1].run:
        return
    plans = [side.run.run.read_json("plan.json").get("depends_on") for side in sides]
    then, now = ({k: v for k, v in (p or {}).items() if k != "agent" and isinstance(v, dict)} for p in plans)
    if parts := changed_parts(then, now):
        yield f"{sides[0].name} and {sides[1].name} are of before and after a change of {' and of '.join(parts)}"
