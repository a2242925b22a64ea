"""What each GPU and the host of a run hold, from the estimates of their processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from trainers.setup.memory import Memory, gib
from trainers.setup.placement import Process

Processes = Sequence[tuple[Process, Memory | None]]
"""Each process with its memory; None if the sizes of the model are not known."""


class Card(NamedTuple):
    """One GPU of a run, and its phases: "rollouts" and "training" if the engine sleeps, else "all"."""

    where: str
    phases: dict[str, dict[str, float]]
    """Phase -> service -> bytes. Processes that take turns need the larger phase, not the sum of all peaks."""

    @property
    def worst(self) -> float:
        """Bytes of the fullest phase."""
        return max(sum(phase.values()) for phase in self.phases.values())

    def __str__(self) -> str:
        """Such as "GPU 0: rollouts 60.1 = generator 45.0 + trainer 15.1; training 70.2 = ..."."""
        each = [" + ".join(f"{name} {gib(size)}" for name, size in parts.items()) for parts in self.phases.values()]
        sums = [f"{phase} {gib(sum(parts.values()))}".removeprefix("all ") for phase, parts in self.phases.items()]
        return f"{self.where}: {'; '.join(map(' = '.join, zip(sums, each, strict=True)))}"


def cards(processes: Processes) -> list[Card]:
    """Every GPU if the memory of its processes is known, in the order of the processes."""
    on_gpu: dict[str, dict[str, Memory]] = {}  # GPU -> service -> memory
    for process, memory in processes:
        if process.gpu is not None and memory and memory.total:
            on_gpu.setdefault(process.where, {})[process.service] = memory
    return [Card(where, _phases(parts)) for where, parts in on_gpu.items()]


def host_parts(processes: Processes) -> dict[str, float]:
    """Bytes in the memory of the host, the largest part first; processes on GPUs keep something there, too."""
    parts: Counter[str] = Counter()
    for process, memory in processes:
        if memory is not None:
            parts.update(memory.on_host if process.gpu is not None else {process.service: memory.total})
    return {name: size for name, size in parts.most_common() if size}


def _phases(parts: dict[str, Memory]) -> dict[str, dict[str, float]]:
    peaks = {service: memory.total for service, memory in parts.items()}
    rests = {service: memory.at_rest for service, memory in parts.items()}
    if "generator" not in parts or parts["generator"].resting is None:
        return {"all": peaks}
    return {
        "rollouts": rests | {"generator": peaks["generator"]},
        "training": peaks | {"generator": rests["generator"]},
    }
