"""An adapter in vLLM's LoRA slot, beside the frozen weights of the model, replaced between two steps.

Weights that a trainer publishes under PEFT's names are an adapter. Its alpha is its rank: the scaling is in B already.
Every request names the one adapter there is; on a CPU vLLM would give a request without one that of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.lora.request import LoRARequest

PREFIX = "base_model.model."
"""The beginning of PEFT's names."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM has kernels for; an adapter of another rank takes the next one's slot."""
_NUMBER = 1


def slot_arguments(rank: int) -> dict[str, Any]:
    """Arguments of vLLM's EngineArgs for an adapter of a rank up to the largest of `RANKS`; none for rank 0."""
    if not rank:
        return {}
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": next(slot for slot in RANKS if slot >= rank)}


def is_adapter(names: Iterable[str]) -> bool:
    """Whether published weights are an adapter."""
    return next(iter(names), "").startswith(PREFIX)


def request() -> LoRARequest:
    """What a request names, once an adapter is loaded; there is no file."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("published", _NUMBER, "published")


def load_adapter(worker: Any, tensors: Mapping[str, Tensor]) -> None:
    """Put an adapter into the slot of a worker, in the place of the one before it.

    Args:
        worker: vLLM's worker.
        tensors: by PEFT's names; they are copied.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    config = worker.vllm_config.lora_config
    rank = next(len(tensor) for name, tensor in tensors.items() if name.endswith(".lora_A.weight"))
    targets = sorted({name.split(".")[-3] for name in tensors})
    adapter = LoRAModel.from_lora_tensors(
        _NUMBER,
        {name: tensor.to(config.lora_dtype, copy=True) for name, tensor in tensors.items()},
        PEFTHelper.from_dict({"r": rank, "lora_alpha": rank, "target_modules": targets}),
        device="cpu" if worker.device.type == "cpu" else str(worker.device),
        dtype=config.lora_dtype,
    )
    manager = worker.model_runner.lora_manager._adapter_manager
    manager.remove_adapter(_NUMBER)
    manager.add_adapter(adapter)
    manager.activate_adapter(_NUMBER)
