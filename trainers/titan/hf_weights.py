"""The weights of a TorchTitan model under Hugging Face names: streamed out tensor by tensor, and read shard by shard.

One parameter of the model is one tensor of Hugging Face, with three exceptions, which depend on the family and the
device:

- a fused projection (wqkv) is the projections of queries, keys and values,
- Llama's projections of queries and keys have their rows in another order,
- a matrix of all experts of a layer is one of each expert, or two, of its gate and its up.

A weight with an adapter (lora.py) comes out merged: both are one matrix. `load` leaves adapters as they are.

Both directions handle one parameter at a time, so a process needs memory for one parameter beside the model. On the way
out this is a complete parameter in the wanted dtype. On the way in a rank reads its own slice of the file; for the
first two exceptions it reads all of the parameter's tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX as WRAPPER

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common.attention import FusedQKVLinear
from torchtitan.protocols.state_dict_adapter import StateDictAdapter

from agents.model_weights import HEAD, check_weights
from forge_env.core.errors import InvariantError
from trainers.titan.experts import is_expert
from trainers.titan.lora import is_adapter, layers_with_adapter
from trainers.titan.shards import gather_full, reshard, shard_of
from trainers.titan.weight_files import WeightFiles


class HFWeights:
    """The weights of a model, sharded or not.

    Args:
        module: the model; its parameters are on their device, as plain tensors or DTensors.
        ties_head: whether embedding and output layer share one weight, which is then listed once.
    """

    def __init__(self, module: nn.Module, adapter: StateDictAdapter, *, ties_head: bool) -> None:
        self._module = module
        self._adapter = adapter
        self._ties_head = ties_head
        self._adapters = layers_with_adapter(module)
        self._qkv_parts: dict[str, Any] = {
            f"{name}.".replace(WRAPPER, ""): part
            for name, part in module.named_modules()
            if isinstance(part, FusedQKVLinear)
        }

    def layout(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Names and shapes in the order of `stream`, as tensors on the meta device. No collective."""
        return {
            hf_name: tensor
            for name, parameter in self._parameters()
            for hf_name, tensor in self._to_hf(name, _meta(parameter, _own(parameter, dtype))).items()
        }

    @contextmanager
    def stream(self, dtype: torch.dtype) -> Iterator[Iterator[tuple[str, Tensor]]]:
        """Give the weights one by one, each complete, on the model's device.

        This is a collective: every rank enters it; the first rank receives the tensors, the others receive none. If the
        block ends early, for example by an error, the remaining tensors are still gathered, so no rank waits forever. A
        tensor may be the live weight itself: copy it before asking for the next one.
        """
        tensors = self._gather(dtype)
        try:
            yield tensors
        finally:
            for _ in tensors:
                pass

    def _gather(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        is_first = dist.get_rank() == 0
        for name, parameter in self._parameters():
            if is_first:
                yield from self._to_hf(name, self._merge(name, parameter, dtype)).items()
            else:
                self._merge(name, parameter, dtype)

    def _merge(self, name: str, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """A complete parameter, with its adapter merged in float32 and then cast; a collective if it is sharded."""
        part = self._adapters.get(name)
        if part is None:
            return gather_full(parameter, _own(parameter, dtype))
        base, a, b = (gather_full(each, torch.float32) for each in (parameter, part.lora_a.weight, part.lora_b.weight))
        return torch.addmm(base, b, a, alpha=part._lora_scaling).to(dtype)

    @torch.no_grad()
    def load(self, files: WeightFiles) -> None:
        """Replace all weights. Each rank reads the slices of its shards; no collective."""
        expected = {name: tuple(tensor.shape) for name, tensor in self.layout(torch.float32).items()}
        check_weights(files.where, expected, files.shapes)
        for name, parameter in self._parameters():
            shard, place = shard_of(name, parameter)
            on_meta = _meta(parameter, parameter.dtype)
            pieces = self._to_hf(name, on_meta)
            if shard.numel() == 0:  # there are more ranks than rows
                continue
            if list(map(id, pieces.values())) == [id(on_meta)]:  # the adapter changes nothing
                shard.copy_(files.read(next(iter(pieces)), place))
            elif is_expert(name):
                of_one = len(pieces) // parameter.shape[0]  # gate and up of an expert may be one matrix
                rows = (row for expert in shard for row in expert.chunk(of_one))
                first, end = (of_one * place[0].indices(parameter.shape[0])[bound] for bound in (0, 1))
                for row, hf_name in zip(rows, list(pieces)[first:end], strict=True):
                    row.copy_(files.read(hf_name, place[1:] if of_one == 1 else None))
            else:
                shard.copy_(self._from_hf(name, {hf_name: files.read(hf_name) for hf_name in pieces})[place])

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters but adapters, and the buffers of checkpoints, under TorchTitan's names, sharded as between two
        steps."""
        reshard(self._module)
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            if not (self._ties_head and name == HEAD) and not is_adapter(name):
                yield name.replace(WRAPPER, ""), parameter
        for prefix, part in self._module.named_modules():
            for name in part._buffers.keys() - part._non_persistent_buffers_set:
                yield f"{prefix}.{name}".replace(WRAPPER, ""), part.get_buffer(name)

    def _to_hf(self, name: str, parameter: Tensor) -> dict[str, Tensor]:
        """Convert one parameter to Hugging Face's tensors; works on the meta device, too."""
        state = {name: parameter}
        for prefix, part in self._qkv_parts.items():
            if name.startswith(prefix):
                part._split_qkv_on_save(part, state, prefix, {})
        pieces = self._adapter.to_hf(state)
        if not pieces:
            raise InvariantError(f"parameter {name} of the model has no name in Hugging Face's form")
        return pieces

    def rows(self, name: str, parameter: Tensor) -> tuple[str, Tensor]:
        """The Hugging Face name of a matrix that is also one matrix there, and for each of its rows there the row
        here."""
        numbers = torch.arange(parameter.shape[0], dtype=torch.int32)[:, None].expand(parameter.shape)
        ((hf_name, rows),) = self._to_hf(name, numbers).items()
        return hf_name, rows[:, 0].long()

    def _from_hf(self, name: str, pieces: dict[str, Tensor]) -> Tensor:
        """Convert Hugging Face's tensors to the parameter that consists of them."""
        # For a tied model the adapter looks for the embedding, unless there is an output layer.
        state = self._adapter.from_hf({HEAD: torch.empty(0)} | pieces)
        for prefix, part in self._qkv_parts.items():
            if name.startswith(prefix):
                part._merge_qkv_on_load(part, state, prefix)
        parameter: Tensor = state[name]
        return parameter


def _own(parameter: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a tensor is published: a buffer keeps its own."""
    return dtype if isinstance(parameter, nn.Parameter) else parameter.dtype


def _meta(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(parameter.shape, dtype=dtype, device="meta")
