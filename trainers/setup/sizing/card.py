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
    """One GPU of a run."""

    where: str
    """Its name, as "GPU 0" or "host 1, GPU 0"."""
    phases: dict[str, dict[str, float]]
    """Phase -> service -> bytes: "rollouts" and "training" if the engine sleeps, else the one phase "all"."""

    @property
    def worst(self) -> float:
        """Bytes of the fullest phase."""
        return max(sum(phase.values()) for phase in self.phases.values())

    def __str__(self) -> str:
        """Such as "GPU 0: rollouts 60.1 = generator 45.0 + trainer 15.1; training 70.2 = ..."."""
        each = (
            f"{phase} {gib(sum(parts.values()))} = ".removeprefix("all ")
            + " + ".join(f"{service} {gib(size)}" for service, size in parts.items())
            for phase, parts in self.phases.items()
        )
        return f"{self.where}: {'; '.join(each)}"


def cards(processes: Processes) -> list[Card]:
    """Every GPU if the memory of its processes is known, in the order of the processes."""
    found: dict[str, dict[str, list[Memory]]] = {}  # GPU -> service -> its processes there
    for process, memory in processes:
        if process.gpu is not None and memory and memory.total:
            found.setdefault(process.where, {}).setdefault(process.service, []).append(memory)
    return [Card(where, _phases(memory)) for where, memory in found.items()]


def _phases(memory: dict[str, list[Memory]]) -> dict[str, dict[str, float]]:
    peaks = {service: sum(each.total for each in there) for service, there in memory.items()}
    if all(engine.resting is None for engine in memory.get("generator", [])):
        return {"all": peaks}
    rests = {service: sum(each.at_rest for each in there) for service, there in memory.items()}
    awake, asleep = {"generator": peaks["generator"]}, {"generator": rests["generator"]}
    return {"rollouts": rests | awake, "training": peaks | asleep}


def host_parts(processes: Processes) -> dict[str, float]:
    """Bytes in the memory of the host, the largest part first; processes on GPUs keep something there, too."""
    parts: Counter[str] = Counter()
    for process, memory in processes:
        if memory is not None:
            parts.update(memory.on_host if process.gpu is not None else {process.service: memory.total})
    return {name: size for name, size in parts.most_common() if size}
