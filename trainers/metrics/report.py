"""What a run writes into its folder: metrics, episodes, summary and report."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ParamSpec, Self

import numpy as np

from forge_env.core.episode import Episode, read_jsonl, write_jsonl
from forge_env.core.errors import ForgeError, UserError, first_error
from forge_env.evaluation.evaluate import Evaluation
from forge_env.records.sinks import Record, Reversible, Sink, TakesEpisodes, open_sinks
from forge_env.registry.contrib import rows
from trainers.metrics.console import RunConsole
from trainers.metrics.observer import Observer, Spans
from trainers.metrics.settings import SINKS, TENSORBOARD
from trainers.objective.credit import turn_values


class JsonLines:
    """Appends to the file at `path`; any thread may call it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with self._lock:
            if not self._file.closed:
                self._file.write(text)
                self._file.flush()

    def size(self) -> int:
        """Bytes of complete lines, which are on the disk when it returns."""
        with self._lock:
            self._file.flush()
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Metrics(JsonLines):
    """The sink of metrics.jsonl, with one record a line; "time" is seconds since the start of the run."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        super().__init__(path)
        self._clock = clock

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        self.append([{"phase": phase, "step": step, "time": self._clock(), **values}])

    def go_back(self, size: int) -> list[Record]:
        """Cut off everything after `size`; returns the records that stay."""
        records = []
        with self._lock:
            os.truncate(self.path, size)
            for line in self.path.read_text(encoding="utf-8").splitlines():
                values = json.loads(line)
                phase, step, _ = values.pop("phase"), values.pop("step"), values.pop("time")
                records.append(Record(phase, step, values))
        return records


class Trained(JsonLines):
    """trained.jsonl: the episodes of each optimizer step, and the advantage of each of their turns.

    One line for each episode, in the order of the batch: {"step": 3, "episode": "train/7/0", "advantages": [0.7, 0.7]}.
    With credit per episode all turns have the same advantage.
    """

    def write(self, step: int, advantages: Iterable[tuple[Episode, float | np.ndarray]]) -> None:
        """Write one step: for each episode its advantage, or the advantages of its sampled targets in row order."""
        self.append(
            {"step": step, "episode": episode.id, "advantages": turn_values(values, episode)}
            for episode, values in advantages
        )


class Report:
    """The files of one run's folder and its console.

    The files: metrics.jsonl and console.jsonl, the sinks of `config.metrics`, episodes/PHASE.jsonl, trained.jsonl,
    summary.json, and those of observers and reports, as folders of contrib add them.

    Args:
        config: of the run, as nested dictionaries; its section `metrics` names further sinks. Without a config,
            metrics go to the files of the run and to the console only.
        began: the start of the run, in seconds since the epoch; None is now.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any] | None = None, began: float | None = None) -> None:
        self.folder = folder
        (folder / "episodes").mkdir(parents=True, exist_ok=True)
        self.console = RunConsole(folder / "console.jsonl", began)
        self.say, self.warn = self.console.say, self.console.warn
        self.follow, self.progress, self.samples = self.console.follow, self.console.progress, self.console.samples
        self.curve: list[dict[str, float]] = []
        self._records_routes = bool((config or {}).get("moe", {}).get("record_routes"))
        self._trained_file = Trained(folder / "trained.jsonl")
        self._record = RecordThread()  # for episodes and trained.jsonl
        self.wait_for_writes = self._record.wait_for_writes
        self._metrics = Metrics(folder / "metrics.jsonl", self.console.seconds)
        self.observers: list[Observer] = [row.load()(folder) for row in rows("observers").values()]
        self.spans = Spans(self.observers)
        self.span = self.spans.span
        self.console.under_way = lambda: self.spans.under_way
        self._others: list[Sink] = [*self.observers]
        if config:
            metrics = config["metrics"]
            names = [TENSORBOARD] * metrics["tensorboard"] + metrics["sinks"]
            self._others += open_sinks(names, SINKS, folder, config, self.warn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Record how the run ended, close everything, and write its pages from the files of the folder."""
        with ExitStack() as stack:
            stack.callback(self.console.close)
            if error is not None:
                self.console.keep("error", _end_reason(error))
            self.console.otherwise = "writing the report"
            self._close_files()
            for row in rows("reports").values():
                try:
                    page = row.load()(self.folder)
                except Exception as failure:  # the result is safe, and the page can be written later
                    kind = "" if isinstance(failure, UserError) else f"{type(failure).__name__}: "
                    self.warn(f"warning: {row.name} was not written: {kind}{failure}")
                else:
                    if error is None:
                        self.say(f"report {page}")
                        self.say(f"{row.about} {self.folder}")

    @property
    def sinks(self) -> Sequence[Sink]:
        return (self._metrics, self.console, *self._others)

    def add(self, sink: Sink) -> None:
        """Give one more sink everything from now on, in the thread that measures."""
        self._others.append(sink)

    @property
    def start_time(self) -> float:
        """`time.perf_counter()` at the start of the run; for a resumed run, now minus the seconds that it has run."""
        return self.console.start_time

    # ---- resuming ----

    def mark(self) -> dict[str, Any]:
        """A mark to resume from: the bytes of each file, which are on the disk when it returns, and the seconds of the
        run.

        It waits for the disk: call it in a thread.
        """
        self._record.flush()
        sizes = {"metrics.jsonl": self._metrics.size(), "trained.jsonl": self._trained_file.size()}
        for path in sorted((self.folder / "episodes").glob("*.jsonl")):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                sizes[str(path.relative_to(self.folder))] = os.fstat(file.fileno()).st_size
        return {"bytes": sizes, "seconds": self.console.seconds()}

    def go_back(self, mark: Mapping[str, Any]) -> None:
        """Return to a mark: cut off everything after it in every file and sink."""
        check_mark(self.folder, mark)
        sizes = {self.folder / name: size for name, size in mark["bytes"].items()}
        metrics = sizes.pop(self.folder / "metrics.jsonl")
        for path, size in sizes.items():
            os.truncate(path, size)
        for path in {*(self.folder / "episodes").glob("*.jsonl")} - sizes.keys():
            path.unlink()
        for name in ("summary.json", "report.html"):
            (self.folder / name).unlink(missing_ok=True)
        self.console.start_time -= mark["seconds"]
        records = self._metrics.go_back(metrics)
        for sink in self._others:
            if isinstance(sink, Reversible):
                sink.go_back(records)
        for record in records:
            if record.phase == "train" and "reward" in record.values:
                self.point(record.step, record.values)

    # ---- metrics ----

    def metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Log one record to every sink; see `forge_env.records.sinks.Record`."""
        for sink in self.sinks:
            sink.log(phase, step, values)

    def point(self, step: int, values: Mapping[str, float]) -> None:
        """Add a step to `curve`, for the summary."""
        names = {
            "reward": "reward",
            "seconds": "s/step",
            "training_reward": "training_reward",
            "signal": "signal/share",
        }
        self.curve.append({"step": step} | {name: values[key] for name, key in names.items() if key in values})

    # ---- what observers hear ----

    def begin(self, run: Any) -> None:
        """Tell the observers that the processes of a run are up; a resumed run has gone back before."""
        for observer in self.observers:
            observer.begin(run)

    def stop_observing(self) -> None:
        for observer in self.observers:
            observer.stop()

    # ---- episodes ----

    def episodes(self, phase: str, episodes: Iterable[Episode]) -> None:
        """Record episodes, in a thread; `wait_for_writes` waits for it."""
        episode_list = list(episodes)
        self._record.write(write_jsonl, self._episodes(phase), episode_list, routes=self._records_routes)
        for sink in self._others:
            if isinstance(sink, TakesEpisodes):
                for episode in episode_list:
                    sink.episode(episode, phase)

    def add_trained(self, step: int, advantages: Iterable[tuple[Episode, float | np.ndarray]]) -> None:
        """Record the episodes of an optimizer step and their advantages; see `Trained`."""
        self._record.write(self._trained_file.write, step, list(advantages))

    def evaluation(self, phase: str) -> Evaluation | None:
        """Read an evaluation back from its file of episodes; None if there was none."""
        self._record.flush()
        file = self._episodes(phase)
        return Evaluation(episodes=tuple(read_jsonl(file))) if file.is_file() else None

    def _episodes(self, phase: str) -> Path:
        return self.folder / "episodes" / f"{phase}.jsonl"

    # ---- the end ----

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write summary.json atomically; it exists only when the run is complete."""
        partial = self.folder / "summary.json.partial"
        partial.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")
        partial.rename(self.folder / "summary.json")

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.console.close)
            self._close_files()

    def _close_files(self) -> None:
        with ExitStack() as stack:  # if one fails, as on a full disk, the others are still closed
            stack.callback(self._metrics.close)
            stack.callback(self._trained_file.close)
            stack.callback(self._record.close)
            for sink in self._others:
                stack.callback(sink.close)
            stack.callback(self.stop_observing)


def _end_reason(error: BaseException) -> str:
    cause = first_error(error)
    if isinstance(cause, asyncio.CancelledError | KeyboardInterrupt):
        return "it was stopped"
    return str(cause) if isinstance(cause, ForgeError) else f"{type(cause).__name__}: {cause}"


def check_mark(folder: Path, mark: Mapping[str, Any]) -> None:
    """Check that no file of a run's folder has become shorter than at a mark of `Report.mark`."""
    for name, size in mark["bytes"].items():
        path = folder / name
        bytes_now = path.stat().st_size if path.is_file() else 0
        if bytes_now < size:
            raise UserError(
                f"{path} has {bytes_now} bytes, and had {size} when the checkpoint was saved: a run cannot go on "
                f"without its record"
            )


P = ParamSpec("P")


class RecordThread:
    """Calls functions that write, one after the other, in its thread.

    An error ends all writing, because a record must have no gaps. The next call of any method raises the error.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="record")
        self._last: Future[None] | None = None
        self._error: BaseException | None = None

    def write(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Let the thread call a function; returns at once."""
        self._check()
        self._last = self._thread.submit(self._call, lambda: function(*args, **kwargs))

    async def wait_for_writes(self) -> None:
        """Wait until everything is written, without blocking the event loop."""
        if self._last is not None:
            await asyncio.wrap_future(self._last)
        self._check()

    def flush(self) -> None:
        if self._last is not None:
            self._last.result()
        self._check()

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._thread.shutdown()
        self._check()

    def _call(self, write: Callable[[], object]) -> None:
        if self._error is None:
            try:
                write()
            except BaseException as error:
                self._error = error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
