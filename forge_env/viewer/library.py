"""All that the page may ask for, of every run that is open: the one place behind the server and the export."""

from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.records.audit import model_of
from forge_env.viewer import query
from forge_env.viewer.folder import Run, find_runs
from forge_env.viewer.index import Index
from forge_env.viewer.output import Output
from forge_env.viewer.record import read_record, row_of
from forge_env.viewer.search import Search
from forge_env.viewer.series import Series
from forge_env.viewer.spans import Spans

FOLLOW_SECONDS = 1.0
MOST_SEARCHES = 8
Params = Mapping[str, str]


class NotThere(UserError):
    """What was asked for does not exist, or not any more."""


class Library:
    """The runs at a place. Used as `with`; what it keeps in temporary folders is gone afterwards.

    Args:
        place: a run, a folder of runs, or a file of episodes.
        model: folder whose tokenizer gives tokens their text, where it is not the run's own.

    Raises:
        UserError: when there is no run.
    """

    def __init__(self, place: Path, *, model: Path | None = None) -> None:
        self.place = place.expanduser()
        self._model = model
        self._temporary = Path(tempfile.mkdtemp(prefix="forge-env-view-"))
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._shelf: list[Opened] = []
        self._follower = threading.Thread(target=self._follow, name="viewer-follow", daemon=True)
        try:
            self._look()
        except BaseException:
            shutil.rmtree(self._temporary, ignore_errors=True)
            raise

    def __enter__(self) -> Library:
        if len(self._shelf) == 1:
            self._shelf[0].open()  # it is read while the browser starts
        self._follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._wake.set()
        for opened in self._shelf:
            opened.close()
        if self._follower.is_alive():
            self._follower.join(10)
        shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def runs(self) -> list[Opened]:
        return list(self._shelf)

    def answer(self, path: str, params: Params) -> Any:
        """Answer what the page asks: "runs", or "NUMBER/VIEW" with the number of a run.

        Raises:
            NotThere: when there is no such thing.
            UserError: when a parameter makes no sense.
        """
        if path == "runs":
            self._look()
            return {"place": str(self.place), "runs": [opened.summary() for opened in self._shelf]}
        number, _, view = path.partition("/")
        if not number.isdecimal() or len(number) > 6 or int(number) >= len(self._shelf) or view not in VIEWS:
            raise NotThere("there is no such page")
        opened = self._shelf[int(number)]
        if view not in WITHOUT_INDEX:
            opened.open(self._wake)
        return opened.view(view, params)

    def _look(self) -> None:
        """Find the runs; one that has come stays at the end, so that the numbers of the others hold."""
        with self._lock:
            known = {opened.run.path for opened in self._shelf}
            try:
                found = find_runs(self.place)
            except UserError:
                if not self._shelf:
                    raise
                return  # taken away while somebody looks at it
            for run in found:
                if run.path not in known:
                    number = len(self._shelf)
                    self._shelf.append(Opened(number, run, self._model, self._temporary / str(number)))

    def _follow(self) -> None:
        while not self._closed.is_set():
            for opened in self.runs:
                if not self._closed.is_set():
                    opened.follow()
            self._wake.wait(FOLLOW_SECONDS)
            self._wake.clear()


class Opened:
    """One run; its index is made when somebody first looks into it."""

    def __init__(self, number: int, run: Run, model: Path | None, temporary: Path) -> None:
        self.number = number
        self.run = run
        self.series = Series(run.path / "metrics.jsonl")
        self.spans = Spans(run.path / "trace.json")
        self.output = Output(run)
        self.trouble = ""
        self._given_model = model
        self._temporary = temporary
        self._index: Index | None = None
        self._lock = threading.Lock()
        self._searches: OrderedDict[str, Search] = OrderedDict()

    @property
    def index(self) -> Index:
        assert self._index is not None, "opened before it is read"
        return self._index

    @property
    def model(self) -> Path | None:
        return self._given_model or (model_of(self.run.path) if self.run.kind != "file" else None)

    def open(self, wake: threading.Event | None = None) -> None:
        """Make or open the index, the first time, and when its file has gone with the run's folder."""
        with self._lock:
            old = self._index
            if old is not None and old.is_there:
                return
            index = _index_of(self.run, self._temporary)
            if old is not None:
                index.stamp = old.stamp + 1  # the page sees that all has changed
                old.close()
                self._forget_searches()
            self._index = index
        if wake is not None:
            wake.set()

    def follow(self) -> None:
        """Bring the index up to date, where there is one."""
        if self._index is None:
            return
        try:
            self.open()
            self.index.update()
            self.trouble = ""
        except Exception as error:  # the page says it, and what is there can still be looked at
            self.trouble = f"the index cannot be brought up to date: {type(error).__name__}: {error}"

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self._forget_searches()

    def _forget_searches(self) -> None:
        while self._searches:
            self._searches.popitem()[1].stop()

    def search(self, text: str) -> Search:
        """The search for a text, which goes on where it is running; the oldest ones are forgotten."""
        with self._lock:
            search = self._searches.get(text)
            if search is None or (search.stamp != self.index.stamp and search.ended):
                search = self._searches[text] = Search(self.index, text)
            self._searches.move_to_end(text)
            while len(self._searches) > MOST_SEARCHES:
                self._searches.popitem(last=False)[1].stop()
        search.wait()
        return search

    def view(self, name: str, params: Params) -> Any:
        """What one of `VIEWS` shows of this run."""
        return VIEWS[name](self, params)

    def summary(self) -> dict[str, Any]:
        """What the list of runs shows, without the index."""
        self.series.update()
        done = self.run.read_json("summary.json" if self.run.kind == "training" else "eval.json")
        known = {**self.run.read_json("run.json"), **self.run.read_json("plan.json"), **done}
        last = self.series.last()
        return {
            "number": self.number,
            "name": self.run.name,
            "kind": self.run.kind,
            "complete": bool(done) or self.run.kind == "file",
            "changed": _age(self.run),
            "last": {name: _finite(last[name]) for name in ("step", "reward", "success", "loss") if name in last},
            "result": _result(done),
            **{name: known.get(name) or "" for name in ("env", "agent", "algorithm")},
            "metrics": {phase: names[:400] for phase, names in self.series.names().items()},
        }


