"""Snapshots in TorchStore: for several hosts, over RDMA if there is some, and otherwise in Monarch's messages.

TorchStore writes a state dict's own key last. So this key is the commit marker: a snapshot that can be fetched is
complete. TORCHSTORE_USE_RDMA=0 switches RDMA off.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from contrib.clusters.torchstore_compat import import_torchstore
from forge_env.core.errors import ServiceError
from forge_env.runtime.weights.one_host.shared_memory import SHARED_MEMORY, SNAPSHOTS, room
from forge_env.runtime.weights.store import StoreRequest, WeightStore, in_words, published_already
from forge_env.runtime.weights.tensor_layout import TensorLayout, WeightStream

if TYPE_CHECKING:
    from torch import Tensor

_MARKER = "MAPPING"  # TorchStore's own name for it
_CLOSE_S = 1.0  # for emptying the index; the volume's process has usually ended, and never answers


@dataclass(frozen=True, slots=True)
class _TakenCopy:
    version: int
    layout: TensorLayout
    flat: Tensor


class TorchStoreWeights(WeightStore):
    """The distributed store. A process has one TorchStore, so all objects of a process are the same store."""

    title: ClassVar[str] = "TorchStore"
    needs_process: ClassVar[bool] = True
    actors_only: ClassVar[bool] = True
    _is_open = False

    @classmethod
    def reason(cls, request: StoreRequest) -> str:
        if request.hosts > 1:
            return f"the run has {request.hosts} hosts" + (f", and {request.too_much}" if request.all_on_gpus else "")
        size = in_words(SNAPSHOTS * request.size)
        return f"{SNAPSHOTS} snapshots take {size}, and {SHARED_MEMORY} has {in_words(room())} free"

    @classmethod
    def refusal(cls, request: StoreRequest, instead: str) -> str:
        if importlib.util.find_spec("torchstore") is not None:
            return ""
        return "whose package torchstore is not installed: install it as docs/installing.md says"

    async def open(self, processes: Any = None) -> None:
        """Start the store's volume in `processes`."""
        store = import_torchstore()
        # Its index lives in this process, and would live longer than the volume of an earlier run.
        with contextlib.suppress(Exception):  # that volume's process has ended
            await store.shutdown()
        store.reset_client()
        await store.initialize(mesh=processes)
        self._is_open = True

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        store = import_torchstore()
        with contextlib.suppress(Exception):  # its process, which held the weights, has ended
            async with asyncio.timeout(_CLOSE_S):
                await store.shutdown()
        store.reset_client()

    def attach(self) -> None:
        import_torchstore()

    def take(self, version: int, weights: WeightStream) -> _TakenCopy:
        import torch

        flat = torch.empty(weights.layout.size, dtype=torch.uint8)  # one message, and not one for each tensor
        weights.copy_to(flat)
        return _TakenCopy(version, weights.layout, flat)

    async def commit(self, snapshot: _TakenCopy) -> None:
        store = import_torchstore()
        if await store.exists(f"{_key(snapshot.version)}/{_MARKER}"):
            raise published_already(snapshot.version)
        await store.put_state_dict(
            {"layout": snapshot.layout.to_json(), "weights": snapshot.flat}, _key(snapshot.version)
        )
        if snapshot.version >= self.keep:
            await _forget(store, snapshot.version - self.keep)

    @asynccontextmanager
    async def fetch(self, version: int) -> AsyncIterator[dict[str, Tensor]]:
        try:
            content = await import_torchstore().get_state_dict(_key(version))
        except Exception as error:
            raise ServiceError(f"the weight store has no version {version}: {error}") from None
        yield TensorLayout.from_json(content["layout"]).views(content["weights"])


async def _forget(store: Any, version: int) -> None:
    """Delete a snapshot, first its commit marker."""
    # store.keys(prefix) takes its prefix for a full word up to a dot, and finds nothing.
    keys = [key for key in await store.keys() if key.startswith(f"{_key(version)}/")]
    for key in sorted(keys, key=lambda key: not key.endswith(f"/{_MARKER}")):
        await store.delete(key)


def _key(version: int) -> str:
    return f"weights/{version:08d}"
