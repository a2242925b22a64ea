"""An actor for the tests of several hosts; it imports little, for each test starts several."""

from __future__ import annotations

import asyncio

from forge_env.runtime.actor import ForgeActor, concurrent_endpoint


class Adder(ForgeActor):
    """Answers, or does not."""

    @concurrent_endpoint
    async def add(self, a: int, b: int) -> int:
        return a + b

    @concurrent_endpoint
    async def hold(self) -> None:
        """Never answer."""
        await asyncio.Event().wait()
