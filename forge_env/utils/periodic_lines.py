"""Progress on stderr if it is not a terminal: one line every few seconds."""

from __future__ import annotations

import sys
import time

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
