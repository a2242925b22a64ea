"""Puller: the connections of one process to the publisher, and the memory into which the weights come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from forge_env.core.errors import ServiceError
from forge_env.runtime.weights.nccl.communicator import RECEIVER, Meeting, Pair, first_line
from forge_env.runtime.weights.nccl.connection import Line
from forge_env.runtime.weights.nccl.publisher import KEY, gpu_id, no_version
from forge_env.runtime.weights.tensor_layout import Layout

if TYPE_CHECKING:
    import torch
    from torch import Tensor


T = TypeVar("T")


class _Refused(Exception):
    """The publisher has no such version; what it said."""


class Link:
    """A connection to the publisher, a communicator of both, and memory for a snapshot; for one fetch at a time."""

    def __init__(self, meeting: Meeting, *, version: int, gpu: int, seconds: float) -> None:
        store = meeting.store(seconds)
        if not store.check([KEY]):  # nothing has ever been published
            raise _Refused(no_version(version, []))
        address, port = store.get(KEY).decode().split()
        try:
            self.line = Line.to(address, int(port), seconds)
        except OSError as error:
            raise ServiceError(
                f"the trainer, who has the weights, does not answer at {address}:{port}: {first_line(error)}"
            ) from None
        try:
            self.line.prove(meeting.token, role="puller", to="publisher")
            told = self.line.hear()
            self._device = _find_device(told["device"], told["gpu"], gpu)
            self._pair = Pair(meeting, told["pair"], self.line, rank=RECEIVER, device=self._device, seconds=seconds)
        except BaseException:
            self.line.close()
            raise
        self._flat: Tensor | None = None

    def ask(self, version: int) -> Layout:
        """Ask for a version, which the publisher holds until it is received.

        Raises:
            _Refused: when there is no such version, or no longer.
            OSError: when the publisher is gone, or does not answer in time.
        """
        self.line.say(version=version)
        told = self.line.hear()
        if "refused" in told:
            raise _Refused(told["refused"])
        return Layout.from_json(told["layout"])

    def receive(self, layout: Layout) -> dict[str, Tensor]:
        """Receive what was asked for; the tensors are there until the next time.

        Raises:
            OSError, RuntimeError: when it does not come, or there is no room for it.
        """
        import torch

        if self._device.type == "cuda":
            # Who had the last weights has let go of them, and may have queued kernels that read them, on any stream.
            torch.cuda.synchronize(self._device)
        if self._flat is None or self._flat.numel() < layout.size:
            self._flat = None  # before there is another one
            self._flat = self._pair.memory(max(layout.size, 1))
        self.line.say(ready=True)
        self._pair.move(self._flat[: layout.size])
        # What came is whole. That it is of one version too, the publisher says: one that has given up, and has its
        # memory overwritten while the last of it is on its way, says nothing.
        self.line.hear()
        return layout.views(self._flat)

    def close(self) -> None:
        self._pair.close()
        self.line.close()
        self._flat = None


class Puller:
    """A link is kept between fetches. Fetches at the same time have one each."""

    def __init__(self, meeting: Meeting, seconds: float) -> None:
        self._meeting = meeting
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._busy: set[Link] = set()
        self._is_closed = False

    def fetch(self, version: int, gpu: int) -> tuple[Link, dict[str, Tensor]]:
        """Fetch a version; returns what has to be given back when it is not needed any more, and the tensors.

        Args:
            gpu: the number of this process's GPU, if the weights are on one.

        Raises:
            ServiceError: when there is no such version, or no longer; when the publisher is gone or does not answer.
        """
        with _in_a_sentence(version):
            link, layout = self._kept(), None
            if link is not None:
                try:
                    layout = self._try(link, link.ask, version)
                except ConnectionError:
                    pass  # the other end went since the last fetch; another publisher may have taken its place
            if link is None or layout is None:
                link = self._new(version, gpu)
                layout = self._try(link, link.ask, version)
            return link, self._try(link, link.receive, layout)

    def give_back(self, link: Link) -> None:
        """Keep a link for the next fetch."""
        with self._lock:
            self._busy.discard(link)
            if not self._is_closed:
                self._idle.append(link)
                return
        link.close()

    def close(self) -> None:
        """End all connections; fetches that are under way fail."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for link in self._busy:
                link.line.hang_up()
        for link in idle:
            link.close()

    def _kept(self) -> Link | None:
        with self._lock:
            link = self._idle.pop() if self._idle else None
            if link is not None:
                self._busy.add(link)
            return link

    def _new(self, version: int, gpu: int) -> Link:
        link = Link(self._meeting, version=version, gpu=gpu, seconds=self._seconds)
        with self._lock:
            if not self._is_closed:
                self._busy.add(link)
                return link
        link.close()
        raise ServiceError("the weight store is closed")

    def _try(self, link: Link, call: Callable[[Any], T], argument: Any) -> T:
        """Call; a link that fails is of no use any more."""
        try:
            return call(argument)
        except _Refused:
            self.give_back(link)
            raise
        except BaseException:
            with self._lock:
                self._busy.discard(link)
            link.close()
            raise


@contextmanager
def _in_a_sentence(version: int) -> Iterator[None]:
    try:
        yield
    except _Refused as error:
        raise ServiceError(str(error)) from None
    except (OSError, RuntimeError) as error:
        raise ServiceError(
            f"version {version} of the weights did not arrive from the trainer: {first_line(error)}"
        ) from None


def _find_device(kind: str, trainers: str, gpu: int) -> torch.device:
    """Where the weights are to be here: on this process's GPU, if they are on one there.

    Raises:
        ServiceError: when this process has no GPU, or the trainer's.
    """
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
