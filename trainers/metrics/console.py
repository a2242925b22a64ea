"""The console of a run: lines with the time, a line of progress, whole conversations; console.jsonl keeps the lines.

In a notebook a bar of tqdm, if that is installed, takes the place of the line of progress.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from forge_env.core.episode import Episode
from forge_env.core.types import Message
from forge_env.utils.secret_values import masked_text
from trainers.metrics.heartbeat import Heartbeat, quiet

PRINT_SECONDS = 4.0  # between two lines of progress, if the console is not a terminal
CLEAR = "\r\x1b[2K"  # the line of a terminal
LEAST_DONE, LEAST_SHARE, MOST_DONE = 5, 0.05, 32
"""The remaining time is estimated once this much is done: 5, or a twentieth, but no more than 32. The beginning is not
typical: all episodes of an evaluation begin together, and the first step compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    title: str
    total: int
    names: tuple[str, ...]
    since: float
    """`time.perf_counter()` of its start."""
    last: dict[str, float] = field(default_factory=dict)
    """The newest of each value: a step need not have all of them."""


class RunConsole:
    """A sink that shows the progress of the phases that it follows, and all other messages of a run.

    Every message is also written to `path`: {"at": "2026-01-31T12:00:00+00:00", "time": 3.2, "kind": "said", "text":
    "..."}; `kind` is "said", "warning", or "error" for the reason that ended the run.
    """

    def __init__(self, path: Path, began: float | None = None) -> None:
        self.start_time = time.perf_counter() - (0.0 if began is None else time.time() - began)
        """A resumed run moves this back by the seconds that it has run before."""
        self.under_way: Callable[[], list[tuple[str, float]]] = list
        """The work that is waited for, and `time.perf_counter()` of its start; shown while there are no messages."""
        self.otherwise = "working"
        """Shown if nothing is under way."""
        # No markup: messages have tasks, paths and figures in brackets, and console.jsonl has the plain text.
        self._console = Console(highlight=False, soft_wrap=True, markup=False, force_jupyter=False)
        self._bar = _notebook_bar()
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.RLock()  # sinks print messages from their threads
        self._phases: dict[str, Followed] = {}
        self._last_print = 0.0
        self._end = ""  # the characters that end the line which is open on a terminal
        self._last_line = time.perf_counter()
        quiet()
        self._heartbeat = Heartbeat(self._beat, lambda: self._last_line)

    def seconds(self) -> float:
        return time.perf_counter() - self.start_time

    def say(self, text: str) -> None:
        """Print one line with the time since the start. If it begins with "warning: ", it is a warning."""
        self._say("warning" if text.startswith("warning: ") else "said", text)

    def warn(self, text: str) -> None:
        """Print one line as a warning, whatever it begins with."""
        self._say("warning", text)

    def _say(self, kind: str, text: str, style: str | None = None) -> None:
        text = masked_text(text)
        with self._lock:
            self._end_line()
            self._console.print(f"{self.seconds():6.1f} s  {text}", style=style)
            self._last_line = time.perf_counter()
            self.keep(kind, text)

    def keep(self, kind: str, text: str) -> None:
        """Write one line to the file without printing it."""
        record = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "time": self.seconds(), "kind": kind}
        with self._lock, suppress(OSError, ValueError):  # on a full disk, and after `close`, it is still printed
            self._file.write(json.dumps({**record, "text": masked_text(text)}) + "\n")

    def follow(self, phase: str, *, title: str, total: int, names: Sequence[str], since: float) -> None:
        self._phases[phase] = Followed(title=title, total=total, names=tuple(names), since=since)

    def set_total(self, phase: str, total: int) -> None:
        self._phases[phase] = replace(self._phases[phase], total=total)

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        if (phase_state := self._phases.get(phase)) is not None:
            phase_state.last.update((name, values[name]) for name in phase_state.names if name in values)
            self.progress(phase_state.title, step, phase_state.total, phase_state.last, since=phase_state.since)

    def progress(self, title: str, count: int, total: int, values: Mapping[str, float], *, since: float) -> None:
        """Show how far a phase is; on a terminal the line is rewritten in place."""
        now = time.perf_counter()
        if count < total and now - self._last_print < (0.1 if self._console.is_terminal else PRINT_SECONDS):
            return
        self._last_print = now
        if self._bar is not None:
            self._bar.total, self._bar.n = total, count
        parts = [f"{title} {count}/{total}", *(f"{name} {_short(value)}" for name, value in values.items())]
        if min(MOST_DONE, max(LEAST_DONE, LEAST_SHARE * total)) <= count < total:
            parts.append(f"{(now - since) / count * (total - count):.0f} s left")
        with self._lock:
            self._last_line = now
            self._rewrite("  ".join(parts), end="\n")
            if count >= total:
                self._end_line()

    def _beat(self) -> None:
        """Show the work that is waited for."""
        now = time.perf_counter()
        parts = [f"{what} ({now - since:.0f} s)" for what, since in self.under_way()]
        with self._lock, suppress(OSError, ValueError):  # a closed terminal stops nothing
            if not self._console.is_terminal:
                self._last_line = now
            self._rewrite(", ".join(parts) or self.otherwise, end=CLEAR)

    def _rewrite(self, text: str, *, end: str) -> None:
        """Print a line that is not written to the file. On a terminal the next such line replaces it; `end` goes before
        others."""
        line = f"{self.seconds():6.1f} s  {text}"
        if self._bar is not None:
            self._bar.set_description_str(text)
            return
        if not self._console.is_terminal:
            print(line, flush=True)
            return
        sys.stdout.write(CLEAR + line[: self._console.width - 1])
        sys.stdout.flush()
        self._end = end

    def samples(self, title: str, episodes: Sequence[Episode]) -> None:
        self._say("said", title, style="bold")
        for number, episode in enumerate(episodes, 1):
            reward = "none" if episode.reward is None else f"{episode.reward:g}"
            self._console.print(f"  ({number}) reward {reward}, {episode.outcome}")
            for message in episode.messages:
                if message["role"] != "system":
                    self._console.print(f"      {message['role']:>9}: {_one_line(message)}")

    def close(self) -> None:
        self._heartbeat.close()
        if self._bar is not None:
            self._bar.close()
        with self._lock, suppress(OSError):
            self._end_line()
            self._file.close()

    def _end_line(self) -> None:
        sys.stdout.write(self._end)
        self._end = ""


def _notebook_bar() -> Any:
    """A bar of tqdm in a notebook; None elsewhere, and without tqdm."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel") or find_spec("tqdm") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it is a bar of text
        from tqdm.auto import tqdm

    return tqdm(total=1, bar_format="{desc} |{bar}|")


def _one_line(message: Message) -> str:
    calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls", [])]
    text = "  ".join(part for part in (message["content"], *calls) if part)
    return text.replace("\n", "⏎")[:300]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3f}"
