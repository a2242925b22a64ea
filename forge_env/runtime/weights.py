"""Weights as immutable, versioned snapshots in TorchStore.

A snapshot is put under its version and never changed; TorchStore writes a state dict's own key last, which makes it
the commit marker: a snapshot that can be fetched is whole.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forge_env.errors import InvariantError, ServiceError
from forge_env.runtime.torchstore_compat import import_torchstore

if TYPE_CHECKING:
    from torch import Tensor

_KEEP = 2  # versions: the newest, and the one that a slow replica may still be reading
_MARKER = "MAPPING"  # TorchStore's own name for it


async def open_store(processes: Any) -> None:
    """Start the store's volume in `processes`, a Monarch process mesh. Called once in a run, by the controller."""
    store = import_torchstore()
    # Its index lives in this process, and would outlive the volume of an earlier run.
    with contextlib.suppress(Exception):  # that volume's process has ended
        await store.shutdown()
    store.reset_client()
    await store.initialize(mesh=processes)


async def close_store() -> None:
    await import_torchstore().shutdown()


async def publish(version: int, state_dict: Mapping[str, Tensor]) -> None:
    """Put a snapshot, and forget the one that nobody can need any more.

    Raises:
        InvariantError: when there is such a version already.
    """
    store = import_torchstore()
    if await store.exists(f"{_key(version)}/{_MARKER}"):
        raise InvariantError(f"version {version} of the weights was published already; a version never changes")
    await store.put_state_dict(_pack(state_dict), _key(version))
    if version >= _KEEP:
        await _forget(store, version - _KEEP)


async def fetch(version: int) -> dict[str, Tensor]:
    """Get a snapshot.

    Raises:
        ServiceError: when there is no such version.
    """
    try:
        return _unpack(await import_torchstore().get_state_dict(_key(version)))
    except Exception as error:
        raise ServiceError(f"the weight store has no version {version}: {error}") from None


async def _forget(store: Any, version: int) -> None:
    """Delete a snapshot, its commit marker before the rest."""
    # store.keys(prefix) takes its prefix for a whole word up to a dot, and finds nothing.
    keys = [key for key in await store.keys() if key.startswith(f"{_key(version)}/")]
    for key in sorted(keys, key=lambda key: not key.endswith(f"/{_MARKER}")):
        await store.delete(key)


def _pack(state_dict: Mapping[str, Tensor]) -> dict[str, Any]:
    """Lay all tensors of one dtype end to end: a message for each dtype, and not one for each tensor."""
    import torch

    by_dtype: dict[str, list[Tensor]] = {}
    layout: list[tuple[str, str, tuple[int, ...]]] = []
    for name, tensor in state_dict.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        by_dtype.setdefault(dtype, []).append(tensor.detach().reshape(-1))
        layout.append((name, dtype, tuple(tensor.shape)))
    return {"layout": layout, **{dtype: torch.cat(parts) for dtype, parts in by_dtype.items()}}


def _unpack(packed: dict[str, Any]) -> dict[str, Tensor]:
    """Views into the packed tensors, under their own names."""
    offsets: dict[str, int] = {}
    state_dict = {}
    for name, dtype, shape in packed["layout"]:
        start, size = offsets.get(dtype, 0), math.prod(shape)
        state_dict[name] = packed[dtype][start : start + size].view(shape)
        offsets[dtype] = start + size
    return state_dict


def _key(version: int) -> str:
    return f"weights/{version:08d}"
