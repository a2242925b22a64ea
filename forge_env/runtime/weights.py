"""Weights as immutable, versioned snapshots in TorchStore.

A snapshot is put under its version and never changed; TorchStore writes a state dict's own key last, which makes it
the commit marker: a snapshot that can be fetched is whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forge_env.errors import ServiceError
from forge_env.runtime.torchstore_compat import import_torchstore

if TYPE_CHECKING:
    from torch import Tensor

_KEEP = 2  # versions: the newest, and the one that a slow replica may still be reading


async def open_store(processes: Any) -> None:
    """Start the store's volume in `processes`, a Monarch process mesh. Called once, by the controller."""
    await import_torchstore().initialize(mesh=processes)


async def close_store() -> None:
    await import_torchstore().shutdown()


async def publish(version: int, state_dict: Mapping[str, Tensor]) -> None:
    """Put a snapshot, and forget the one that nobody can need any more."""
    store = import_torchstore()
    await store.put_state_dict(dict(state_dict), _key(version))
    if version >= _KEEP:
        await _delete(store, version - _KEEP)


async def fetch(version: int) -> dict[str, Tensor]:
    """Get a snapshot.

    Raises:
        ServiceError: when there is no such version.
    """
    try:
        return await import_torchstore().get_state_dict(_key(version))
    except Exception as error:
        raise ServiceError(f"the weight store has no version {version}: {error}") from None


async def _delete(store: Any, version: int) -> None:
    await asyncio.gather(*(store.delete(key) for key in await store.keys(_key(version))))


def _key(version: int) -> str:
    return f"weights/{version:08d}"
