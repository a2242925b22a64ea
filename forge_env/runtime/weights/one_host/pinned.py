"""Mapped memory that a GPU reads and writes by itself: copies are as fast as the bus, not as one thread of the host."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_READ_ONLY = 8  # cudaHostRegisterReadOnly


def pin(mapping: mmap.mmap, flat: Tensor, *, read_only: bool = False) -> None:
    """Register memory with CUDA until it is unmapped. Where CUDA refuses, copies stay slow, and nothing else changes.

    Args:
        mapping: that `flat` is a view of.
        flat: (size,) uint8.
        read_only: whether the mapping may not be written to.
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
