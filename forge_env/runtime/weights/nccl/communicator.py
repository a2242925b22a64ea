"""Pair: two processes and a communicator of their own, over which one sends the other a piece of memory.

Between GPUs it is NCCL; between CPUs it is gloo, with the same calls. It is no default process group, which belongs to
the trainer, and has two ranks only: nobody else waits when one of them dies.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from forge_env.core.errors import ServiceError
from forge_env.runtime.process.network import own_address
from forge_env.runtime.weights.nccl.connection import Line

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
SENDER, RECEIVER = 0, 1
PIECE = 64 * 2**20  # bytes that are moved at once: little is left on a GPU when the other end dies, deadlines hold
_POLL_S = 0.0005
_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
_constructing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the processes of a run find each other: a TCPStore in the controller, and a token that only they know."""

    address: str
    port: int
    token: str

    def store(self, seconds: float) -> torch.distributed.TCPStore:
        """A connection to it of one's own: on a shared one, who waits lets everybody wait.

        Raises:
            ServiceError: when the controller cannot be reached.
        """
        from torch.distributed import TCPStore

        try:
            return TCPStore(
                self.address,
                self.port,
                is_master=False,
                timeout=timedelta(seconds=seconds),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            raise ServiceError(
                f"the controller's meeting point at {self.address}:{self.port} cannot be reached: {first_line(error)}"
            ) from None


class Pair:
    """One of two ranks. It belongs to one thread.

    Both make it at the same time; what making it costs, and what can go wrong with it, lies before the first `move`.

    Args:
        meeting: of both.
        name: of the pair, of which there is no other.
        line: to the other rank; it says when that one is gone, which neither library notices in every case.
        rank: SENDER or RECEIVER.
        device: of what is moved.
        seconds: deadline of every piece.

    Raises:
        ServiceError, RuntimeError, OSError: when the other one does not come, or the two cannot speak.
    """

    def __init__(
        self, meeting: Meeting, name: str, line: Line, *, rank: int, device: torch.device, seconds: float
    ) -> None:
        import torch
        from torch.distributed import PrefixStore

        self._line = line
        self._rank = rank
        self._seconds = seconds
        self._device = device
        self._on_gpu = device.type == "cuda"
        # Whatever a process group does waits for the stream that is current where it is called. On the trainer's own
        # stream a send would wait for all training that is queued there, a step or more; and steps would wait for the
        # send. On a stream of its own it waits for the copy of the weights alone, by an event, and nothing waits for
        # it. NCCL's kernel is beside the training kernels on the GPU then, which holds up neither: it takes a few of
        # the GPU's multiprocessors for one piece at a time, and starts when the other side is known to be there.
        # What both wait for never goes round in a circle, for the receiver needs nothing that a trainer's step makes,
        # and no step needs the receiver.
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None
        store = PrefixStore(name, meeting.store(seconds))
        address = own_address(meeting.address, meeting.port)
        # Making it may take far longer than the deadline, or for ever, where the other process dies just then: then it
        # is left to its thread. Better now than with a snapshot in hand.
        self._group: Any = self._finish(_InThread(lambda: self._make(store, address)))

    def memory(self, size: int) -> Tensor:
        """Make memory to receive into, (size,) uint8.

        Raises:
            ServiceError: when there is no room.
        """
        import torch

        try:
            # Of the stream that writes to it: what another stream has freed may be in use by kernels that are queued.
            with torch.cuda.stream(self._stream):
                return torch.empty(size, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            raise ServiceError(
                f"GPU {self._device.index} has no room to receive the weights, {size / 2**30:.1f} GiB, beside what is "
                "there: leave more of it free, or take --weights.store torchstore"
            ) from None

    def move(self, flat: Tensor, *, after: torch.cuda.Event | None = None) -> None:
        """Send `flat`, (bytes,) uint8, or receive it; afterwards it is there for every stream.

        Args:
            after: when it may be read, on a GPU.

        Raises:
            OSError, RuntimeError: when the other rank is gone, or does not move a piece in time. The pair is of no use
                then: `close` it.
        """
        import torch

        with torch.cuda.stream(self._stream):
            if self._stream is not None and after is not None:
                self._stream.wait_event(after)
            for piece in flat.split(PIECE):
                if self._rank == SENDER:
                    work = self._group.send([piece], RECEIVER, 0)
                else:
                    work = self._group.recv([piece], SENDER, 0)
                if self._on_gpu:
                    self._finish(work)
                else:  # gloo's can only be waited for, and does not notice a death in the middle of a piece
                    self._finish(_InThread(partial(work.wait, timedelta(seconds=self._seconds))))

    def close(self) -> None:
        """Free the communicator; the other rank may be dead, or in the middle of a move."""
        with suppress(RuntimeError):  # NCCL did not get free in time; what it has goes with the process
            self._group.abort()
        self._group = None

    def _make(self, store: Any, address: str) -> Any:
        import torch

        make = _nccl if self._on_gpu else _gloo
        group = make(store, self._rank, self._seconds, address)
        with torch.cuda.stream(self._stream):  # NCCL makes its communicator at the first use
            byte = self.memory(1)
            work = group.send([byte], RECEIVER, 0) if self._rank == SENDER else group.recv([byte], SENDER, 0)
            work.wait(timedelta(seconds=self._seconds))
        return group

    def _finish(self, work: Any) -> Any:
        """Wait until something is done that both do. Where the other rank has died, it would never be done."""
        deadline = time.monotonic() + self._seconds
        while not work.is_completed():
            if self._line.ended(within=_POLL_S):
                raise ConnectionError("it closed the connection")
            if time.monotonic() > deadline:
                raise TimeoutError(f"it moved nothing within {self._seconds:g} s")
        return work.wait(timedelta(seconds=self._seconds))


class _InThread(Generic[T]):
    """A blocking call whose caller can see something else meanwhile."""

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
            del error  # it would hold itself by its traceback, and all that is in there

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:
            self._error = error
        self._done.set()


def first_line(error: BaseException) -> str:
    """What a person should see of an error of torch's: not where in torch it was, nor what to look at there."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S*\] |\. This is typically .*", "", line)


def _gloo(store: Any, rank: int, seconds: float, address: str) -> Any:
    from torch.distributed import ProcessGroupGloo

    gloo: Any = ProcessGroupGloo  # the types that torch declares lack the names of its options
    options = gloo._Options()
    options._timeout = timedelta(seconds=seconds)
    # Of a machine with several networks, gloo would take the one of its host name.
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
    """A process group that is made in here raises what goes wrong where it is waited for.

    Otherwise a thread of torch's looks for it, and ends the whole process: a replica's death would be the trainer's.
    The environment is the only way to say so. torch reads it while the group is made, and so it stands for that long.
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
