"""Weights between actors, through shared memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("monarch")

from state_dicts import fingerprints, make_state_dict
from weight_actors import Holder

from forge_env.runtime.launcher import Launcher, within
from forge_env.runtime.weights import SharedMemoryStore

DEADLINE_S = 60.0


async def test_one_actor_publishes_and_another_fetches(tmp_path: Path) -> None:
    store = SharedMemoryStore()
    async with Launcher(tmp_path / "logs") as launcher:
        trainer, engine = (launcher.spawn(name, Holder, store=store) for name in ("trainer", "engine"))
        await asyncio.gather(store.open(), *(launcher.start(name) for name in ("trainer", "engine")))
        for version in range(4):
            await within(DEADLINE_S, trainer.publish_then_change.call_one(version, version), "publishing")
            result = await within(DEADLINE_S, engine.fetch.call_one(version), "fetching")
            assert result == fingerprints(make_state_dict(version))
    await store.close()
    assert not store.folder.exists()
