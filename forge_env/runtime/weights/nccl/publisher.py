"""Publisher: the newest snapshots on the trainer's device, and the threads that send them to whoever asks."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from forge_env.core.errors import InvariantError, ServiceError
from forge_env.runtime.process.network import own_address
from forge_env.runtime.weights.nccl.communicator import SENDER, Meeting, Pair, first_line
from forge_env.runtime.weights.nccl.connection import Line
from forge_env.runtime.weights.store import KEEP
from forge_env.runtime.weights.tensor_layout import Layout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

logger = logging.getLogger(__name__)
KEY = "publisher"
"""Under which its address stands in the meeting point."""
_RETRY_S = 0.1


@dataclass(eq=False, slots=True, weakref_slot=True)
class Snapshot:
    """The weights of one version. Its memory is used again once nobody holds this object any more."""

    version: int
    layout: Layout
    flat: Tensor
    """(at least the layout's size,) uint8"""
    copied: torch.cuda.Event | None = None
    """When the copy is there, on a GPU."""


class Publisher:
    """Serves each puller from a thread of its own, so that none waits for another.

    A snapshot is held by its version's name, by whoever took it and has not committed it, and by every thread that
    sends it. Memory is made for the first `KEEP` versions, and for one more where a slow puller still reads.
    """

    def __init__(self, meeting: Meeting, *, device: torch.device, seconds: float) -> None:
        self.device = device
        self._meeting = meeting
        self._seconds = seconds
        self._lock = threading.Lock()
        self._versions: dict[int, Snapshot] = {}  # the oldest first
        self._alive: WeakSet[Snapshot] = WeakSet()
        self._flats: list[Tensor] = []
        self._listener: socket.socket | None = None
        self._is_closed = False
        self._serving: dict[Line, threading.Thread] = {}
        self._accepting: threading.Thread | None = None

    # ---- snapshots ----

    def take(self, version: int, state_dict: Mapping[str, Tensor]) -> Snapshot:
        """Copy the weights as they are for the stream that is current here; on a GPU the copy is only queued."""
        import torch

        layout = Layout.of(state_dict)
        with self._lock:
            self._check_new(version)
            self._forget(keep=KEEP - 1)  # now, and not after it: the copy goes where the oldest one was
            snapshot = Snapshot(version, layout, self._free(max(layout.size, 1)))
            self._alive.add(snapshot)
        layout.copy(state_dict, snapshot.flat)
        if self.device.type == "cuda":
            snapshot.copied = torch.cuda.Event()
            snapshot.copied.record(torch.cuda.current_stream(self.device))
        return snapshot

    def commit(self, snapshot: Snapshot) -> None:
        """Name it, and be there for pullers from the first time on."""
        with self._lock:
            self._check_new(snapshot.version)
            if self._is_closed:
                raise ServiceError(f"version {snapshot.version} of the weights was not published: the store is closed")
            if self._listener is None:
                self._listen()
            self._versions[snapshot.version] = snapshot
            self._forget(keep=KEEP)

    @property
    def allocated(self) -> int:
        """Snapshots that there is memory for."""
        return len(self._flats)

    def _check_new(self, version: int) -> None:
        if version in self._versions:
            raise InvariantError(f"version {version} of the weights was published already; a version never changes")

    def _forget(self, keep: int) -> None:
        for version in list(self._versions)[: max(0, len(self._versions) - keep)]:
            del self._versions[version]

    def _free(self, size: int) -> Tensor:
        """Memory that no snapshot has; what is too small, or left over from a slow puller, is given back."""
        import torch

        taken = {id(snapshot.flat) for snapshot in self._alive}
        free = [flat for flat in self._flats if id(flat) not in taken]
        found = next((flat for flat in free if flat.numel() >= size), None)
        self._flats = [flat for flat in self._flats if id(flat) in taken]
        room = KEEP - len(self._flats) - 1
        self._flats += [flat for flat in free if flat is not found and flat.numel() >= size][: max(0, room)]
        if found is None:
            del free  # all of it is too small, and its room is needed
            try:
                found = torch.empty(size, dtype=torch.uint8, device=self.device)
            except torch.OutOfMemoryError:
                raise ServiceError(
                    f"GPU {self.device.index} has no room for a copy of the weights, {size / 2**30:.1f} GiB, beside "
                    "the trainer: take another store with --weights.store torchstore"
                ) from None
        self._flats.append(found)
        return found

    # ---- pullers ----

    def close(self) -> None:
        """End all threads and connections, and forget all versions."""
        with self._lock:
            self._is_closed = True
            threads = [*self._serving.values(), *filter(None, [self._accepting])]
            if self._listener is not None:
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
            for line in self._serving:
                line.hang_up()
        deadline = time.monotonic() + self._seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._versions.clear()
            self._flats.clear()
            self._listener = None

    def _listen(self) -> None:
        listener = None
        try:
            address = own_address(self._meeting.address, self._meeting.port)
            listener = socket.create_server((address, 0))
            self._meeting.store(self._seconds).set(KEY, f"{address} {listener.getsockname()[1]}")
        except (OSError, RuntimeError, ServiceError) as error:
            if listener is not None:
                listener.close()
            raise ServiceError(f"the weights cannot be offered to the engines: {first_line(error)}") from None
        self._listener = listener
        self._accepting = threading.Thread(target=self._accept, args=(listener,), name="weights", daemon=True)
        self._accepting.start()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    line = Line(listener.accept()[0], self._seconds)
                except OSError:
                    if self._is_closed:
                        return
                    time.sleep(_RETRY_S)  # the puller was gone again, or there are too many files open just now
                    continue
                thread = threading.Thread(target=self._serve, args=(line,), name="weights-pair", daemon=True)
                with self._lock:
                    if self._is_closed:
                        line.close()
                        return
                    self._serving[line] = thread
                    thread.start()

    def _serve(self, line: Line) -> None:
        """Answer one puller until it is gone; what it may do wrong is its own loss."""
        pair = None
        try:
            line.prove(self._meeting.token, role="publisher", to="puller")
            name = f"pair/{secrets.token_hex(8)}"
            line.say(pair=name, device=self.device.type, gpu=gpu_id(self.device))
            pair = Pair(self._meeting, name, line, rank=SENDER, device=self.device, seconds=self._seconds)
            while True:
                self._send(line, pair, int(line.hear(forever=True)["version"]))
        except (OSError, RuntimeError, ServiceError, LookupError, TypeError, ValueError) as error:
            if not self._is_closed:
                logger.info("a puller of the weights is gone: %s", first_line(error))
        finally:
            if pair is not None:
                pair.close()
            with self._lock:
                del self._serving[line]
            line.close()

    def _send(self, line: Line, pair: Pair, version: int) -> None:
        with self._lock:
            snapshot, present = self._versions.get(version), list(self._versions)
        if snapshot is None:
            line.say(refused=no_version(version, present))
            return
        try:
            line.say(layout=snapshot.layout.to_json())
            line.hear()  # it has the memory
            pair.move(snapshot.flat[: snapshot.layout.size], after=snapshot.copied)
            line.say(sent=version)
        finally:
            del snapshot  # now, and not when somebody is done with the error that has this frame in its traceback


def no_version(version: int, present: list[int]) -> str:
    """What is said to who asks for a version that is not there, or no longer."""
    return f"the weight store has no version {version}; it has {', '.join(map(str, sorted(present))) or 'none'}"


def gpu_id(device: torch.device) -> str:
    """Which GPU it is, whatever number it has here; "" for a CPU."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
