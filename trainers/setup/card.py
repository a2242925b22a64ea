"""What each process of a run holds, and so each GPU and the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainers.setup.placement import Process

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one process, by purpose."""

    always: dict[str, float] = field(default_factory=dict)
    """What is there all the time."""
    phases: tuple[dict[str, float], ...] = ()
    """What is there in one phase of the work; phases follow each other."""
    resting: float | None = None
    """Bytes while another process uses the same GPU; None if the process gives nothing back."""
    on_host: dict[str, float] = field(default_factory=dict)
    """What a process on a GPU has in the memory of its host."""

    @property
    def total(self) -> float:
        """Bytes in the fullest phase."""
        return sum(self.always.values()) + max((sum(phase.values()) for phase in self.phases), default=0.0)

    @property
    def at_rest(self) -> float:
        """Bytes while another process uses the same GPU."""
        return self.total if self.resting is None else self.resting

    def __str__(self) -> str:
        """All parts in GiB, such as "state 2.00 + activations 1.00, logits 1.00 or published 3.00"."""
        always, *phases = (", ".join(f"{k} {gib(v)}" for k, v in part.items()) for part in (self.always, *self.phases))
        return " + ".join(text for text in (always, " or ".join(phases)) if text)


def gib(count: float) -> str:
    """Bytes as GiB with about three digits: "0.004", "1.25", "89.1"."""
    value = count / GIB
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


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
    by_gpu: dict[str, dict[str, list[Memory]]] = {}  # GPU -> service -> its processes there
    for process, memory in processes:
        if process.gpu is not None and memory and memory.total:
            by_gpu.setdefault(process.where, {}).setdefault(process.service, []).append(memory)
    return [Card(where, _phases(memory)) for where, memory in by_gpu.items()]


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
