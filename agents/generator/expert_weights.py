"""New weights for the experts of a model in vLLM. A layer's experts are one tensor there, in a kernel's own layout.

On a CPU the kernel packs the weights once, when it is made. Without a new kernel, new weights would be used as if they
were packed. On a GPU the kernel is vLLM's Triton kernel (see agents/generator/start.py), which takes the weights as
they are.

Hugging Face has the experts of gpt-oss as stacks, one tensor for a matrix of all experts of a layer. vLLM writes a
stack, and the sinks of attention, past its own `reload_weights`, which then restores the old ones; and on all tensor
ranks but the first it sets a bias that it is given to zero in place. So it gets the experts one by one.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_EXPERTS = ".mlp.experts."
_STACKS = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
"""The tensors of all experts of a layer of gpt-oss."""


def check_complete(config: Any, names: Container[str]) -> None:
    """Check that new weights have all matrices of all experts."""
    missing = next((name for name in _names(config) if name not in names), None)
    if missing is not None:
        raise UserError(
            f"new weights of a model with experts must be complete, and {missing} is missing: give the weights of all "
            "experts of all layers"
        )


def forget_kernels(model: Any) -> None:
    """Let the experts' kernels be made again, with the next weights; for a model on a CPU."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if method is not None and hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def one_by_one(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The weights by name, with the experts of a stack one by one: vLLM knows their names with a number."""
    for name, tensor in weights.items():
        layer, _, matrix = name.rpartition(_EXPERTS)
        if matrix in _STACKS:
            yield from ((f"{layer}{_EXPERTS}{number}.{matrix}", part) for number, part in enumerate(tensor))
        else:
            yield name, tensor


def set_sinks(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Write the sinks of attention into a model of one rank, after a reload that left them out."""
    for name, tensor in weights.items():
        if name.endswith(".sinks"):
            model.get_parameter(name.replace(".self_attn.", ".attn.")).data.copy_(tensor)


def _names(config: Any) -> Iterator[str]:
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 0
    if not experts:
        return
    matrices = [f"{expert}.{name}_proj.weight" for expert in range(experts) for name in ("gate", "up", "down")]
    for layer in range(getattr(config, "first_k_dense_replace", 0), config.num_hidden_layers):
        for matrix in _STACKS if config.model_type == "gpt_oss" else matrices:
            yield f"model.layers.{layer}{_EXPERTS}{matrix}"
