"""Low-rank adapters in a TorchTitan model: TorchTitan's LoRAConverter puts them there, and freezes everything else.

    module = build_with_adapters(config, lora)  # on the meta device
    adapters = Adapters(module, lora)           # once the module is sharded and has memory
    adapters.initialise(seed)

A begins uniformly at random, B at 0, so an adapter changes nothing at first. Each A is drawn completely from a
generator of its own, seeded by its name, and every rank keeps its slice: initial values do not depend on the ranks.

Queries, keys and values are three matrices. A fused matrix would have one A for all three.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX as WRAPPER

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.components.lora import LoRAConverter
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.param_init import skip_param_init

from trainers.lora import Lora
from trainers.titan.shards import reshard, shard_of

_MODULES = {
    "q_proj": "wq",
    "k_proj": "wkv",
    "v_proj": "wkv",
    "o_proj": "wo",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
}
"""Hugging Face's name of a matrix -> the name of its config in TorchTitan, which is the same for keys and values."""
A, B = "lora_a", "lora_b"


def build_with_adapters(config: Decoder.Config, lora: Lora) -> Decoder:
    """Build a model with adapters as its only trained parameters.

    Args:
        config: without fused projections, with its shardings; the converter changes it.
    """
    plain = [copy.deepcopy(layer.attention.qkv_linear.wkv) for layer in config.layers]
    converter = LoRAConverter.Config(
        rank=lora.rank, alpha=lora.alpha, target_modules=sorted({_MODULES[name] for name in lora.targets})
    )
    module: Decoder = converter.build().convert(config).build()
    # The converter has one name for keys and values: remove the adapter of the one that is not a target.
    for name, is_extra in {"wk": "k_proj" not in lora.targets, "wv": "v_proj" not in lora.targets}.items():
        if is_extra and {"k_proj", "v_proj"} & set(lora.targets):
            for layer, of_keys in zip(module.layers.children(), plain, strict=True):
                setattr(layer.attention.qkv_linear, name, of_keys.build().requires_grad_(False))
    for half in adapter_modules(module):
        half._param_init = {"weight": skip_param_init}  # `Adapters.initialise` sets the values
    return module


def layers_with_adapter(module: nn.Module) -> dict[str, Any]:
    """The layers that have an adapter, by TorchTitan's names of their weights."""
    return {f"{name.replace(WRAPPER, '')}.weight": part for name, part in module.named_modules() if hasattr(part, B)}


def adapter_modules(module: nn.Module) -> list[Any]:
    """The modules with the trained parameters."""
    return [half for part in layers_with_adapter(module).values() for half in (part.lora_a, part.lora_b)]


def is_adapter(name: str) -> bool:
    """Whether this is the name of an adapter's parameter."""
    return f".{A}." in name or f".{B}." in name


class Adapters:
    """The adapters of a sharded model, and the adapters that a KL penalty is taken against."""

    def __init__(self, module: nn.Module, lora: Lora) -> None:
        self.lora = lora
        self.by_weight = layers_with_adapter(module)
        """The adapted layers, by TorchTitan's names of their weights."""
        self._module = module
        self._reference: dict[str, Tensor] = {}
        """This rank's part of the reference's adapters, by name; empty if the reference is the frozen base."""

    def initialise(self, seed: int) -> None:
        """Set initial values: A random, and B 0."""
        for name, part in self.by_weight.items():
            a = torch.empty(part.lora_a.weight.shape)
            bound = a.shape[1] ** -0.5  # torch's default for a linear layer, as in PEFT
            digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest()
            a.uniform_(-bound, bound, generator=torch.Generator().manual_seed(int.from_bytes(digest, "big")))
            self._set(name, a, torch.zeros(part.lora_b.weight.shape))

    @torch.no_grad()
    def load(self, values: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Replace all adapters with complete ones, (A, B) by TorchTitan's names of the weights."""
        reshard(self._module)
        for name, (a, b) in values.items():
            self._set(name, a, b)

    @torch.no_grad()
    def keep_as_reference(self) -> None:
        """Take the present adapters as the reference's."""
        self._reference = self._copies()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Let the model be the reference: the base with the adapters that were kept for it, or without adapters."""
        if not self._reference:
            with self.off():
                yield
            return
        with self.keep():
            self._replace(self._reference)
            yield

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Restore the present adapters at the end, also after an error."""
        present = self._copies()
        try:
            yield
        finally:
            self._replace(present)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Multiply the adapters' output by 0, which leaves the base's own values bit by bit."""
        try:
            self._scale(0.0)
            yield
        finally:
            self._scale(self.lora.scaling)

    def _scale(self, scaling: float) -> None:
        for part in self.by_weight.values():
            part._lora_scaling = scaling

    def _copies(self) -> dict[str, Tensor]:
        return {name: parameter.clone() for name, parameter in self._local().items()}

    @torch.no_grad()
    def _replace(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._local().items():
            parameter.copy_(values[name])

    def _local(self) -> dict[str, Tensor]:
        reshard(self._module)
        halves = {
            f"{name}.{half}": getattr(part, half).weight for name, part in self.by_weight.items() for half in (A, B)
        }
        return {name: shard_of(name, weight.detach())[0] for name, weight in halves.items()}

    @torch.no_grad()
    def _set(self, name: str, a: Tensor, b: Tensor) -> None:
        part = self.by_weight[name]
        for half, full in ((part.lora_a, a), (part.lora_b, b)):
            shard, place = shard_of(name, half.weight)
            if shard.numel():
                shard.copy_(full[place])
