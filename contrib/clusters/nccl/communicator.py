"""PairCommunicator: two processes, of which one sends memory to the other.

Between GPUs it is NCCL; between CPUs it is gloo, with the same calls. The default process group is the trainer's, so
this is another one. It has two ranks only, so no third process waits if one of them dies.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from contrib.clusters.addresses import own_address
from contrib.clusters.nccl.connection import Connection
from forge_env.core.errors import ServiceError
from forge_env.runtime.weights.tensor_layout import allocate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
SENDER, RECEIVER = 0, 1
CHUNK_BYTES = 64 * 2**20  # of one send: small, so that deadlines hold and a dead end leaves little on a GPU
_POLL_S = 0.0005
_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
_constructing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The meeting point of trainer and engines: a TCPStore in the controller, and a token that only they know."""

    address: str
    port: int
    token: str

    def store(self, seconds: float) -> torch.distributed.TCPStore:
        """Connect to the TCPStore. Each caller has its own: on a shared connection, one wait blocks all calls."""
        from torch.distributed import TCPStore

        try:
            # A TCPStore tries again until the deadline, although a dead controller never comes back.
            socket.create_connection((self.address, self.port), seconds).close()
            return TCPStore(
                self.address, self.port, is_master=False, timeout=timedelta(seconds=seconds), wait_for_workers=False
            )
        except (OSError, RuntimeError) as error:
            raise ServiceError(
                f"the controller's meeting point at {self.address}:{self.port} cannot be reached: {first_line(error)}"
            ) from None


class PairCommunicator:
    """One of two ranks. It belongs to one thread.

    Both ranks construct it at the same time. Construction connects them, so that its costs and its errors come before
    the first `transfer`.

    Args:
        rendezvous: of both ranks.
        name: of the pair; no other pair has it.
        connection: to the other rank; it tells when that rank is gone, which the libraries do not always notice.
        rank: SENDER or RECEIVER.
        device: of the memory that is transferred.
        seconds: deadline of every chunk.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        name: str,
        connection: Connection,
        *,
        rank: int,
        device: torch.device,
        seconds: float,
    ) -> None:
        import torch
        from torch.distributed import PrefixStore

        self._connection = connection
        self._rank = rank
        self._seconds = seconds
        self._device = device
        self._on_gpu = device.type == "cuda"
        # An operation of a process group waits for the stream that is current at the call. On the trainer's stream a
        # send would wait for all queued training, a step or more, and steps would wait for the send. On a stream of its
        # own it waits only for the copy of the weights, by an event, and nothing waits for it. NCCL's kernel then runs
        # beside the training kernels on the GPU, and delays none of them: it takes a few of the GPU's multiprocessors
        # for one chunk at a time, and starts only if the other rank is there. The two cannot deadlock: the receiver
        # needs nothing that a step of the trainer makes, and no step needs the receiver.
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None
        store = PrefixStore(name, rendezvous.store(seconds))
        address = own_address(rendezvous.address, rendezvous.port)
        # If the other process dies at this moment, this may take far longer than the deadline, or forever. Then its
        # thread is left behind. This happens here, before a snapshot is held.
        self._group: Any = self._wait(_InThread(lambda: self._connect(store, address)))

    def allocate(self, size: int) -> Tensor:
        import torch

        # On the stream that writes to it: memory that another stream has freed may be in use by queued kernels.
        with torch.cuda.stream(self._stream):
            remedy = "beside what is there: leave more of it free, or take --weights.store torchstore"
            return allocate(size, self._device, purpose="to receive the weights", remedy=remedy)

    def transfer(self, flat: Tensor, *, after: torch.cuda.Event | None = None) -> None:
        """Send `flat`, (bytes,) uint8, or receive it; afterwards every stream may read it.

        Args:
            after: the event after which the sender's `flat` may be read, on a GPU.
        """
        import torch

        with torch.cuda.stream(self._stream):
            if self._stream is not None and after is not None:
                self._stream.wait_event(after)
            for chunk in flat.split(CHUNK_BYTES):
                if self._rank == SENDER:
                    work = self._group.send([chunk], RECEIVER, 0)
                else:
                    work = self._group.recv([chunk], SENDER, 0)
                if self._on_gpu:
                    self._wait(work)
                else:  # gloo's work can only be waited for, and does not notice a death in the middle of a chunk
                    self._wait(_InThread(partial(work.wait, timedelta(seconds=self._seconds))))

    def close(self) -> None:
        """Free the communicator; the other rank may be dead, or in the middle of a transfer."""
        with suppress(RuntimeError):  # NCCL did not abort in time; its resources end with the process
            self._group.abort()
        self._group = None

    def _connect(self, store: Any, address: str) -> Any:
        import torch

        make_group = _nccl if self._on_gpu else _gloo
        group = make_group(store, self._rank, self._seconds, address)
        with torch.cuda.stream(self._stream):  # NCCL makes its communicator at the first use
            byte = self.allocate(1)
            work = group.send([byte], RECEIVER, 0) if self._rank == SENDER else group.recv([byte], SENDER, 0)
            work.wait(timedelta(seconds=self._seconds))
        return group

    def _wait(self, work: Any) -> Any:
        """Wait for an operation of both ranks. If the other rank has died, the operation would never complete."""
        deadline = time.monotonic() + self._seconds
        while not work.is_completed():
            if self._connection.is_closed(within=_POLL_S):
                raise ConnectionError("it closed the connection")
            if time.monotonic() > deadline:
                raise TimeoutError(f"it transferred nothing within {self._seconds:g} s")
        return work.wait(timedelta(seconds=self._seconds))


class _InThread(Generic[T]):
    """A blocking call in a thread, with the methods of an operation of torch's: its caller can watch the connection."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._done = threading.Event()
        self._error: Exception | None = None
        self._result: T | None = None
        threading.Thread(target=self._run, name="weights-wait", daemon=True).start()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: timedelta) -> T:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return cast(T, self._result)
        finally:
            del error  # its traceback would keep it, and everything in this frame, alive

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:
            self._error = error
        self._done.set()


def first_line(error: BaseException) -> str:
    """The informative part of an error of torch's: without the line of torch's own source."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S*\] |\. This is typically .*", "", line)


def _gloo(store: Any, rank: int, seconds: float, address: str) -> Any:
    from torch.distributed import ProcessGroupGloo

    gloo: Any = ProcessGroupGloo  # the types that torch declares lack the names of its options
    options = gloo._Options()
    options._timeout = timedelta(seconds=seconds)
    # On a machine with several networks, gloo would take the network of its host name.
    options._devices = [gloo.create_device(hostname=address)]
    return gloo(store, rank, 2, options)


def _nccl(store: Any, rank: int, seconds: float, address: str) -> Any:
    try:
        from torch.distributed import ProcessGroupNCCL
    except ImportError:
        raise ServiceError("this torch has no NCCL: take another store with --weights.store torchstore") from None
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=seconds)
    with _without_watchdog():
        return ProcessGroupNCCL(store, rank, 2, options)


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Raise the errors of a process group that is made in this context where its operations are waited for.

    Otherwise a watchdog thread of torch's ends the full process at an error: the death of a replica would end the
    trainer. The only setting for it is an environment variable, which torch reads while the group is made.
    """
    with _constructing:
        before = os.environ.get(_BLOCKING)
        os.environ[_BLOCKING] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_BLOCKING]
            else:
                os.environ[_BLOCKING] = before
