"""EngineStats: an engine's work since its start."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any


@dataclass(slots=True)
class EngineStats:
    """An engine's work since its start. Sums over steps, divided by `steps`, are means."""

    steps: int = 0
    step_seconds: float = 0.0
    """Seconds in steps; otherwise the engine admitted requests or was idle."""
    worker_seconds: float = 0.0
    """Of these, seconds from handing a step to the worker to its result. If the worker is a process, the engine waits
    meanwhile; both may spin while they wait, so their CPU time says little."""
    admission_seconds: float = 0.0
    clock: float = 0.0
    """Seconds from the engine's start until the statistics were read."""
    request_steps: int = 0
    """Requests in the engine, summed over the steps; the mean is the batch size."""
    cache_steps: float = 0.0
    """Share of the cache that the requests in the engine use, summed over the steps."""
    prefix_asked: int = 0
    """Tokens of all prompts."""
    prefix_found: int = 0
    """The number of these tokens that were found in the prefix cache, and not computed."""
    preemptions: int = 0
    """Requests that lost their place in the cache while they ran, and were computed again."""
    running: int = 0
    """Requests in the engine now."""


class CacheCounters:
    """Counts the work of vLLM's cache manager. The statistics of the full engine would cost time in every step."""

    def __init__(self, engine: Any) -> None:
        from vllm.v1.metrics.stats import PrefixCacheStats

        self._start_time = time.perf_counter()
        scheduler = engine.engine_core.engine_core.scheduler
        self._scheduler, self._manager = _with_timer(scheduler), scheduler.kv_cache_manager
        # The scheduler does not take the counts away, because its own statistics are off: they are since the start.
        self._manager.log_stats = True
        self._manager.prefix_cache_stats = PrefixCacheStats()

    def step(self, stats: EngineStats, seconds: float) -> None:
        stats.steps += 1
        stats.step_seconds += seconds
        stats.cache_steps += self._manager.usage

    def read(self, stats: EngineStats, *, running: int) -> EngineStats:
        """The statistics, including the values that are counted elsewhere."""
        counts = self._manager.prefix_cache_stats
        return replace(
            stats,
            worker_seconds=self._scheduler.worker_seconds,
            clock=time.perf_counter() - self._start_time,
            prefix_asked=counts.queries,
            prefix_found=counts.hits,
            preemptions=counts.preempted_requests,
            running=running,
        )


def _with_timer(scheduler: Any) -> Any:
    """Let vLLM's scheduler sum up the seconds between the end of its plan of a step and the result of the step."""

    class Timed(type(scheduler)):  # type: ignore[misc]
        worker_seconds, handed_at = 0.0, 0.0

        def schedule(self, *args: Any) -> Any:
            plan = super().schedule(*args)
            self.handed_at = time.perf_counter()
            return plan

        def update_from_output(self, *args: Any) -> Any:
            self.worker_seconds += time.perf_counter() - self.handed_at
            outputs = super().update_from_output(*args)
            self.handed_at = time.perf_counter()  # for the last step of all, after which nothing is planned
            return outputs

    scheduler.__class__ = Timed
    return scheduler
