"""A run that the viewer shows: its files, its index, its searches."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrib.records.audit import model_of
from contrib.viewer.console_files import ConsoleFiles
from contrib.viewer.index import EpisodeIndex
from contrib.viewer.live_run import LiveRun
from contrib.viewer.metrics_file import MetricsFile
from contrib.viewer.search import Search
from contrib.viewer.stored_runs import StoredRun
from contrib.viewer.trace_file import TraceFile
from forge_env.core.errors import UserError

MAX_SEARCHES = 8


class ViewedRun:
    """One run. Its index is made when somebody first opens one of its pages; any thread may call its methods.

    Args:
        temporary: folder of the index, which is made.
        max_bytes: that are read at most, from the end of each file of episodes.
    """

    def __init__(
        self, number: int, run: StoredRun, model: Path | None, temporary: Path, max_bytes: int | None = None
    ) -> None:
        self.number = number
        self.run = run
        self.metrics = MetricsFile(run.path / "metrics.jsonl")
        self.trace = TraceFile(run.path / "trace.json")
        self.console = ConsoleFiles(run)
        self.live = LiveRun(run.path)
        self.index_error = ""
        """The reason why the index could not be updated; "" if it could."""
        self._given_model = model
        self._temporary = temporary
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._index: EpisodeIndex | None = None
        self._searches: OrderedDict[str, Search] = OrderedDict()

    @property
    def index(self) -> EpisodeIndex:
        assert self._index is not None, "open() comes first"
        return self._index

    @property
    def model(self) -> Path | None:
        return self._given_model or (model_of(self.run.path) if self.run.kind != "file" else None)

    def open(self, wake: threading.Event | None = None) -> None:
        """Make the index if there is none yet; `wake` lets the follower fill it at once."""
        with self._lock:
            if self._index is not None:
                return
            try:
                self._temporary.mkdir(exist_ok=True)
                self._index = EpisodeIndex(self.run, self._temporary / "index.sqlite", self._max_bytes)
            except (OSError, sqlite3.Error) as error:
                raise UserError(
                    f"the viewer cannot write its index in {self._temporary.parent}: {error}; free some room there, or "
                    "set TMPDIR to a folder of another disk"
                ) from None
        if wake is not None:
            wake.set()

    def update_index(self, max_bytes: int | None = None) -> None:
        if self._index is None:
            return
        try:
            self._index.update(max_bytes)
            self.index_error = ""
        except Exception as error:  # the page shows it, and what is indexed can still be viewed
            self.index_error = f"the index could not be updated: {type(error).__name__}: {error}"

    def close(self) -> None:
        self.live.close()
        if self._index is not None:
            self._index.close()
        while self._searches:
            self._searches.popitem()[1].stop()

    def search(self, text: str) -> Search:
        """The search for a text; one that runs already is continued, and the oldest searches are dropped."""
        with self._lock:
            search = self._searches.get(text)
            if search is None or (search.stamp != self.index.stamp and search.ended):
                search = self._searches[text] = Search(self.index, text)
            self._searches.move_to_end(text)
            while len(self._searches) > MAX_SEARCHES:
                self._searches.popitem(last=False)[1].stop()
        search.wait()
        return search

    def seconds_since_change(self) -> float | None:
        """Seconds since a file of the run was last written; None if there is no file."""
        newest = 0.0
        for path in [self.run.path / "metrics.jsonl", *(file.path for file in self.run.files())]:
            try:
                newest = max(newest, path.stat().st_mtime)
            except OSError:
                pass
        return max(0.0, time.time() - newest) if newest else None

    def summary(self) -> dict[str, Any]:
        """What the list of runs shows; it needs no index."""
        self.metrics.update()
        result = self.run.read_json("summary.json" if self.run.kind == "training" else "eval.json")
        facts = {**self.run.read_json("run.json"), **self.run.read_json("plan.json"), **result}
        last = {name: value if math.isfinite(value) else None for name, value in self.metrics.last_values().items()}
        return {
            "number": self.number,
            "name": self.run.name,
            "kind": self.run.kind,
            "complete": bool(result) or self.run.kind == "file",
            "changed": self.seconds_since_change(),
            "last": {name: last[name] for name in ("step", "reward", "success", "loss") if name in last},
            "result": _success_figures(result),
            **{name: facts.get(name) or "" for name in ("env", "agent", "algorithm", "model")},
            "metrics": {phase: names[:400] for phase, names in self.metrics.metrics_by_phase().items()},
        }

    def evaluation_state(self, phase: str, step: int | None) -> dict[str, Any]:
        """What a run that is not complete says of an evaluation: {"finished": bool, "planned": episodes or None}."""
        if self.run.kind == "evaluation":
            plan = self.run.read_json("plan.json")
            tasks, n = plan.get("tasks"), plan.get("n")
            return {"finished": False, "planned": tasks * n if isinstance(tasks, int) and isinstance(n, int) else None}
        steps_of = {"before": 0, "after": self.run.read_json("run.json").get("steps")}
        step = steps_of.get(phase.partition(".")[0], step)
        steps = self.metrics.steps("evaluation")  # each is recorded at the end of its evaluation
        return {"finished": step is None or not steps or step in steps, "planned": None}


def _success_figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """The success of a complete run before and after training, or of its evaluation."""
    figures = {}
    for name in ("before", "after", "tool_off"):
        success = result.get(f"success_{name}")
        if isinstance(success, int | float):
            figures[name] = {"success": success, "interval": result.get(f"success_{name}_ci95")}
    success = next((v for k, v in result.items() if k.startswith("avg@") and isinstance(v, int | float)), None)
    if success is not None:
        figures["evaluation"] = {"success": success, "interval": result.get("ci95")}
    return figures
