"""What a process of a run removes when it finds its controller dead: nobody else is left to do it."""

from __future__ import annotations

from collections.abc import Callable

_removals: list[Callable[[], None]] = []


def at_death_of_controller(remove: Callable[[], None]) -> None:
    """Have `remove` called if the controller dies before this process. Every process of the run may do the same."""
    _removals.append(remove)


def remove_remnants() -> None:
    for remove in _removals:
        remove()
