"""Puller: one process's connections to the publisher, and the memory that receives the weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from contrib.clusters.nccl.communicator import RECEIVER, PairCommunicator, Rendezvous, first_line
from contrib.clusters.nccl.connection import Connection
from contrib.clusters.nccl.publisher import KEY, gpu_id, no_version
from forge_env.core.errors import ServiceError
from forge_env.runtime.weights.tensor_layout import TensorLayout

if TYPE_CHECKING:
    import torch
    from torch import Tensor


T = TypeVar("T")


class _Refused(Exception):
    """The publisher's message: it has no such version."""


class PublisherLink:
    """A connection to the publisher, a communicator of both, and memory for a snapshot; for one fetch at a time."""

    def __init__(self, rendezvous: Rendezvous, *, version: int, gpu: int, seconds: float) -> None:
        store = rendezvous.store(seconds)
        if not store.check([KEY]):  # nothing has ever been published
            raise _Refused(no_version(version, []))
        address, port = store.get(KEY).decode().split()
        try:
            self.connection = Connection.to(address, int(port), seconds)
        except OSError as error:
            raise ServiceError(
                f"the trainer, who has the weights, does not answer at {address}:{port}: {first_line(error)}"
            ) from None
        try:
            self.connection.authenticate(rendezvous.token, role="puller", to="publisher")
            offer = self.connection.receive()
            self._device = _find_device(offer["device"], offer["gpu"], gpu)
            self._communicator = PairCommunicator(
                rendezvous, offer["pair"], self.connection, rank=RECEIVER, device=self._device, seconds=seconds
            )
        except BaseException:
            self.connection.close()
            raise
        self._flat: Tensor | None = None

    def request(self, version: int) -> TensorLayout:
        """Request a version; the publisher holds it until it is received."""
        self.connection.send(version=version)
        answer = self.connection.receive()
        if "refused" in answer:
            raise _Refused(answer["refused"])
        return TensorLayout.from_json(answer["layout"])

    def receive(self, layout: TensorLayout) -> dict[str, Tensor]:
        """Receive the version that was requested; the tensors stay until the next call."""
        import torch

        if self._device.type == "cuda":
            # The last weights have been released, but kernels that read them may be queued, on any stream.
            torch.cuda.synchronize(self._device)
        if self._flat is None or self._flat.numel() < layout.size:
            self._flat = None  # freed before the larger one is allocated
            self._flat = self._communicator.allocate(max(layout.size, 1))
        self.connection.send(ready=True)
        self._communicator.transfer(self._flat[: layout.size])
        # All bytes have arrived. The publisher confirms that they are one version. If it has given up, and overwrites
        # its memory while the last bytes are on their way, it confirms nothing.
        self.connection.receive()
        return layout.views(self._flat)

    def close(self) -> None:
        self._communicator.close()
        self.connection.close()
        self._flat = None


class Puller:
    """Fetches versions. A link is kept between fetches; concurrent fetches have one link each."""

    def __init__(self, rendezvous: Rendezvous, seconds: float) -> None:
        self._rendezvous = rendezvous
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[PublisherLink] = []
        self._busy: set[PublisherLink] = set()
        self._is_closed = False

    def fetch(self, version: int, gpu: int) -> tuple[PublisherLink, dict[str, Tensor]]:
        """Fetch a version; returns its link and its tensors.

        The link is given to `release` after the last use of the tensors.

        Args:
            gpu: the number of this process's GPU, if the weights are on one.
        """
        with _as_service_error(version):
            link, layout = self._take_idle(), None
            if link is not None:
                try:
                    layout = self._try(link, link.request, version)
                except ConnectionError:
                    pass  # the publisher ended since the last fetch; another one may have replaced it
            if link is None or layout is None:
                link = self._connect(version, gpu)
                layout = self._try(link, link.request, version)
            return link, self._try(link, link.receive, layout)

    def release(self, link: PublisherLink) -> None:
        """Keep a link for the next fetch."""
        with self._lock:
            self._busy.discard(link)
            if not self._is_closed:
                self._idle.append(link)
                return
        link.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for link in self._busy:
                link.connection.shut_down()
        for link in idle:
            link.close()

    def _take_idle(self) -> PublisherLink | None:
        with self._lock:
            link = self._idle.pop() if self._idle else None
            if link is not None:
                self._busy.add(link)
            return link

    def _connect(self, version: int, gpu: int) -> PublisherLink:
        link = PublisherLink(self._rendezvous, version=version, gpu=gpu, seconds=self._seconds)
        with self._lock:
            if not self._is_closed:
                self._busy.add(link)
                return link
        link.close()
        raise ServiceError("the weight store is closed")

    def _try(self, link: PublisherLink, call: Callable[[Any], T], argument: Any) -> T:
        """Call a method of a link; a link that fails is closed."""
        try:
            return call(argument)
        except _Refused:
            self.release(link)
            raise
        except BaseException:
            with self._lock:
                self._busy.discard(link)
            link.close()
            raise


@contextmanager
def _as_service_error(version: int) -> Iterator[None]:
    try:
        yield
    except _Refused as error:
        raise ServiceError(str(error)) from None
    except (OSError, RuntimeError) as error:
        raise ServiceError(
            f"version {version} of the weights did not arrive from the trainer: {first_line(error)}"
        ) from None


def _find_device(kind: str, trainers: str, gpu: int) -> torch.device:
    import torch

    device = torch.device(kind, gpu) if kind == "cuda" else torch.device(kind)
    if kind == "cuda" and not torch.cuda.is_available():
        raise ServiceError(
            "the weights are on the trainer's GPU, and this process sees none: give every service that fetches them "
            "with_gpus, or take --weights.store torchstore"
        )
    if kind == "cuda" and gpu_id(device) == trainers:
        raise ServiceError(
            "this process is on the trainer's own GPU, and NCCL joins different ones: take --weights.store cuda_ipc"
        )
    return device
