"""Sinks in threads of their own: if one is slow, hangs or raises, the run loses only what that sink shows."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode
from forge_env.records.sinks import Record, Reversible, Sink, TakesEpisodes, load_sink

BACKLOG = 1000  # records: some hours of steps, or minutes of a fast loop
CLOSE_SECONDS = 40.0  # a sink that needs a network may take half a minute


def open_sinks(
    entries: Sequence[str], option: str, folder: Path, config: Mapping[str, Any], say: Callable[[str], None]
) -> list[Background]:
    """Start sinks by their names or targets, see `load_sink`, each in a thread of its own."""
    loaders = {entry: load_sink(entry, option) for entry in entries}
    return [
        Background(
            f"the sink {entry}", partial(make, folder, config, say), say, episodes=hasattr(sink_class, "episode")
        )
        for entry, (sink_class, make) in loaders.items()
    ]


class Background:
    """Hands records and episodes to a sink, in order.

    A sink that raises is switched off, with one warning. If it is `backlog` records behind, further records are dropped
    and counted; a warning says so at the first one and at the end. `log` never waits.

    Args:
        say: gets the warnings, from any thread.
        backlog: records that may wait for the sink.
        close_seconds: how long `close` waits for it.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Sink],
        say: Callable[[str], None],
        *,
        episodes: bool = False,
        backlog: int = BACKLOG,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self.name = name
        self.num_dropped = 0
        """Records that were dropped because the sink was too slow."""
        self.is_off = False
        """Whether it raised."""
        self._say = say
        self._takes_episodes = episodes
        self._seconds = close_seconds
        self._queue: queue.Queue[Callable[[Sink], None] | None] = queue.Queue(backlog)
        self._thread = threading.Thread(target=self._run, args=(make,), name=f"metrics {name}", daemon=True)
        self._thread.start()

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        record = Record(phase, step, dict(values))
        self._put(lambda sink: sink.log(*record))

    def episode(self, episode: Episode, phase: str) -> None:
        if self._takes_episodes:
            self._put(lambda sink: sink.episode(episode, phase) if isinstance(sink, TakesEpisodes) else None)

    def go_back(self, records: Sequence[Record]) -> None:
        self._put(lambda sink: sink.go_back(records) if isinstance(sink, Reversible) else None)

    def close(self) -> None:
        """Wait until the sink has taken and closed everything, for `close_seconds` at most."""
        try:
            self._queue.put(None, timeout=self._seconds)
        except queue.Full:
            pass
        self._thread.join(self._seconds)
        if self._thread.is_alive():
            waiting = self._queue.qsize()
            self._say(
                f"warning: {self.name} did not finish within {self._seconds:g} s: {waiting} records are not in it"
            )
        if self.num_dropped:
            self._say(f"warning: {self.name} was too slow: {self.num_dropped} records are not in it")

    def _put(self, work: Callable[[Sink], None]) -> None:
        if self.is_off:
            return
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self.num_dropped += 1
            if self.num_dropped == 1:
                self._say(
                    f"warning: {self.name} is {self._queue.maxsize} records behind: what it cannot take is dropped"
                )

    def _run(self, make: Callable[[], Sink]) -> None:
        try:
            sink = make()
            while (work := self._queue.get()) is not None:
                work(sink)
            sink.close()
        except Exception as error:  # whatever the error is, the run matters more than its plots
            self.is_off = True
            reason = " ".join(str(error).split())
            self._say(f"warning: {self.name} is switched off: {type(error).__name__}: {reason}"[:500])
