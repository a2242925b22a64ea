"""Snapshots in the shared memory of one host: written once, and read in place."""

from __future__ import annotations

import ctypes
import mmap
import os
import warnings
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from forge_env.core.errors import ServiceError
from forge_env.runtime.weights.one_host.segment_store import SegmentStore
from forge_env.runtime.weights.one_host.store_folder import SHARED_MEMORY
from forge_env.runtime.weights.store import StoreRequest, in_words, refusal_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class SharedMemoryStore(SegmentStore):
    """Segments are files in /dev/shm.

    The tensors of `fetch` are views of the snapshot itself, mapped for reading only: writing to one ends the process.
    """

    title: ClassVar[str] = "shared memory"

    @classmethod
    def reason(cls, request: StoreRequest) -> str:
        if request.hosts > 1 or not has_room(SNAPSHOTS * request.size):
            return ""
        where = request.too_much if request.all_on_gpus else "one host"
        return f"{where}, and {SHARED_MEMORY} has room for {SNAPSHOTS} of {in_words(request.size)}"

    @classmethod
    def refusal(cls, request: StoreRequest, instead: str) -> str:
        size = SNAPSHOTS * request.size
        if (refusal := super().refusal(request, instead)) or has_room(size):
            return refusal
        needed = f"the {in_words(size)} that {SNAPSHOTS} snapshots take"
        problem = f"and {SHARED_MEMORY} has {in_words(room())} free of {needed}"
        return refusal_text(problem, "make it larger (docker run --shm-size)", instead)

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._readable: dict[str, Tensor] = {}  # by segment: mapping one again takes as long as copying it

    def _make(self, segment: Path, size: int, device: torch.device) -> Tensor:
        import torch

        try:
            with segment.open("r+b") as file:
                # Reserved now: if there is no room for a page, the first write to it would end the process.
                os.posix_fallocate(file.fileno(), 0, size)
                mapping = mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            raise ServiceError(
                f"{SHARED_MEMORY} cannot take a snapshot of the weights, {in_words(size)}: {error.strerror}, with "
                f"{in_words(room())} free: free some, make it larger (docker run --shm-size), or leave "
                "the choice of another store to --weights.store auto"
            ) from None
        flat = torch.frombuffer(mapping, dtype=torch.uint8)
        if device.type == "cuda":
            pin(mapping, flat)
        return flat

    def _find(self, segment: Path) -> Tensor | None:
        import torch

        with segment.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:  # its writer was killed before the memory was reserved
                return None
            mapping = mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return torch.frombuffer(mapping, dtype=torch.uint8)

    def _map(self, segment: Path) -> Tensor:
        import torch

        for name in list(self._readable):
            if not (self.folder / name).exists():
                self._readable.pop(name, None)
        flat = self._readable.get(segment.name)
        if flat is None:
            with segment.open("rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given buffer is not writable")  # on purpose
                flat = torch.frombuffer(mapping, dtype=torch.uint8)
            if torch.cuda.is_initialized():  # it copies to a GPU
                pin(mapping, flat, read_only=True)
            self._readable[segment.name] = flat
        return flat


SNAPSHOTS = SharedMemoryStore.keep + 1
"""Shared memory must have room for this number: a slow replica may hold one version more than the store keeps."""


def room() -> int:
    """Free bytes of /dev/shm; 0 if this user cannot write to it."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        return 0
    status = os.statvfs(SHARED_MEMORY)
    return status.f_bavail * status.f_frsize


def has_room(size: int) -> bool:
    """Whether /dev/shm can take this number of bytes."""
    return room() >= size


_READ_ONLY = 8  # cudaHostRegisterReadOnly


def pin(mapping: mmap.mmap, flat: Tensor, *, read_only: bool = False) -> None:
    """Register memory with CUDA until it is unmapped. Where CUDA refuses, copies stay slow, and nothing else changes.

    Args:
        flat: (size,) uint8.
    """
    runtime, address = _runtime(), flat.data_ptr()
    if runtime is None:
        return
    if runtime.cudaHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)), _READ_ONLY * read_only):
        runtime.cudaGetLastError()  # torch would take it for that of its next kernel
    else:
        weakref.finalize(mapping, runtime.cudaHostUnregister, ctypes.c_void_p(address)).atexit = False


@cache
def _runtime() -> ctypes.CDLL | None:
    """CUDA's runtime library, which torch has loaded; None without it."""
    import torch

    try:
        return ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}") if torch.version.cuda else None
    except OSError:
        return None
