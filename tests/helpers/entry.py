"""For tests of what a trainer does before its run."""

from __future__ import annotations


async def never(plan: object, run: object) -> None:
    """A run that must not begin."""
    raise AssertionError("nothing may start")
