"""Batch delay: when the engine waits for more requests before its next step."""

from __future__ import annotations

import time

GAPS = 5
"""Mean times between two arrivals that are not an end of them."""


class BatchDelay:
    """Decides how long the engine waits for more requests before its next step.

    On a CPU a step costs nearly the same for one request as for many, and tools need the same cores. So while requests
    keep arriving, and fewer than the recent peak are running, the engine waits.

    Args:
        gather_s: wait at most this many seconds after the last arrival, or `GAPS`, if they are longer, as on a machine
            with other work; 0 never waits.
        most_s: wait at most this many seconds in all.
    """

    def __init__(self, gather_s: float, most_s: float) -> None:
        self._gather_s = gather_s
        self._most_s = most_s
        self._peaks = (0, 0)  # of this busy period and of the last one
        self._first_arrival, self._last_arrival, self._arrivals = 0.0, 0.0, 0  # of this busy period
        self._waiting_since: float | None = None

    def on_arrival(self, running: int) -> None:
        self._last_arrival = time.monotonic()
        if not self._peaks[0]:
            self._first_arrival, self._arrivals = self._last_arrival, 0
        self._arrivals += 1
        self._peaks = (max(running, self._peaks[0]), self._peaks[1])

    def seconds_to_wait(self, running: int) -> float | None:
        """Seconds to wait for the next request: None is without limit, 0 is not at all."""
        if running == 0:
            if self._peaks[0]:
                self._peaks = (0, self._peaks[0])
            self._waiting_since = None
            return None
        if not self._gather_s or running >= max(self._peaks):
            self._waiting_since = None
            return 0
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        gap = (self._last_arrival - self._first_arrival) / self._arrivals
        end = self._last_arrival + max(self._gather_s, GAPS * gap)
        remaining_s = min(end, self._waiting_since + self._most_s) - now
        return max(remaining_s, 0)
