"""Layout: where each tensor of a state dict lies in one flat piece of memory, whatever kind of memory that is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and a multiple of every dtype's size


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor: its dtype's name, its shape, the bytes before it."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensors end to end, each at a multiple of `ALIGNMENT`."""

    places: Mapping[str, Place]
    size: int
    """Bytes of all of it."""

    @classmethod
    def of(cls, state_dict: Mapping[str, Tensor]) -> Layout:
        places, end = {}, 0
        for name, tensor in state_dict.items():
            places[name] = Place(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end)
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        return cls(places, end)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors inside of `flat`, (at least `size`,) uint8."""
        import torch

        found = {}
        for name, place in self.places.items():
            dtype: torch.dtype = getattr(torch, place.dtype)
            nbytes = math.prod(place.shape) * dtype.itemsize
            found[name] = flat[place.offset : place.offset + nbytes].view(dtype).view(place.shape)
        return found

    def copy(self, state_dict: Mapping[str, Tensor], flat: Tensor) -> None:
        """Copy the tensors, from wherever they are, into `flat`."""
        for name, view in self.views(flat).items():
            view.copy_(state_dict[name].detach())

    def to_json(self) -> str:
        places = {name: [place.dtype, place.shape, place.offset] for name, place in self.places.items()}
        return json.dumps({"size": self.size, "tensors": places})

    @classmethod
    def from_json(cls, text: str) -> Layout:
        read = json.loads(text)
        places = {name: Place(dtype, tuple(shape), offset) for name, (dtype, shape, offset) in read["tensors"].items()}
        return cls(places, read["size"])
