"""TensorLayout: the place of each tensor of a state dict in one flat piece of memory, of any kind."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_env.core.errors import ServiceError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and a multiple of every dtype's size


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its dtype's name, its shape, the bytes before it."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Tensors end to end, each at a multiple of `ALIGNMENT`."""

    entries: Mapping[str, TensorEntry]
    size: int
    """Bytes of all tensors, with the gaps between them."""

    @classmethod
    def of(cls, state_dict: Mapping[str, Tensor]) -> TensorLayout:
        """The layout of tensors. Only their shapes and dtypes are read, so they may be on the meta device."""
        entries, end = {}, 0
        for name, tensor in state_dict.items():
            entries[name] = TensorEntry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end)
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        return cls(entries, end)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors inside of `flat`, (at least `size`,) uint8."""
        import torch

        views = {}
        for name, entry in self.entries.items():
            dtype: torch.dtype = getattr(torch, entry.dtype)
            nbytes = math.prod(entry.shape) * dtype.itemsize
            views[name] = flat[entry.offset : entry.offset + nbytes].view(dtype).view(entry.shape)
        return views

    def to_json(self) -> str:
        tensors = {name: [entry.dtype, entry.shape, entry.offset] for name, entry in self.entries.items()}
        return json.dumps({"size": self.size, "tensors": tensors})

    @classmethod
    def from_json(cls, text: str) -> TensorLayout:
        content = json.loads(text)
        entries = {
            name: TensorEntry(dtype, tuple(shape), offset)
            for name, (dtype, shape, offset) in content["tensors"].items()
        }
        return cls(entries, content["size"])


def allocate(size: int, device: torch.device, *, purpose: str, remedy: str) -> Tensor:
    """Allocate the memory of a snapshot, (size,) uint8.

    Args:
        purpose: for the error, for example "to receive the weights"; the error adds the size.
        remedy: what a person can do if there is no room.
    """
    import torch

    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        raise ServiceError(f"GPU {device.index} has no room {purpose}, {size / 2**30:.1f} GiB, {remedy}") from None
