"""Sizes the KV cache of an engine on its GPU, and decides whether the engine sleeps while the trainer steps.

    the card x gpu_memory_utilization
    - the engine's weights and buffers
    - memory of other processes of the run on this card: their peak if the engine keeps its cache, or what they keep at
      rest if the engine sleeps while they work
    = the room for keys and values

The cache is what all requests need at their longest, if there is room for it; otherwise all the room there is, and at
least what `LEAST_REQUESTS` requests of full length need. That least cache may reach into the rest of the card that
gpu_memory_utilization leaves; a plan in which it does not fit on the card is refused (fit.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainers.setup.memory import gib

LEAST_REQUESTS = 4
"""Requests of full length that the smallest cache holds: with fewer, most of a batch would wait in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDemand:
    """The inputs; all sizes in bytes, of one process of the engine."""

    needed: float
    """Cache of all requests at full length, or the size that the user sets."""
    least: float
    """The smallest cache that is acceptable."""
    engine: float
    """The engine's weights and buffers."""
    card: float | None
    """Memory of the GPU; None where it is not known."""
    utilization: float
    """Share of the card that may be filled."""
    others: float = 0.0
    """Peak of the other processes on the card."""
    others_at_rest: float = 0.0
    """Memory of the other processes while the engine works and they wait."""
    wanted: str = "auto"
    """`services.generator.sleep`."""
    hindrance: str = ""
    """Why the engine cannot sleep, as the end of a sentence; empty where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCache:
    """The decision."""

    cache: float
    """Bytes of keys and values."""
    sleeps: bool
    why: str
    """A sentence."""


def size_cache(demand: CacheDemand) -> EngineCache:
    """Decide on the cache of an engine on a GPU, and on its sleep."""
    if demand.card is None:
        sleeps = demand.wanted == "yes"
        size = "the memory of its GPU is not known here, which --launcher.gpu_memory_gib says"
        return EngineCache(
            cache=demand.needed,
            sleeps=sleeps,
            why=f"the engine has a cache of {gib(demand.needed)} GiB{_asleep(sleeps)}: {size}",
        )
    room = demand.card * demand.utilization - demand.engine
    beside, in_turns = room - demand.others, room - demand.others_at_rest
    if not demand.others:
        cache = _within(demand, room)
        return EngineCache(cache=cache, sleeps=False, why=f"{_keeps(cache)}: no other process of the run is on its GPU")
    can_sleep = not demand.hindrance
    sleeps = demand.wanted == "yes" or (demand.wanted == "auto" and can_sleep and beside < demand.needed)
    cache = _within(demand, in_turns if sleeps else beside)
    return EngineCache(cache=cache, sleeps=sleeps, why=_why(demand, cache, sleeps=sleeps))


def _within(demand: CacheDemand, room: float) -> float:
    return max(demand.least, min(demand.needed, room))


def _why(demand: CacheDemand, cache: float, *, sleeps: bool) -> str:
    others = f"{gib(demand.others)} GiB of the other processes on its GPU"
    if sleeps and demand.wanted == "yes":
        return f"the engine has a cache of {gib(cache)} GiB{_asleep(True)}, as --services.generator.sleep says"
    if sleeps:
        return (
            f"the engine has a cache of {gib(cache)} GiB{_asleep(True)}: beside the {others}, there is no room for all "
            f"requests at their longest, {gib(demand.needed)} GiB"
        )
    if cache >= demand.needed:
        return f"{_keeps(cache)}: there is room for it beside the {others}"
    reason = demand.hindrance if demand.wanted == "auto" else "--services.generator.sleep is no"
    return f"{_keeps(cache)}, which is what the {others} leave; it does not sleep: {reason}"


def _keeps(cache: float) -> str:
    return f"the engine keeps a cache of {gib(cache)} GiB while the trainer steps"


def _asleep(sleeps: bool) -> str:
    return ", and sleeps while the trainer steps" if sleeps else ""
