"""The weights in TorchStore, with real processes: what is fetched is what was published, and the old goes."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from forge_env.core.errors import InvariantError, ServiceError

pytest.importorskip("monarch")

from state_dicts import fingerprints, make_state_dict
from weight_actors import Holder

from contrib.clusters import torchstore_compat
from contrib.clusters.torchstore import TorchStoreWeights
from contrib.clusters.torchstore_compat import import_torchstore
from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.launcher import Launcher, within
from tests.helpers.packages import needs

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs("torchstore")]
STORE = TorchStoreWeights()
DEADLINE_S = 60.0


class Services(NamedTuple):
    launcher: Launcher
    trainer: Any
    engine: Any


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
    """Two actors and an open store, in three processes."""
    async with Launcher(tmp_path_factory.mktemp("logs")) as launcher:
        trainer, engine = (launcher.spawn(name, Holder, store=STORE) for name in ("trainer", "engine"))
        opening = within(200.0, STORE.open(launcher.processes("store", ForgeActor)), "opening the store")
        await asyncio.gather(opening, *(launcher.start(name) for name in ("trainer", "engine", "store")))
        yield Services(launcher, trainer, engine)
    await STORE.close()


async def fetched(version: int) -> dict[str, str]:
    async with STORE.fetch(version) as state_dict:
        return fingerprints(state_dict)


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def empty_store(services: Services) -> None:
    store = import_torchstore()
    for key in await store.keys():
        await store.delete(key)


async def test_every_dtype_and_shape_comes_back_bit_for_bit(services: Services) -> None:
    import torch

    state_dict = make_state_dict(0)
    await STORE.publish(0, state_dict)
    async with STORE.fetch(0) as found:
        assert list(found) == list(state_dict)
        assert fingerprints(found) == fingerprints(state_dict)
        assert all(isinstance(tensor, torch.Tensor) and tensor.is_contiguous() for tensor in found.values())


async def test_one_actor_publishes_and_another_fetches(services: Services) -> None:
    for version in range(3):
        await within(DEADLINE_S, services.trainer.publish.call_one(version, version), "publishing")
        found = await within(DEADLINE_S, services.engine.fetch.call_one(version), "fetching")
        assert found == fingerprints(make_state_dict(version))


async def test_only_the_last_two_versions_stay(services: Services) -> None:
    for version in range(4):
        await within(DEADLINE_S, services.trainer.publish.call_one(version, version), "publishing")
    keys = await import_torchstore().keys()
    assert {key.split("/")[1] for key in keys} == {"00000002", "00000003"}
    for version in (0, 1):
        with pytest.raises(ServiceError, match=f"has no version {version}"):
            await fetched(version)
    for version in (2, 3):
        assert await fetched(version) == fingerprints(make_state_dict(version))


async def test_the_first_version_need_not_be_zero(services: Services) -> None:
    """A run that goes on from a checkpoint begins at a later one, with nothing to forget."""
    await STORE.publish(100, make_state_dict(1))
    assert await fetched(100) == fingerprints(make_state_dict(1))


async def test_a_published_version_never_changes(services: Services) -> None:
    expected = fingerprints(make_state_dict(1))
    await within(DEADLINE_S, services.trainer.publish_then_change.call_one(0, 1), "publishing")
    async with STORE.fetch(0) as found:  # a copy of one's own
        for tensor in found.values():
            tensor.zero_()
    assert await within(DEADLINE_S, services.engine.fetch.call_one(0), "fetching") == expected
    with pytest.raises(InvariantError, match="version 0 of the weights was published already"):
        await within(DEADLINE_S, services.trainer.publish.call_one(0, 2), "publishing")
    assert await within(DEADLINE_S, services.engine.fetch.call_one(0), "fetching") == expected


async def test_an_unknown_version_is_a_service_error_here_and_from_an_actor(services: Services) -> None:
    with pytest.raises(ServiceError, match="^the weight store has no version 41"):
        await within(DEADLINE_S, fetched(41), "fetching")
    with pytest.raises(ServiceError, match="^the weight store has no version 41"):
        await within(DEADLINE_S, services.engine.fetch.call_one(41), "fetching")


async def test_a_snapshot_without_its_marker_cannot_be_fetched(services: Services) -> None:
    """What a trainer that dies half-way through a publish leaves behind."""
    await STORE.publish(0, make_state_dict(0))
    await import_torchstore().delete("weights/00000000/MAPPING")
    with pytest.raises(ServiceError, match="has no version 0"):
        await fetched(0)


async def test_rdma_is_used_as_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSTORE_RDMA_ENABLED", "not said")
    for use, enabled in (("", "not said"), ("0", "0"), ("1", "1"), ("False", "0"), ("", "0")):
        monkeypatch.setenv("TORCHSTORE_USE_RDMA", use)
        import_torchstore()
        assert os.environ["TORCHSTORE_RDMA_ENABLED"] == enabled, use


async def test_the_shim_is_applied_once(services: Services) -> None:
    from monarch._src.actor.endpoint import EndpointProperty
    from torchstore.controller import Controller
    from torchstore.storage_volume import StorageVolume

    for actor_class in (Controller, StorageVolume):
        endpoints = {name: value for name, value in vars(actor_class).items() if isinstance(value, EndpointProperty)}
        assert endpoints and all(inspect.iscoroutinefunction(value._method) for value in endpoints.values())
        import_torchstore()
        assert {name: vars(actor_class)[name] for name in endpoints} == endpoints


async def test_another_version_of_torchstore_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    repairs: list[type] = []
    monkeypatch.setattr(torchstore_compat, "_done", False)
    monkeypatch.setattr(torchstore_compat, "_make_endpoints_async", repairs.append)
    for version, count in (("0.1.3", 0), ("0.1.2", 2)):
        monkeypatch.setattr("importlib.metadata.version", lambda name, version=version: version)
        import_torchstore()
        assert len(repairs) == count


async def test_a_store_opens_again_after_an_earlier_run_of_this_process(services: Services, tmp_path: Path) -> None:
    """Comes last: the store of the others is gone after it."""
    await STORE.publish(0, make_state_dict(0))
    async with Launcher(tmp_path / "logs") as launcher:
        store = launcher.processes("store", ForgeActor)
        await launcher.start("store")
        await within(200.0, STORE.open(store), "opening the store")
        assert await import_torchstore().keys() == []
        await STORE.publish(0, make_state_dict(5))
        assert await fetched(0) == fingerprints(make_state_dict(5))
        await STORE.close()
