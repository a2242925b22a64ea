"""The views of a run: for each page, the function that answers what the page requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from contrib.live.client import goes_on
from contrib.viewer import query, summaries
from contrib.viewer.comparison import differences, list_tasks, sides_of
from contrib.viewer.episode_detail import read_detail
from contrib.viewer.report import tables
from contrib.viewer.report.kind_tables import kind_table, part_tables
from contrib.viewer.report.run_data import read_run
from contrib.viewer.viewed_run import ViewedRun
from forge_env.core.errors import UserError

DOCUMENTS = ("summary.json", "eval.json", "plan.json", "run.json")
MAX_CURVES = 200
MAX_SEARCH_TEXT = 400
Params = Mapping[str, str]


class NotThere(UserError):
    """What was requested does not exist, or no longer exists."""


def _state(run: ViewedRun, params: Params) -> Any:
    run.metrics.update()
    is_complete, stamp = run.index.is_complete, run.index.stamp
    done, total = run.index.progress()
    step = run.metrics.last_values().get("step", math.nan)
    return {
        "stamp": stamp,
        "indexed": is_complete,
        "done": total if is_complete else done,
        "total": total,
        "step": step if math.isfinite(step) else None,
        "changed": run.seconds_since_change(),
        "goes_on": goes_on(run.run.path),
        "console_bytes": run.console.size(),
        "index_error": run.index_error,
    }


def _overview(run: ViewedRun, params: Params) -> Any:
    with run.index.reading() as db:
        evaluations = summaries.evaluations(db, is_indexed=run.index.is_complete)
        choices, bad = summaries.filter_choices(db), summaries.bad_lines(db)
    summary = run.summary()
    facts = {**run.run.read_json("run.json"), **run.run.read_json("summary.json")}
    for evaluation in evaluations:
        evaluation["title"] = tables.evaluation_title(facts, evaluation["phase"])
    for evaluation in evaluations if not summary["complete"] else ():
        evaluation |= run.evaluation_state(evaluation["phase"], evaluation["step"])
    documents: dict[str, Any] = {name: run.run.read_json(name) for name in DOCUMENTS}
    documents["config.yaml"] = run.run.read_text("config.yaml")
    return {
        **summary,
        "choices": choices,
        "evaluations": evaluations,
        "bad": bad,
        "cut": sorted(run.index.cut_phases),
        "documents": {name: data for name, data in documents.items() if data},
    }


def _report(run: ViewedRun, params: Params) -> Any:
    """What a training run did: figures, tables, and sample episodes; {} for any other run."""
    if run.run.kind != "training" or not (run.run.path / "metrics.jsonl").is_file():
        return {}
    try:
        data = read_run(run.run.path)
        all_tables = [tables.warnings(data), tables.actions(data), kind_table(data), *part_tables(data)]
        all_tables += [tables.startup(data), tables.tools(data), tables.outcomes(data)]
        report = {"why_incomplete": data.why_incomplete, "figures": tables.headline(data)}
        report["change"] = tables.change_text(data)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:  # no such run wrote it
        return {"why_incomplete": f"its figures cannot be read ({type(error).__name__}: {error})"}
    with run.index.reading() as db:
        samples = summaries.samples(db)
    rows = [asdict(table) | {"columns": [*table.columns.items()]} for table in all_tables if table is not None]
    return {**report, "tables": rows, "samples": samples}


def _curves(run: ViewedRun, params: Params) -> Any:
    run.metrics.update()
    names = [name for name in params.get("names", "").split(",") if name]
    return run.metrics.read_curves(params.get("phase", "train"), names[:MAX_CURVES])


def _list_page(
    run: ViewedRun, params: Params, list_rows: Callable[..., dict[str, Any]], default_order: str
) -> dict[str, Any]:
    condition, progress = _condition(run, params)
    offset, limit = _integer(params, "offset", 0), _integer(params, "limit", 50)
    with run.index.reading() as db:
        page = list_rows(db, condition, params.get("order") or default_order, offset, limit)
    return {**page, "search": progress}


def _condition(run: ViewedRun, params: Params) -> tuple[query.Condition, dict[str, Any] | None]:
    condition = query.condition_of(params)
    if not params.get("q"):
        return condition, None
    search = run.search(params["q"][:MAX_SEARCH_TEXT])
    progress = {"share": search.share, "ended": search.ended, "matches": len(search.numbers)}
    return condition.and_numbers(list(search.numbers)), progress


def _episode(run: ViewedRun, params: Params) -> Any:
    condition, _ = _condition(run, params)
    key = params.get("key", "")
    with run.index.reading() as db:
        try:
            detail = read_detail(run.run, db, key, run.model)
            number = query.find_episode(db, key)["n"]
        except UserError as error:
            raise NotThere(str(error)) from None
        return detail | query.neighbours(db, condition, params.get("order") or "written", number)


def _faults(run: ViewedRun, params: Params) -> Any:
    with run.index.reading() as db:
        return {"faults": summaries.list_faults(db), "bad": summaries.bad_lines(db)}


def _timeline(run: ViewedRun, params: Params) -> Any:
    run.trace.update()
    return run.trace.read_spans(_seconds(params, "from"), _seconds(params, "to"))


VIEWS: dict[str, Callable[[ViewedRun, Params], Any]] = {
    "state": _state,
    "overview": _overview,
    "report": _report,
    "curves": _curves,
    "episodes": lambda run, params: _list_page(run, params, query.list_episodes, "written"),
    "groups": lambda run, params: _list_page(run, params, query.list_groups, "spread"),
    "episode": _episode,
    "faults": _faults,
    "timeline": _timeline,
    "console": lambda run, params: run.console.read(params.get("log", "")),
    "settings": lambda run, params: run.run.settings(),
    "live": lambda run, params: run.live.look(),
}
COMPARISONS: dict[str, Callable[[ViewedRun, ViewedRun, Params], Any]] = {
    "compare": lambda run, other, params: list_tasks(
        sides_of(run, other, params), params, _integer(params, "offset", 0), _integer(params, "limit", 50)
    ),
    "differences": lambda run, other, params: differences(sides_of(run, other, params)),
}
"""Views of a run and another one, or itself."""
WITHOUT_INDEX = ("curves", "timeline", "console", "settings", "live")
"""Views that need no episodes, so that comparing many runs indexes none of them."""


def _integer(params: Params, name: str, default: int) -> int:
    text = params.get(name) or str(default)
    if not text.isdecimal() or len(text) > 9:
        raise UserError(f"{name}={text!r:.40} is no whole number from 0 on")
    return int(text)


def _seconds(params: Params, name: str) -> float | None:
    try:
        value = float(params[name]) if params.get(name) else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise UserError(f"{name}={params[name]!r:.40} is no number of seconds")
    return value
