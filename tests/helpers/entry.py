"""For tests of what a trainer does before its run."""

from __future__ import annotations


async def never(config: object) -> None:
    """A run that must not begin."""
    raise AssertionError("nothing may start")
