"""Adapters in vLLM's LoRA slots, beside the frozen weights of the model, loaded and replaced between two steps.

Weights that a trainer publishes under PEFT's names are an adapter, and requests without a name are computed with it.
Until one comes they have an adapter that adds 0. On CPU, vLLM runs a request without an adapter with the batch's
adapter, so every request names one. Further adapters have names, see `AdapterTable`. The alpha of all is their rank:
the scaling is in B already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from forge_env.core.errors import PolicyError

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.lora.request import LoRARequest

PREFIX = "base_model.model."
"""PEFT's names begin with it."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks of vLLM's kernels; an adapter of another rank takes the next one's slot."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The matrices of a transformer block that an adapter may have, by Hugging Face's names. vLLM would also keep slots for
the embedding and the output layer, and compute with them at each token."""


PUBLISHED = 1
"""The number of the slot of requests without a name."""
_PLACES: WeakKeyDictionary[Any, dict[int, dict[str, Tensor]]] = WeakKeyDictionary()
"""For each of vLLM's managers, the matrices of the adapter in a slot, in place."""
_NAME = r"[\w.-]{1,64}"
_A, _B = ".lora_A.weight", ".lora_B.weight"


def slot_arguments(rank: int, num_names: int = 0) -> dict[str, Any]:
    """Arguments of vLLM's EngineArgs for adapters of a rank up to the largest of `RANKS`; none for rank 0.

    Args:
        rank: of the adapters, at most.
    """
    if not rank:
        return {}
    return {
        "enable_lora": True,
        "max_loras": 1 + num_names,
        "max_lora_rank": slot_rank(rank),
        "lora_target_modules": list(TARGETS),
    }


def slot_rank(rank: int) -> int:
    """The rank of the slot for an adapter's rank; the largest slot's if the rank is too large."""
    return next((slot for slot in RANKS if slot >= rank), RANKS[-1])


def is_adapter(names: Iterable[str]) -> bool:
    return next(iter(names), "").startswith(PREFIX)


class _Slot(NamedTuple):
    number: int  # from 2 on; 1 is the slot of requests without a name
    version: int
    load: int  # counts the loads of all adapters: a version may be loaded twice, with other tensors


class AdapterTable:
    """The adapters of an engine, by name, and their versions; the name "" is for requests without a name.

    Args:
        rank: of an adapter, at most; 0 is an engine without adapters.
    """

    def __init__(self, rank: int, num_names: int) -> None:
        self._rank, self._most = rank, num_names
        self._slots: dict[str, _Slot] = {}
        self._loads = 0

    @property
    def names(self) -> list[str]:
        return sorted(self._slots)

    def free_slot(self, name: str, tensors: Mapping[str, Tensor]) -> int:
        """The number of the slot for an adapter; its own slot if it is replaced."""
        if not re.fullmatch(_NAME, name):
            raise PolicyError(f"an adapter is named {name!r}; a name is letters, digits and . _ -, 64 at most")
        wrong = next((key for key in tensors if not (key.startswith(PREFIX) and key.endswith((_A, _B)))), "")
        if wrong or not tensors:
            raise PolicyError(f"adapter {name} has {wrong or 'no tensors'}: it needs lora_A and lora_B by PEFT's names")
        rank = max(len(tensor) for key, tensor in tensors.items() if key.endswith(_A))
        if rank > self._rank:
            raise PolicyError(
                f"adapter {name} has rank {rank}, and the engine's slots have {self._rank}: start it with a larger "
                "EngineSettings.lora_rank"
            )
        if name in self._slots:
            return self._slots[name].number
        in_use = {slot.number for slot in self._slots.values()}
        free = [number for number in range(2, 2 + self._most) if number not in in_use]
        if not free:
            raise PolicyError(
                f"there is no slot for adapter {name}: the engine has {self._most} of them, taken by "
                f"{', '.join(self.names) or 'none'}; drop one, or start it with more EngineSettings.named_adapters"
            )
        return free[0]

    def put(self, name: str, number: int, version: int) -> None:
        self._loads += 1
        self._slots[name] = _Slot(number, version, self._loads)

    def slot(self, name: str) -> int:
        if name not in self._slots:
            raise PolicyError(f"there is no adapter {name!r} in the engine; it has {', '.join(self.names) or 'none'}")
        return self._slots[name].number

    def drop(self, name: str) -> None:
        del self._slots[name]

    def request(self, name: str) -> LoRARequest | None:
        """The adapter in vLLM's form for a request; there is no file. None in an engine without adapters."""
        if not self._rank and not name:
            return None
        from vllm.lora.request import LoRARequest

        number = self.slot(name) if name else PUBLISHED
        return LoRARequest(name or "published", number, name or "published")

    def salt(self, name: str, version: int) -> str:
        """A salt for the prefix cache: prefixes of other weights, or of an adapter with the same name, have another
        one."""
        return f"{version} {name} {self._slots[name].load}" if name else str(version)

    def stamp(self, version: int) -> str:
        """All versions in one text, which vLLM keeps for every token; `version_of` reads it."""
        return " ".join([str(version), *(f"{name}={slot.version}" for name, slot in self._slots.items())])


