"""EngineUse: what the engines did between two optimizer steps, for the metrics of a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from agents.generator.policy import PolicyActor
from agents.generator.stats import EngineStats
from forge_env.core.errors import ServiceError
from forge_env.runtime.calls.handle import ServiceHandle

_COUNTS = (
    *("steps", "request_steps", "cache_steps", "prefix_asked", "prefix_found", "preemptions"),
    *("step_seconds", "worker_seconds", "admission_seconds", "clock"),
)


class EngineUse:
    """Subtracts the totals of two readings."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    @asynccontextmanager
    async def reading(self, engines: ServiceHandle[PolicyActor]) -> AsyncIterator[asyncio.Task[dict[str, float]]]:
        """Read beside other work; yields the task, which has ended when the context is left, by an error too."""
        task = asyncio.create_task(self.read(engines))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def read(self, engines: ServiceHandle[PolicyActor]) -> dict[str, float]:
        """The metrics since the last reading; none where an engine does not answer."""
        with suppress(ServiceError):  # its ping handles it
            return self.since(await engines.deadline(10.0).fanout(PolicyActor.use))
        return {}

    def since(self, engines: Sequence[EngineStats]) -> dict[str, float]:
        """The metrics since the last call, over all engines; none if they have made no step."""
        totals = {name: sum(getattr(engine, name) for engine in engines) for name in _COUNTS}
        # Smaller totals belong to an engine that has replaced another one.
        before = self._before if all(totals[name] >= value for name, value in self._before.items()) else {}
        self._before = totals
        new = {name: total - before.get(name, 0) for name, total in totals.items()}
        if not new["steps"]:
            return {}
        metrics = {
            "engine/batch": new["request_steps"] / new["steps"],
            "engine/cache_usage": new["cache_steps"] / new["steps"],
            "engine/preemptions": new["preemptions"],
        }
        if steps := new["step_seconds"]:
            work = steps - new["worker_seconds"]
            metrics["engine/thread_busy"] = (work + new["admission_seconds"]) / new["clock"]
            metrics["engine/worker_share"] = new["worker_seconds"] / steps
            metrics["engine/us_per_request"] = 1e6 * work / new["request_steps"]
        if new["prefix_asked"]:
            metrics["engine/prefix_hit_rate"] = new["prefix_found"] / new["prefix_asked"]
        return metrics | {"engine/prompt_tokens": new["prefix_asked"]}
