"""Observer: sees a training run from its start to its end, as a folder of contrib adds it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from forge_env.records.sinks import Record


class Observer:
    """A sink in the thread that measures, which hears more of a run than its metrics.

    Each row of the tables `[observers]` of contrib/ names a subclass, which has the methods that it needs. A run makes
    one of each before anything else happens.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, run: Any) -> None:
        """The processes of a `trainers.run.run.Run` are up, and its record is cut back to where it goes on."""

    def stop(self) -> None:
        """The processes of the run are about to end."""

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Take one record, see `forge_env.records.sinks.Record`."""

    def go_back(self, records: Sequence[Record]) -> None:
        """Be as if exactly these records had been logged; `begin` follows."""
        for record in records:
            self.log(*record)

    def waiting(self, counts: Mapping[str, float]) -> None:
        """Take the counts of groups since the last step, see `SignalCounts.metrics`; one was just dropped."""

    def span(self, track: str, name: str, details: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return what is entered around a piece of work; see `Spans`."""
        return nullcontext()

    def past(self, track: str, spans: Iterable[tuple[str, float, float]]) -> None:
        """Take work that is over: name, `time.time()` at its start, and seconds."""

    def summary(self) -> Mapping[str, Any]:
        """The training is done: return values for summary.json."""
        return {}

    def last_words(self) -> Sequence[str]:
        """Return what the console says at the end of a policy-gradient run, after `summary`."""
        return ()

    def close(self) -> None:
        """Write what is left."""


class Spans:
    """The pieces of work of a run, which the console names while it waits, and observers see."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = observers
        self._open: dict[object, tuple[str, str, float]] = {}

    @contextmanager
    def span(self, track: str, name: str, **details: Any) -> Iterator[None]:
        """Enter it around a piece of work.

        Args:
            track: of work that belongs together, such as "weights".
        """
        key = object()
        with ExitStack() as stack:
            for observer in self._observers:
                stack.enter_context(observer.span(track, name, details))
            self._open[key] = track, name, time.perf_counter()
            stack.callback(self._open.pop, key)
            yield

    @property
    def under_way(self) -> list[tuple[str, float]]:
        """The work under way, and `time.perf_counter()` of its start; spans of one track are counted together."""
        tracks: dict[str, list[tuple[str, float]]] = {}
        for track, name, start_time in list(self._open.values()):
            tracks.setdefault(track, []).append((name, start_time))
        return [
            (f"{track}: {spans[0][0] if len(spans) == 1 else len(spans)}", min(begin for _, begin in spans))
            for track, spans in tracks.items()
        ]
