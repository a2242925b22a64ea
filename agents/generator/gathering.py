"""When an engine waits for more requests before its next step."""

from __future__ import annotations

import time


class Gathering:
    """When to wait for more requests before the next step.

    On a CPU a step costs nearly the same for one request as for many, and the tools that the others wait for need the
    core. So while requests keep coming and fewer than half of the recent peak are there, the engine holds.
    """

    def __init__(self, gather_s: float, most_s: float) -> None:
        self._gather_s = gather_s
        self._most_s = most_s
        self._peaks = (0, 0)  # of this busy period and of the one before
        self._last_arrival = 0.0
        self._holding_since: float | None = None

    def arrived(self, running: int) -> None:
        self._last_arrival = time.monotonic()
        self._peaks = (max(running, self._peaks[0]), self._peaks[1])

    def patience(self, running: int) -> float | None:
        """Seconds to wait for the next request: None without end, 0 not at all."""
        if running == 0:
            if self._peaks[0]:
                self._peaks = (0, self._peaks[0])
            self._holding_since = None
            return None
        if 2 * running >= max(self._peaks):
            self._holding_since = None
            return 0
        now = time.monotonic()
        if self._holding_since is None:
            self._holding_since = now
        left = min(self._last_arrival + self._gather_s, self._holding_since + self._most_s) - now
        return max(left, 0)
