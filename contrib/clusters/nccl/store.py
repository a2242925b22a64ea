"""Snapshots on the trainer's GPU, sent to the engines' GPUs by NCCL: for GPUs that cannot read each other's memory.

The trainer's first rank keeps the newest versions and answers requests (publisher.py). A puller connects once, and the
two make a communicator of their own (communicator.py). All its fetches go over it into memory that the puller keeps
(puller.py). If one of them dies, the other one notices it by their connection (connection.py), and closes the
communicator. The replacement of a dead puller makes a new one, and no other process notices.

They find each other by the store, which travels with the address of a TCPStore in the controller. The publisher leaves
its own address there, and both prove that they know a token. The weights themselves are not encrypted.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from contrib.clusters.nccl.communicator import Rendezvous
from contrib.clusters.nccl.publisher import KEEP, Publisher, Snapshot
from contrib.clusters.nccl.puller import PublisherLink, Puller
from forge_env.core.errors import InvariantError
from forge_env.runtime.process.ranks import LOOPBACK, serve_tcp_store
from forge_env.runtime.weights.store import StoreRequest, WeightStore, refusal_text
from forge_env.runtime.weights.tensor_layout import WeightStream

if TYPE_CHECKING:
    from torch import Tensor

SECONDS = 60.0


class NcclStore(WeightStore):
    """Weights from GPU to GPU by NCCL: usually one snapshot on the trainer's GPU, and one on every puller's.

    Weights on the CPU go the same way over gloo, which is for tests: a run asks for GPUs.

    Args:
        rendezvous: of a store that has travelled; None for a store that is not prepared yet.
        seconds: each side waits this long for a message of the other side, or for a chunk of the weights.
    """

    title: ClassVar[str] = "NCCL"
    keep: ClassVar[int] = KEEP
    on_gpu: ClassVar[bool] = True
    received: ClassVar[bool] = True

    @classmethod
    def reason(cls, request: StoreRequest) -> str:
        fits = request.hosts > 1 and request.fits_gpus and not request.shared_gpus
        return f"trainer and engine are on GPUs of {request.hosts} hosts" if fits else ""

    @classmethod
    def refusal(cls, request: StoreRequest, instead: str) -> str:
        if (refusal := request.lacks_gpus(instead)) or not request.shared_gpus:
            return refusal
        problem = "which joins different GPUs, and the services of this run share them"
        return refusal_text(problem, instead, "give each service GPUs of its own with --launcher.share_gpus no")

    def __init__(self, rendezvous: Rendezvous | None = None, seconds: float = SECONDS) -> None:
        self._rendezvous = rendezvous
        self._seconds = seconds
        self._tcp_store: Any = None  # the TCPStore, in the controller
        self._making = threading.Lock()
        self._publisher: Publisher | None = None
        self._puller: Puller | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._prepared, self._seconds)

    @property
    def _prepared(self) -> Rendezvous:
        if self._rendezvous is None:
            raise InvariantError("a weight store is used, or travels, before the controller has prepared it")
        return self._rendezvous

    def prepare(self, address: str) -> None:
        if self._rendezvous is not None:
            return
        self._tcp_store, port = serve_tcp_store(address)
        self._rendezvous = Rendezvous(address, port, secrets.token_hex(16))

    async def open(self, processes: Any = None) -> None:
        self.prepare(LOOPBACK)

    async def close(self) -> None:
        with self._making:
            parts = [part for part in (self._puller, self._publisher) if part is not None]
        for part in parts:
            await asyncio.to_thread(part.close)
        self._tcp_store = None

    def take(self, version: int, weights: WeightStream) -> Snapshot:
        with self._making:
            if self._publisher is None:
                self._publisher = Publisher(self._prepared, device=weights.device, seconds=self._seconds)
        return self._publisher.take(version, weights)

    async def commit(self, snapshot: Snapshot) -> None:
        if self._publisher is None:
            raise InvariantError(
                f"version {snapshot.version} of the weights is committed by a process that did not take it"
            )
        # In a list: a thread of a pool may keep its arguments after the call, and with them the snapshot's memory.
        publisher, snapshots = self._publisher, [snapshot]
        await asyncio.to_thread(lambda: publisher.commit(snapshots.pop()))

    @asynccontextmanager
    async def fetch(self, version: int) -> AsyncIterator[dict[str, Tensor]]:
        with self._making:
            if self._puller is None:
                self._puller = Puller(self._prepared, self._seconds)
        puller = self._puller
        fetching = asyncio.ensure_future(asyncio.to_thread(puller.fetch, version, _current_gpu()))
        try:
            link, state_dict = await asyncio.shield(fetching)
        except asyncio.CancelledError:
            fetching.add_done_callback(lambda done: _release_unused(puller, done))
            raise
        try:
            yield state_dict
        finally:
            puller.release(link)


def _release_unused(puller: Puller, done: asyncio.Future[tuple[PublisherLink, dict[str, Tensor]]]) -> None:
    """A thread cannot be cancelled. So the link of a fetch that nobody waits for is stored for the next one."""
    if not done.cancelled() and done.exception() is None:
        puller.release(done.result()[0])


def _current_gpu() -> int:
    """The number of this thread's current GPU; in another thread it is a different one."""
    import torch

    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0
