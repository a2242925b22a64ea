"""What a run does now: its step, its queue, its processes, and the episodes that are played."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from contrib.live.actions import LIMITS
from envs.actors.env import EnvActor
from forge_env.runtime.service import Service
from trainers.run.run import Run

SECONDS = 1.0
"""A process that does not answer within these is said to be silent."""


async def state_of(run: Run) -> dict[str, Any]:
    """Return what a run does now, as JSON data. It asks the processes of the environments, and nobody else."""
    controls, now = run.controls, time.monotonic()
    episodes = await asyncio.gather(*map(_episodes, run.rollouts.envs.values()))
    silent = [number for _, numbers in episodes for number in numbers]
    return {
        "steps": run.plan.steps,
        "limits": LIMITS,
        "paused": controls.is_paused,
        "evaluates": controls.evaluates,
        "stopping": run.caller.is_stopping,
        "queue": controls.queue() if controls.queue is not None else None,
        "waits": [
            {"for": what, "seconds": time.perf_counter() - since} for what, since in run.record.console.under_way()
        ],
        "groups": [
            {"group": group, "seconds": now - flight.since, "version": flight.version, "behind": _behind(run, flight)}
            for group, flight in list(run.rollouts.in_flight.items())
        ],
        "services": [_service(name, service) for name, service in run.services.items()],
        "silent": silent,
        "episodes": [episode for of_process, _ in episodes for episode in of_process],
    }


def _behind(run: Run, flight: Any) -> int:
    return int(run.weights.in_engines - flight.version)


def _service(name: str, service: Service[Any]) -> dict[str, Any]:
    client = service.client
    return {
        "name": name,
        "up": client.up,
        "wanted": service.options.num_replicas,
        "calls": sum(member.calls for member in client.replicas.values()),
        "replaced": len(service.deaths),
        "last_reason": service.deaths[-1].reason if service.deaths else "",
    }


async def _episodes(service: Service[EnvActor]) -> tuple[list[dict[str, Any]], list[str]]:
    """The episodes in the processes of a service, and the processes that did not answer."""
    answers = await service.deadline(SECONDS).in_flight.answers()
    silent = [f"{service.name} {number}" for number, answer in answers.items() if isinstance(answer, BaseException)]
    answers_in_time = [answer for answer in answers.values() if not isinstance(answer, BaseException)]
    return [episode for episodes in answers_in_time for episode in episodes], silent
