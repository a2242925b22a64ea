"""The runs that the viewer shows, kept up to date; the server and the export read everything through it."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from contrib.viewer.comparison import check_common, sides_of
from contrib.viewer.index import FIRST_BYTES
from contrib.viewer.stored_runs import find_runs
from contrib.viewer.viewed_run import ViewedRun
from contrib.viewer.views import COMPARISONS, VIEWS, WITHOUT_INDEX, NotThere, Params
from forge_env.core.errors import UserError


class Library:
    """The runs at some paths. Used as a context manager, which removes its temporary folder at the end."""

    def __init__(self, *paths: Path, model: Path | None = None, follow_seconds: float = 1.0) -> None:
        self.paths = [*dict.fromkeys(path.expanduser().absolute() for path in paths)]
        self.place = ", ".join(str(path) for path in paths)
        self._follow_seconds = follow_seconds
        self._model = model
        self._temporary = Path(tempfile.mkdtemp(prefix="forge-env-view-"))
        self._lock = threading.Lock()
        self._close_event = threading.Event()
        self._wake = threading.Event()
        self._runs: list[ViewedRun] = []
        self._follower = threading.Thread(target=self._follow, name="viewer-follow", daemon=True)
        try:
            self._find_new_runs()
        except BaseException:
            shutil.rmtree(self._temporary, ignore_errors=True)
            raise

    def __enter__(self) -> Library:
        if len(self._runs) == 1:
            try:
                self._runs[0].open()  # it is indexed while the browser starts
            except BaseException:
                self.__exit__()
                raise
        self._follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close_event.set()
        self._wake.set()
        for run in self._runs:
            run.close()
        if self._follower.is_alive():
            self._follower.join(10)
        shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def runs(self) -> list[ViewedRun]:
        return list(self._runs)

    def answer(self, request: str, params: Params) -> Any:
        """Answer a request of the page: "runs", or "NUMBER/VIEW" with the number of a run."""
        if request == "runs":
            self._find_new_runs()
            return {"place": self.place, "runs": [run.summary() for run in self._runs]}
        number, _, view = request.partition("/")
        run = self._run(number)
        if view in COMPARISONS:
            other = self._run(params.get("other") or number)
            for one in (run, other):
                one.open(self._wake)
            return COMPARISONS[view](run, other, params)
        if view not in VIEWS:
            raise NotThere("there is no such page")
        if view not in WITHOUT_INDEX:
            run.open(self._wake)
        return VIEWS[view](run, params)

    def act(self, request: str, body: dict[str, Any]) -> Any:
        """Act on a run that goes on: "NUMBER/act" with an action and its value."""
        number, _, view = request.partition("/")
        if view != "act":
            raise NotThere("there is no such page")
        return {"text": self._run(number).live.act(str(body.get("action")), str(body.get("value") or ""))}

    @property
    def comparison_address(self) -> str:
        """Where the page compares the two runs, or the evaluations of a single one; "" for more runs."""
        names = [quote(run.run.name, safe="") for run in self._runs]
        return f"#/{names[0]}/compare?other={names[-1]}" if len(names) <= 2 else ""

    def check_comparable(self) -> None:
        """Refuse two runs without a common task."""
        if len(self._runs) == 2:
            check_common(sides_of(self._runs[0], self._runs[1], {}))

    def _run(self, number: str) -> ViewedRun:
        if not number.isdecimal() or len(number) > 6 or int(number) >= len(self._runs):
            raise NotThere("there is no such page")
        return self._runs[int(number)]

    def _find_new_runs(self) -> None:
        """Add the runs that are new at the end, so that the others keep their numbers."""
        with self._lock:
            paths = {viewed_run.run.path for viewed_run in self._runs}
            try:
                runs = find_runs(*self.paths)
            except UserError:
                if not self._runs:
                    raise
                return  # the folder was removed while the viewer is open
            for run in runs:
                if run.path not in paths:
                    number = len(self._runs)
                    self._runs.append(ViewedRun(number, run, self._model, self._temporary / str(number)))

    def _follow(self) -> None:
        while not self._close_event.is_set():
            for max_bytes in (FIRST_BYTES, None):
                for run in self.runs:
                    if not self._close_event.is_set():
                        run.update_index(max_bytes)
            self._wake.wait(self._follow_seconds)
            self._wake.clear()
