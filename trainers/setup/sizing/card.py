"""What each GPU of a run holds, phase by phase, from the estimates of its processes.

Where the engine sleeps, it and the other processes of its GPU take turns: the GPU then needs the larger of two phases,
not the sum of the peaks of all processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainers.setup.memory import Memory, gib
from trainers.setup.placement import Process

Processes = Sequence[tuple[Process, Memory | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU of a run."""

    where: str
    """Its name, as "GPU 0" or "host 1, GPU 0"."""
    phases: Mapping[str, Mapping[str, float]]
    """Phase -> process -> bytes: "rollouts" and "training" where the engine sleeps, else the one phase "all"."""

    @property
    def worst(self) -> float:
        """Bytes of the fullest phase."""
        return max(sum(phase.values()) for phase in self.phases.values())

    def __str__(self) -> str:
        """Such as "GPU 0: rollouts 60.1 = generator 45.0 + trainer 15.1; training 70.2 = ..."."""
        phases = (
            f"{'' if name == 'all' else f'{name} '}{gib(sum(parts.values()))} = "
            + " + ".join(f"{process} {gib(size)}" for process, size in parts.items())
            for name, parts in self.phases.items()
        )
        return f"{self.where}: {'; '.join(phases)}"


def cards(processes: Processes) -> list[Card]:
    """Every GPU whose processes' memory is known, in the order of the processes."""
    on_gpu: dict[str, list[tuple[Process, Memory]]] = {}
    unknown = {process.where for process, memory in processes if memory is None}
    for process, memory in processes:
        if process.gpu is not None and memory and memory.total and process.where not in unknown:
            on_gpu.setdefault(process.where, []).append((process, memory))
    return [Card(where=where, phases=_phases(parts)) for where, parts in on_gpu.items()]


def _phases(parts: Sequence[tuple[Process, Memory]]) -> dict[str, dict[str, float]]:
    takes_turns = any(process.service == "generator" and memory.resting is not None for process, memory in parts)
    if not takes_turns:
        return {"all": {process.service: memory.total for process, memory in parts}}
    return {
        "rollouts": {process.service: _in_rollouts(process, memory) for process, memory in parts},
        "training": {process.service: _in_training(process, memory) for process, memory in parts},
    }


def _in_rollouts(process: Process, memory: Memory) -> float:
    return memory.total if process.service == "generator" else memory.at_rest


def _in_training(process: Process, memory: Memory) -> float:
    return memory.at_rest if process.service == "generator" else memory.total
