"""The progress of an evaluation, on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from forge_env.core.episode import Episode
from forge_env.core.types import Outcome
from forge_env.core.usage import Prices
from forge_env.evaluation.evaluate import is_success
from forge_env.evaluation.summary import tokens_of


def agent_name(agent: str, adapter: str) -> str:
    return f"{agent} with {adapter}" if adapter else agent


class LiveProgress:
    """A progress bar with the success rate so far, on stderr; lines if that is not a terminal, nothing if quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.done = self.total = 0
        self._title = ""
        self._quiet = quiet
        self._prices: Prices | None = None
        self._bar: Any = None
        self._lines = PeriodicLines()

    def of(self, title: str, prices: Prices | None) -> Self:
        self.done = self.total = 0
        self._successes = self._timeouts = self._faults = self._prompt = self._completion = 0
        self._title, self._prices = title, prices
        return self

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=None, figures="", markup=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, total: int, episode: Episode | None) -> None:
        """Count an episode, run or read; None before the first one, and again before the greedy ones."""
        if episode is None and self.total:
            self.done = self._successes = self._timeouts = self._faults = 0
            self._title += ", greedy"
        self.total = total
        if episode is not None:
            self.done += episode.outcome.is_attempt
            self._timeouts += episode.outcome is Outcome.TIMEOUT
            self._faults += not episode.outcome.is_attempt
            self._successes += is_success(episode)
            prompt, completion = tokens_of(episode)
            self._prompt, self._completion = self._prompt + prompt, self._completion + completion
        if self._bar is not None:
            fields = {"total": total, "completed": self.done, "description": self._title}
            self._bar.update(self._task, figures=self._figures(), **fields)
        elif not self._quiet:
            self._lines.write(f"{self._title}: {self.done}/{total}  {self._figures()}")

    def _figures(self) -> str:
        figures = [f"success {self._successes / self.done:.3f}"] if self.done else []
        figures += [f"{self._timeouts} time-outs"] * bool(self._timeouts)
        figures += [f"{self._faults} faults"] * bool(self._faults)
        figures += [f"{self._prompt + self._completion:,} tokens"] * bool(self._prompt + self._completion)
        if self._prices is not None:
            figures.append(f"cost {self._prices.cost(self._prompt, self._completion):.4f}")
        return "  ".join(figures)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,
        redirect_stderr=False,
    )


INTERVAL_SECONDS = 10.0


class PeriodicLines:
    """Writes a line to stderr, unless the last one was written less than INTERVAL_SECONDS ago."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def write(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last > INTERVAL_SECONDS:
            self._last = now
            sys.stderr.write(f"{text}\n")
