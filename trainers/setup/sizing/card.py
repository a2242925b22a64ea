"""What each GPU of a run holds in each phase, from the estimates of its processes.

If the engine sleeps, it and the other processes of its GPU take turns. The GPU then needs the larger of two phases, not
the sum of all peaks.
"""

from __future__ import annotations

from collections import Counter
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
    """Phase -> process -> bytes: "rollouts" and "training" if the engine sleeps, else the one phase "all"."""

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
    """Every GPU if the memory of its processes is known, in the order of the processes."""
    on_gpu: dict[str, dict[str, Memory]] = {}  # GPU -> service -> memory
    unknown = {process.where for process, memory in processes if memory is None}
    for process, memory in processes:
        if process.gpu is not None and memory and memory.total and process.where not in unknown:
            on_gpu.setdefault(process.where, {})[process.service] = memory
    return [Card(where=where, phases=_phases(parts)) for where, parts in on_gpu.items()]


def host_parts(processes: Processes) -> dict[str, float]:
    """Bytes in the memory of the host, the largest part first; processes on GPUs keep something there, too."""
    parts: Counter[str] = Counter()
    for process, memory in processes:
        if memory is not None:
            parts.update(memory.on_host if process.gpu is not None else {process.service: memory.total})
    return {name: size for name, size in parts.most_common() if size}


def _phases(parts: Mapping[str, Memory]) -> dict[str, dict[str, float]]:
    peaks = {service: memory.total for service, memory in parts.items()}
    rests = {service: memory.at_rest for service, memory in parts.items()}
    if "generator" not in parts or parts["generator"].resting is None:
        return {"all": peaks}
    return {
        "rollouts": rests | {"generator": peaks["generator"]},
        "training": peaks | {"generator": rests["generator"]},
    }
