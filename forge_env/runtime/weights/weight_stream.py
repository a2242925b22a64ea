"""WeightStream: weights that come one tensor at a time; the layout of all of them is known before the first one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_env.core.errors import InvariantError
from forge_env.runtime.weights.tensor_layout import TensorLayout

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class WeightStream:
    """The weights for a snapshot. It can be read once.

    A store allocates the snapshot from `layout`, and copies each tensor straight into it. So no process needs memory
    for all weights beside the snapshot: if they are gathered from many ranks, one tensor exists at a time.
    """

    layout: TensorLayout
    device: torch.device
    """The device of the tensors."""
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
