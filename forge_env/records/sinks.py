"""The one interface of everything that gets the metrics and episodes of a run, or of an evaluation.

A run's own files and the console get each record at once. So does what `--metrics.sinks` of a training run and
`--sink` of `forge-env eval` name, each in a thread of its own, see `Background`: a name of the tables `[sinks]` of
contrib/, with its mode behind a colon if it has modes, or a class of your own, "my_module:MySink". docs/metrics.md says
what a class may have; one with a parameter `mode` gets what stands behind the colon.
"""

from __future__ import annotations

import difflib
import inspect
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError, nearest
from forge_env.registry.contrib import rows
from forge_env.utils.targets import load


class Record(NamedTuple):
    """One measurement. Example: ``Record("train", 3, {"reward": 0.5, "loss": 0.01})``"""

    phase: str
    """"warmup", "train", "evaluation", or "system"."""
    step: int
    """Optimizer steps of the phase; for "system" seconds since the start of the run."""
    values: Mapping[str, float]


class Sink(Protocol):
    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Take one record; see `Record`. Steps of a phase rise."""
        ...

    def close(self) -> None:
        """Write what is left. Nothing is logged afterwards."""
        ...


@runtime_checkable
class Reversible(Protocol):
    def go_back(self, records: Sequence[Record]) -> None:
        """Be as if exactly these records had been logged: the run goes on after the last of them."""
        ...


@runtime_checkable
class TakesEpisodes(Protocol):
    def episode(self, episode: Episode, phase: str) -> None:
        """Take an episode that has been recorded. Do not change it."""
        ...


Maker = Callable[[Path, Mapping[str, Any], Callable[[str], None]], Sink]
"""Makes a sink of the folder of a run, its config, and a function for warnings."""


def load_sink(entry: str, option: str) -> tuple[type[Sink], Maker]:
    """Return the class of a sink, and what makes it, after all checks that are possible before a run.

    Args:
        entry: a name of a table, "NAME" or "NAME:MODE", or a target.
    """
    name, _, mode = entry.partition(":")
    table = rows("sinks")
    if name not in table and ":" not in entry:
        raise UserError(f"{option} {entry}: there is no sink {entry!r}. {nearest(entry, table)}")
    try:
        sink_class: Any = load(table[name].target if name in table else entry, option=option)
    except UserError as error:
        if name in table or not (close := difflib.get_close_matches(name, table, n=1)):
            raise
        raise UserError(f"{error}. Did you mean the sink {close[0]}?") from None
    where = f"{option} {entry}"
    if not isinstance(sink_class, type):
        raise UserError(f"{where} is {sink_class!r}; it must be a class with the methods log and close")
    for method, form, arguments in _METHODS:
        function = getattr(sink_class, method, None)
        if not callable(function) or not _takes(function, None, *arguments):
            raise UserError(f"{where}: {sink_class.__name__} has no method {form}: a sink needs it")
    takes = inspect.signature(sink_class).parameters.keys() & {"mode", "say"}
    if not _takes(sink_class, Path(), {}, **dict.fromkeys(takes)):
        raise UserError(
            f"{where}: {sink_class.__name__} is made as {sink_class.__name__}(folder, config), and does not take that"
        )
    mode = mode if name in table else ""
    if mode and "mode" not in takes:
        raise UserError(f"{where}: {name} has no modes; leave out what stands behind it")
    if hasattr(sink_class, "check"):
        try:
            sink_class.check(mode)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def make(folder: Path, config: Mapping[str, Any], say: Callable[[str], None]) -> Sink:
        own_options = {"mode": mode, "say": say}
        return cast(Sink, sink_class(folder, config, **{each: own_options[each] for each in takes}))

    return sink_class, make


_METHODS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("log", "log(self, phase, step, values)", ("phase", 1, {})),
    ("close", "close(self)", ()),
)


def _takes(function: Any, *arguments: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments, **kwargs)
    except TypeError:
        return False
    return True


BACKLOG = 1000  # records: some hours of steps, or minutes of a fast loop
CLOSE_SECONDS = 40.0  # a sink that needs a network may take half a minute


def open_sinks(
    entries: Sequence[str], option: str, folder: Path, config: Mapping[str, Any], say: Callable[[str], None]
) -> list[Background]:
    """Start sinks by their names or targets, see `load_sink`, each in a thread of its own."""
    loaders = {entry: load_sink(entry, option) for entry in entries}
    return [
        Background(f"the sink {entry}", partial(make, folder, config, say), say, episodes=hasattr(kind, "episode"))
        for entry, (kind, make) in loaders.items()
    ]


class Background:
    """Hands records and episodes to a sink, in order. `log` never waits.

    A sink that raises is switched off, with one warning. If it is `backlog` records behind, further records are dropped
    and counted; `say` gets a warning, from any thread, at the first one and at the end.

    Args:
        close_seconds: how long `close` waits for the sink.
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
            late = f"did not finish within {self._seconds:g} s"
            self._say(f"warning: {self.name} {late}: {self._queue.qsize()} records are not in it")
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
                behind = f"{self._queue.maxsize} records behind"
                self._say(f"warning: {self.name} is {behind}: what it cannot take is dropped")

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