def _state(opened: Opened, params: Params) -> Any:
    index = opened.index
    opened.series.update()
    complete, stamp = index.complete, index.stamp
    done, total = index.progress()
    return {
        "stamp": stamp,
        "indexed": complete,
        "done": total if complete else done,
        "total": total,
        "step": _finite(opened.series.last().get("step", math.nan)),
        "changed": _age(opened.run),
        "said": opened.output.size(),
        "trouble": opened.trouble,
    }


def _overview(opened: Opened, params: Params) -> Any:
    with opened.index.reading() as db:
        found = {"choices": query.choices(db), "evaluations": query.evaluations(db), "bad": query.bad_lines(db)}
    documents: dict[str, Any] = {name: opened.run.read_json(name) for name in DOCUMENTS}
    documents["config.yaml"] = opened.run.read_text("config.yaml")
    return {**opened.summary(), **found, "documents": {name: data for name, data in documents.items() if data}}


def _console(opened: Opened, params: Params) -> Any:
    return opened.output.read(params.get("log", ""))


def _curves(opened: Opened, params: Params) -> Any:
    opened.series.update()
    names = [name for name in params.get("names", "").split(",") if name][:20]
    return opened.series.read(params.get("phase", "train"), names)


def _episodes(opened: Opened, params: Params) -> Any:
    return _page(opened, params, query.episodes, "written")


def _groups(opened: Opened, params: Params) -> Any:
    return _page(opened, params, query.groups, "spread")


def _page(opened: Opened, params: Params, pages: Callable[..., dict[str, Any]], order: str) -> dict[str, Any]:
    that, progress = _listed(opened, params)
    offset, limit = _whole(params, "offset", 0), _whole(params, "limit", 50)
    with opened.index.reading() as db:
        page = pages(db, that, params.get("order") or order, offset, limit)
    return {**page, "search": progress, "stamp": opened.index.stamp}


def _listed(opened: Opened, params: Params) -> tuple[query.Where, dict[str, Any] | None]:
    """Which episodes a list shows, and how far its search for a text is."""
    that = query.where(params)
    if not params.get("q"):
        return that, None
    search = opened.search(params["q"][:400])
    progress = {"share": search.share, "ended": search.ended, "found": len(search.numbers)}
    return that.and_numbers(list(search.numbers)), progress


def _episode(opened: Opened, params: Params) -> Any:
    """An episode, and those beside it in the list that the other parameters describe."""
    that, _ = _listed(opened, params)
    key = params.get("key", "")
    with opened.index.reading() as db:
        try:
            record = read_record(opened.run, db, key, opened.model)
        except UserError as error:
            raise NotThere(str(error)) from None
        return record | query.neighbours(db, that, params.get("order") or "written", row_of(db, key)["n"])


def _faults(opened: Opened, params: Params) -> Any:
    with opened.index.reading() as db:
        return {"faults": query.faults(db), "bad": query.bad_lines(db)}


def _timeline(opened: Opened, params: Params) -> Any:
    opened.spans.update()
    return opened.spans.read(_seconds(params, "from"), _seconds(params, "to"))


VIEWS: dict[str, Callable[[Opened, Params], Any]] = {
    "state": _state,
    "overview": _overview,
    "curves": _curves,
    "episodes": _episodes,
    "groups": _groups,
    "episode": _episode,
    "faults": _faults,
    "timeline": _timeline,
    "console": _console,
}
WITHOUT_INDEX = ("curves", "timeline", "console")
"""They need no episodes: those of other runs are not read only to compare curves."""
DOCUMENTS = ("summary.json", "eval.json", "plan.json", "run.json")


def _index_of(run: Run, temporary: Path) -> Index:
    """The index beside the run, or in a temporary folder where nothing can be written there."""
    places = [] if run.kind == "file" else [run.path / ".view"]
    for folder in [*places, temporary]:
        try:
            folder.mkdir(exist_ok=True)  # and not the folder of a run that is gone
            return Index(run, folder / "index.sqlite")
        except (OSError, sqlite3.Error):
            continue
    raise UserError(
        f"no index can be made for {run.path}: neither {places or 'its folder'} nor {temporary} is writable"
    )


def _result(done: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a complete run that have the same meaning everywhere."""
    result = {}
    for name in ("before", "after", "tool_off"):
        share = done.get(f"success_{name}")
        if isinstance(share, int | float):
            result[name] = {"success": share, "interval": done.get(f"success_{name}_ci95")}
    share = next((v for k, v in done.items() if k.startswith("avg@") and isinstance(v, int | float)), None)
    if share is not None:
        result["evaluation"] = {"success": share, "interval": done.get("ci95")}
    return result


def _age(run: Run) -> float | None:
    """Seconds since a file of the run was last written."""
    newest = 0.0
    for path in [run.path / "metrics.jsonl", *(file.path for file in run.files())]:
        try:
            newest = max(newest, path.stat().st_mtime)
        except OSError:
            pass
    return max(0.0, time.time() - newest) if newest else None


def _whole(params: Params, name: str, default: int) -> int:
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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
