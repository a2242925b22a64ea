"""Snapshots in the trainer's GPU memory. Other processes of the host read them in place, by CUDA IPC."""

from __future__ import annotations

import atexit
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from forge_env.core.errors import ServiceError
from forge_env.runtime.weights.one_host.segment_store import SegmentStore
from forge_env.runtime.weights.one_host.store_folder import OUTSIDE, SHARED_MEMORY
from forge_env.runtime.weights.store import StoreRequest
from forge_env.runtime.weights.tensor_layout import allocate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# The places of two arguments of torch.multiprocessing.reductions.rebuild_cuda_tensor.
_DEVICE, _COUNTER = 6, 11


class CudaIpcStore(SegmentStore):
    """Segments are copies of the weights on the GPU of the trainer's first rank, usually one of them.

    A segment's file has the handle with which another process opens the memory. The tensors of `fetch` are views of the
    snapshot itself, and torch cannot forbid writing to them. They end with the trainer's process.

    Every process has one GPU, the first that it sees; the GPUs of the host must reach each other's memory.
    """

    title: ClassVar[str] = "GPU memory (CUDA IPC)"
    keep: ClassVar[int] = 1
    on_gpu: ClassVar[bool] = True

    @classmethod
    def reason(cls, request: StoreRequest) -> str:
        return "trainer and engine are on GPUs of one host" if request.hosts == 1 and request.fits_gpus else ""

    @classmethod
    def refusal(cls, request: StoreRequest, instead: str) -> str:
        return super().refusal(request, instead) or request.lacks_gpus(instead)

    async def close(self) -> None:
        # At its end torch removes the counter file of this process's own memory, and aborts if the file is gone. The
        # driver needs its file as long as this process lives: without it, nobody could open what the next store makes.
        for name in self._writable:
            (self.folder / name).with_suffix(OUTSIDE).unlink(missing_ok=True)
        if self._writable:
            atexit.register(_remove_files_of_driver)
        await super().close()

    def _make(self, segment: Path, size: int, device: torch.device) -> Tensor:
        from torch.multiprocessing.reductions import reduce_tensor

        if device.type != "cuda":
            raise ServiceError(
                f"the weights are on {device}, and the store hands over GPU memory: --weights.store shared_memory"
            )
        remedy = "beside the trainer: take another store with --weights.store shared_memory"
        with _plain_memory():
            flat = allocate(size, device, purpose="for a copy of the weights", remedy=remedy)
        rebuild, arguments = reduce_tensor(flat)
        # torch counts the users of the memory in a file, which stays behind if the trainer is killed.
        counter = SHARED_MEMORY / arguments[_COUNTER].decode().lstrip("/")
        segment.with_suffix(OUTSIDE).write_text("\n".join(map(str, [counter, *_files_of_driver()])))
        segment.write_bytes(pickle.dumps((rebuild, arguments)))
        return flat

    def _find(self, segment: Path) -> Tensor | None:
        return None  # it was in the memory of a trainer that has ended

    def _map(self, segment: Path) -> Tensor:
        import torch

        rebuild: Callable[..., Tensor]
        rebuild, arguments = pickle.loads(segment.read_bytes())
        local: list[Any] = list(arguments)
        local[_DEVICE] = torch.cuda.current_device()  # the trainer's GPU has another number in this process
        try:
            return rebuild(*local)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ServiceError(f"the weights in the trainer's GPU memory cannot be opened: {reason}") from None

    def _finish(self) -> None:
        import torch

        torch.cuda.synchronize()


def _files_of_driver() -> Iterator[Path]:
    """The files in shared memory that the CUDA driver makes for this process, and never removes.

    torch hands memory over with an event that other processes can wait for. The driver has a file for each process with
    such events, cuda.shm.USER.PROCESS.NUMBER with both in hexadecimal.
    """
    return SHARED_MEMORY.glob(f"cuda.shm.*.{os.getpid():x}.*")


def _remove_files_of_driver() -> None:
    for path in _files_of_driver():
        path.unlink(missing_ok=True)


@contextmanager
def _plain_memory() -> Iterator[None]:
    """Allocate outside of torch's expandable segments, which some processes may not open."""
    import torch

    before = torch._C._accelerator_getAllocatorSettings()
    if "expandable_segments:True" not in before:
        yield
        return
    # Settings that are not named are set back to their defaults.
    torch._C._accelerator_setAllocatorSettings(before.replace("expandable_segments:True", "expandable_segments:False"))
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(before)
