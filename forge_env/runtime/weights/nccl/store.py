"""Snapshots on the trainer's GPU, sent to the engines' GPUs by NCCL: for GPUs that cannot read each other's memory.

The trainer's first rank keeps the newest versions and answers whoever asks (publisher.py). A puller connects once, and
the two make a communicator of their own (pair.py), over which all its fetches go into memory that it keeps (puller.py).
When one of them dies, their connection (line.py) tells the other, which gives that communicator up. A puller in the
place of a dead one makes a new one, and nobody else notices.

How they find each other: the store, as it travels, knows the address of a TCPStore in the controller, where the
publisher leaves its own, and a token that both prove to know. The weights themselves are not encrypted.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import InvariantError
from forge_env.runtime.process.network import LOOPBACK, serve_tcp_store
from forge_env.runtime.weights.nccl.communicator import Meeting
from forge_env.runtime.weights.nccl.publisher import Publisher, Snapshot
from forge_env.runtime.weights.nccl.puller import Link, Puller
from forge_env.runtime.weights.store import WeightStore

if TYPE_CHECKING:
    from torch import Tensor

SECONDS = 60.0


class NcclStore(WeightStore):
    """Weights from GPU to GPU by NCCL: two snapshots on the trainer's as a rule, and one on that of every puller.

    Weights on the CPU go the same way over gloo, which is for tests: `choose_store` asks for GPUs.

    Args:
        meeting: of a store that has travelled; None is one that is to be prepared.
        seconds: that either side waits for a message of the other, or for a piece of the weights.
    """

    def __init__(self, meeting: Meeting | None = None, seconds: float = SECONDS) -> None:
        self._meeting = meeting
        self._seconds = seconds
        self._served: Any = None  # the TCPStore, in the controller
        self._making = threading.Lock()
        self._publisher: Publisher | None = None
        self._puller: Puller | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._prepared, self._seconds)

    @property
    def _prepared(self) -> Meeting:
        if self._meeting is None:
            raise InvariantError("a weight store is used, or travels, before the controller has prepared it")
        return self._meeting

    def prepare(self, address: str) -> None:
        if self._meeting is not None:
            return
        self._served, port = serve_tcp_store(address)
        self._meeting = Meeting(address, port, secrets.token_hex(16))

    async def open(self, processes: Any = None) -> None:
        self.prepare(LOOPBACK)

    async def close(self) -> None:
        with self._making:
            ending = [each.close for each in (self._puller, self._publisher) if each is not None]
        for close in ending:
            await asyncio.to_thread(close)
        self._served = None

    def take(self, version: int, state_dict: Mapping[str, Tensor]) -> Snapshot:
        with self._making:
            if self._publisher is None:
                self._publisher = Publisher(self._prepared, device=_device(state_dict), seconds=self._seconds)
        return self._publisher.take(version, state_dict)

    async def commit(self, taken: Snapshot) -> None:
        if self._publisher is None:
            raise InvariantError(f"version {taken.version} of the weights is to be published by who did not take it")
        await asyncio.to_thread(self._publisher.commit, taken)

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
            fetching.add_done_callback(lambda done: _give_back_unused(puller, done))
            raise
        try:
            yield state_dict
        finally:
            puller.give_back(link)


def _give_back_unused(puller: Puller, done: asyncio.Future[tuple[Link, dict[str, Tensor]]]) -> None:
    """A thread cannot be cancelled: what it has fetched for nobody is kept for the next time."""
    if not done.cancelled() and done.exception() is None:
        puller.give_back(done.result()[0])


def _device(state_dict: Mapping[str, Tensor]) -> Any:
    import torch

    return next((tensor.device for tensor in state_dict.values()), torch.device("cpu"))


def _current_gpu() -> int:
    """The number of the GPU of this thread, which another thread does not know."""
    import torch

    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0
