"""The phases of a run from the command to its first optimizer step, with the beginning and the duration of each.

Phases of different processes overlap.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from trainers.metrics.heartbeat import command_began

Span = tuple[float | None, float]
"""Beginning in seconds since the epoch, and duration in seconds. A part of a phase, "A: B", may lack the first."""
PROCESSES = "processes"


class Startup:
    """The phases of one start, by name. Of several phases with one name the first counts; none counts after `end`.

    The constructor ends the first phase, "imports and settings", which began with the process.

    Args:
        command: when it was given, in seconds since the epoch; 0 is `command_began`.
    """

    def __init__(self, command: float = 0.0) -> None:
        self.command = command or command_began()
        self.phases: dict[str, Span] = {}
        self.under_way: dict[str, float] = {}
        """What the start waits for: `time.perf_counter()` of its beginning, by name."""
        self.first_step: float | None = None
        """Seconds from the command to the end of the first optimizer step; None before it."""
        self.until_now("imports and settings", self.command)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Enter it around a phase; a phase that raises is not recorded."""
        began = time.time()
        with self.waiting(name) if self.first_step is None else nullcontext():
            yield
        self.until_now(name, began)

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Enter it around what the console names while it waits."""
        self.under_way[name] = time.perf_counter()
        try:
            yield
        finally:
            self.under_way.pop(name, None)

    def until_now(self, name: str, began: float) -> None:
        if self.first_step is None:
            self.phases.setdefault(name, (began, time.time() - began))

    def end(self) -> None:
        self.first_step = time.time() - self.command

    def add_services(self, services: Mapping[str, Sequence[Mapping[str, Span]]]) -> None:
        """Add the start-up phases of actors (`ForgeActor.started`): service -> phases of each replica.

        A phase of several replicas lasts from the first beginning to the last end. "process" is one phase of all
        services. "start" is left out where a service reports the parts of it.
        """
        spans: dict[str, list[Span]] = defaultdict(list)
        for service, replicas in services.items():
            for phases in replicas:
                parts = phases.keys() - {"process", "start"}
                for name, span in phases.items():
                    if name == "process":
                        spans[PROCESSES].append(span)
                    elif name != "start":
                        spans[f"{service}: {name}"].append(span)
                    elif not parts:
                        spans[service].append(span)
        self.phases |= {name: _around(of_name) for name, of_name in spans.items()}

    @property
    def in_order(self) -> list[tuple[str, float | None, float]]:
        """Name, seconds from the command to the beginning, and duration, sorted by beginning.

        A phase without a beginning, "A: B", follows its phase A.
        """

        def begins(name: str) -> float:
            began = self.phases.get(name, (0.0, 0.0))[0]
            return begins(name.rpartition(": ")[0]) if began is None else began - self.command

        return [
            (name, None if self.phases[name][0] is None else begins(name), self.phases[name][1])
            for name in sorted(self.phases, key=begins)
        ]

    def summary(self) -> dict[str, Any]:
        """For summary.json: "first_step", and of each phase [when it began, seconds], all from the command on.

        {"first_step": 61.2, "imports and settings": [0.0, 4.1], "engine: load": [9.3, 38.0], ...}
        """
        phases = {
            name: [None if began is None else round(began, 3), round(seconds, 3)]
            for name, began, seconds in self.in_order
        }
        return {"first_step": None if self.first_step is None else round(self.first_step, 3), **phases}

    def text(self) -> str:
        """For people: a line for each phase with its beginning and duration."""
        lines = [
            f"    {'' if began is None else f'{began:.1f} s':>9} {seconds:9.1f} s  {name}"
            for name, began, seconds in self.in_order
        ]
        head = f"first optimizer step {self.first_step or 0.0:.1f} s after the command; each phase, when it began and"
        return "\n".join([f"{head} what it took:", *lines])


def _around(spans: Sequence[Span]) -> Span:
    """From the beginning of the first one to the end of the last; of those without a beginning, the longest."""
    with_start = [(began, seconds) for began, seconds in spans if began is not None]
    if not with_start:
        return None, max(seconds for _, seconds in spans)
    first = min(began for began, _ in with_start)
    return first, max(began + seconds for began, seconds in with_start) - first
