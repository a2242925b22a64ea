"""Publisher: the newest snapshots on the trainer's device, and the threads that send them to pullers."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from contrib.clusters.addresses import own_address
from contrib.clusters.nccl.communicator import SENDER, PairCommunicator, Rendezvous, first_line
from contrib.clusters.nccl.connection import Connection
from forge_env.core.errors import ServiceError
from forge_env.runtime.weights.store import no_version, published_already
from forge_env.runtime.weights.tensor_layout import TensorLayout, WeightStream, allocate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

logger = logging.getLogger(__name__)
KEEP = 1  # versions: each takes as much of the trainer's GPU as the engine's weights
KEY = "publisher"
"""The key of the publisher's address in the TCPStore of the rendezvous."""
_RETRY_S = 0.1


@dataclass(eq=False, slots=True, weakref_slot=True)
class Snapshot:
    """The weights of one version. Its memory is used again when nobody holds this object any more."""

    version: int
    layout: TensorLayout
    flat: Tensor
    """(at least the layout's size,) uint8"""
    copy_event: torch.cuda.Event | None = None
    """On a GPU, the event after which the copy is complete."""


class Publisher:
    """Serves each puller from a thread of its own, so that no puller waits for another.

    A snapshot is in use by its version, by the caller between `take` and `commit`, and by every thread that sends it.
    Memory is allocated for the first `KEEP` versions, and for one more if a slow puller still reads.
    """

    def __init__(self, rendezvous: Rendezvous, *, device: torch.device, seconds: float) -> None:
        self.device = device
        self._rendezvous = rendezvous
        self._seconds = seconds
        self._lock = threading.Lock()
        self._versions: dict[int, Snapshot] = {}  # the oldest first
        self._alive: WeakSet[Snapshot] = WeakSet()
        self._flats: list[Tensor] = []
        self._listener: socket.socket | None = None
        self._is_closed = False
        self._serving: dict[Connection, threading.Thread] = {}
        self._accepting: threading.Thread | None = None

    # ---- snapshots ----

    def take(self, version: int, weights: WeightStream) -> Snapshot:
        """Copy the weights on the current stream; on a GPU the copy is only queued."""
        import torch

        layout = weights.layout
        with self._lock:
            self._check_new(version)
            self._forget(keep=KEEP - 1)  # before the copy, which goes where the oldest version was
            snapshot = Snapshot(version, layout, self._free(max(layout.size, 1)))
            self._alive.add(snapshot)
        try:
            weights.copy_to(snapshot.flat)
        except BaseException:
            self._alive.discard(snapshot)  # now: the error's traceback refers to it as long as the error lives
            raise
        if self.device.type == "cuda":
            snapshot.copy_event = torch.cuda.Event()
            snapshot.copy_event.record(torch.cuda.current_stream(self.device))
        return snapshot

    def commit(self, snapshot: Snapshot) -> None:
        """Let a snapshot be fetched; the first commit starts to listen for pullers."""
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
        """The number of snapshots with memory."""
        return len(self._flats)

    def _check_new(self, version: int) -> None:
        if version in self._versions:
            raise published_already(version)

    def _forget(self, keep: int) -> None:
        for version in list(self._versions)[: max(0, len(self._versions) - keep)]:
            del self._versions[version]

    def _free(self, size: int) -> Tensor:
        """Memory that no snapshot has. Memory that is too small, or left over from a slow puller, is freed."""
        ids = {id(snapshot.flat) for snapshot in self._alive}
        free = [flat for flat in self._flats if id(flat) not in ids]
        fit = next((flat for flat in free if flat.numel() >= size), None)
        self._flats = [flat for flat in self._flats if id(flat) in ids]
        room = KEEP - len(self._flats) - 1
        self._flats += [flat for flat in free if flat is not fit and flat.numel() >= size][: max(0, room)]
        if fit is not None:
            self._flats.append(fit)
            return fit
        del free  # all of it is too small, and its room is needed
        remedy = "beside the trainer: take another store with --weights.store torchstore"
        self._flats.append(allocate(size, self.device, purpose="for a copy of the weights", remedy=remedy))
        return self._flats[-1]

    # ---- pullers ----

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            threads = [*self._serving.values(), *filter(None, [self._accepting])]
            if self._listener is not None:
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
            for connection in self._serving:
                connection.shut_down()
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
            address = own_address(self._rendezvous.address, self._rendezvous.port)
            listener = socket.create_server((address, 0))
            self._rendezvous.store(self._seconds).set(KEY, f"{address} {listener.getsockname()[1]}")
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
                    connection = Connection(listener.accept()[0], self._seconds)
                except OSError:
                    if self._is_closed:
                        return
                    time.sleep(_RETRY_S)  # the puller is gone again, or this process has too many files open now
                    continue
                thread = threading.Thread(target=self._serve, args=(connection,), name="weights-pair", daemon=True)
                with self._lock:
                    if self._is_closed:
                        connection.close()
                        return
                    self._serving[connection] = thread
                    thread.start()

    def _serve(self, connection: Connection) -> None:
        """Answer one puller until it is gone. An error of the puller ends this connection, and nothing else."""
        communicator = None
        try:
            connection.authenticate(self._rendezvous.token, role="publisher", to="puller")
            name = f"pair/{secrets.token_hex(8)}"
            connection.send(pair=name, device=self.device.type, gpu=gpu_id(self.device))
            communicator = PairCommunicator(
                self._rendezvous, name, connection, rank=SENDER, device=self.device, seconds=self._seconds
            )
            while True:
                self._send(connection, communicator, int(connection.receive(forever=True)["version"]))
        except (OSError, RuntimeError, ServiceError, LookupError, TypeError, ValueError) as error:
            if not self._is_closed:
                logger.info("a puller of the weights is gone: %s", first_line(error))
        finally:
            if communicator is not None:
                communicator.close()
            with self._lock:
                del self._serving[connection]
            connection.close()

    def _send(self, connection: Connection, communicator: PairCommunicator, version: int) -> None:
        with self._lock:
            snapshot, present = self._versions.get(version), list(self._versions)
        if snapshot is None:
            connection.send(refused=no_version(version, present))
            return
        try:
            connection.send(layout=snapshot.layout.to_json())
            connection.receive()  # the puller has memory for it
            communicator.transfer(snapshot.flat[: snapshot.layout.size], after=snapshot.copy_event)
        finally:
            snapshot = None  # now: an error that is stored refers to this frame by its traceback
        connection.send(sent=version)  # last: the trainer may publish at once, into the memory of this snapshot


def gpu_id(device: torch.device) -> str:
    """The UUID of a GPU, which is the same in every process; "" for a CPU."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
