"""TensorLayout: the place of each tensor of a state dict in one flat piece of memory. WeightStream: its tensors, one at
a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_env.core.errors import InvariantError, ServiceError

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


@dataclass(frozen=True, slots=True)
class WeightStream:
    """The weights for a snapshot. It can be read once.

    A store allocates the snapshot from `layout`, and copies each tensor straight into it. So no process needs memory
    for all weights beside the snapshot: if they are gathered from many ranks, one tensor exists at a time.
    """

    layout: TensorLayout
    device: torch.device
    tensors: Iterable[tuple[str, Tensor]]
    """Every name of the layout once, in any order, with a tensor of the layout's shape and dtype."""

    @classmethod
    def of(cls, state_dict: Mapping[str, Tensor]) -> WeightStream:
        """The stream of tensors that all exist already."""
        import torch

        device = next((tensor.device for tensor in state_dict.values()), torch.device("cpu"))
        return cls(TensorLayout.of(state_dict), device, state_dict.items())

    def copy_to(self, flat: Tensor) -> None:
        """Copy every tensor to its place in `flat`, (at least the layout's size,) uint8, on any device."""
        missing = self.layout.views(flat)
        for name, tensor in self.tensors:
            view = missing.pop(name, None)
            # copy_ would silently broadcast and cast.
            if view is None or view.shape != tensor.shape or view.dtype != tensor.dtype:
                form = f"{tuple(tensor.shape)} {tensor.dtype}"
                raise InvariantError(f"weight {name} came as {form}: the layout of the snapshot says otherwise")
            view.copy_(tensor.detach())
            del tensor  # before the next one is gathered
        if missing:
            raise InvariantError(f"{len(missing)} weights did not come, {next(iter(missing))} among them")
