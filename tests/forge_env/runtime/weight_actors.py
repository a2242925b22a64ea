"""Actors that hold weights, for the tests of the weight stores; unlike runtime_actors.py this imports torch."""

from __future__ import annotations

from typing import Any

from state_dicts import fingerprints, make_state_dict

from forge_env.runtime.actor import ForgeActor, concurrent_endpoint
from forge_env.runtime.weights import WeightStore, WeightStream


class Holder(ForgeActor):
    """Publishes and fetches weights that both sides can make from a seed."""

    def __init__(self, *, store: WeightStore, **base: Any) -> None:
        super().__init__(**base)
        self._store = store

    async def on_start(self) -> None:
        self._store.attach()

    @concurrent_endpoint
    async def publish(self, version: int, seed: int) -> None:
        await self._store.publish(version, make_state_dict(seed))

    @concurrent_endpoint
    async def publish_then_change(self, version: int, seed: int) -> None:
        """Publish, and go on training in place as soon as the copy is taken."""
        state_dict = make_state_dict(seed)
        taken = self._store.take(version, WeightStream.of(state_dict))
        for tensor in state_dict.values():
            tensor.zero_()
        await self._store.commit(taken)

    @concurrent_endpoint
    async def fetch(self, version: int) -> dict[str, str]:
        async with self._store.fetch(version) as state_dict:
            return fingerprints(state_dict)