def version_of(stamp: str, name: str) -> int:
    """The version that a token of a request was sampled with, from the `AdapterTable.stamp` at that time."""
    base_version, *entries = stamp.split(" ")
    return int(dict(entry.split("=") for entry in entries)[name]) if name else int(base_version)


def load_adapter(worker: Any, number: int, tensors: Mapping[str, Tensor]) -> None:
    """Put an adapter into a slot of a worker, instead of the one before it.

    The next adapter with the same names and shapes is copied over the last one. This takes a few kernels; vLLM's own
    way takes a dozen for each matrix, 18 ms in all for a model of 8B on an H200.

    Args:
        tensors: by PEFT's names; they are copied. An empty mapping is an adapter that adds 0.
    """
    import torch
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    config = worker.vllm_config.lora_config
    manager = worker.model_runner.lora_manager._adapter_manager
    slots = _PLACES.setdefault(manager, {})
    places = slots.get(number, {})
    if tensors and _shapes(places) == _shapes(tensors):
        with torch.no_grad():
            torch._foreach_copy_([places[name] for name in tensors], list(tensors.values()), non_blocking=True)
        return
    if tensors:
        rank = next(len(tensor) for name, tensor in tensors.items() if name.endswith(_A))
        targets = sorted({name.split(".")[-3] for name in tensors})
        adapter = LoRAModel.from_lora_tensors(
            number,
            {name: tensor.to(config.lora_dtype, copy=True) for name, tensor in tensors.items()},
            PEFTHelper.from_dict({"r": rank, "lora_alpha": rank, "target_modules": targets}),
            device="cpu" if worker.device.type == "cpu" else str(worker.device),
            dtype=config.lora_dtype,
        )
    else:
        embedding_modules = worker.model_runner.lora_manager.embedding_modules
        adapter = manager.create_dummy_lora(number, 1, embedding_modules)
    drop_adapter(worker, number)
    manager.add_adapter(adapter)
    manager.activate_adapter(number)
    if worker.vllm_config.parallel_config.tensor_parallel_size == 1:  # otherwise a worker has slices of the matrices
        slots[number] = _find_places(manager, number, tensors)


def drop_adapter(worker: Any, number: int) -> None:
    manager = worker.model_runner.lora_manager._adapter_manager
    _PLACES.get(manager, {}).pop(number, None)
    manager.remove_adapter(number)


def _find_places(manager: Any, number: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of an active adapter in the layers' memory, by PEFT's names; none unless all are found."""
    index = manager.lora_index_to_id.index(number)
    places: dict[str, Tensor] = {}
    for name, layer in manager.modules.items():
        for part, a, b in zip(
            manager.packed_modules.get(name, [name]), layer.lora_a_stacked, layer.lora_b_stacked, strict=False
        ):
            if (first := tensors.get(f"{PREFIX}{part}{_A}")) is not None:
                places[f"{PREFIX}{part}{_A}"] = a[index, 0, : len(first), : first.shape[1]]
            if (second := tensors.get(f"{PREFIX}{part}{_B}")) is not None:
                places[f"{PREFIX}{part}{_B}"] = b[index, 0, : len(second), : second.shape[1]]
    return places if places.keys() == tensors.keys() else {}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in tensors.items()}
