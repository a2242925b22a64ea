"""Adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.

A layer has two tensors, base_model.model.NAME.lora_A.weight (rank, inputs) and lora_B.weight (outputs, rank). NAME is
the layer's name in Hugging Face. Rows of B are in Hugging Face's order, which for Llama differs from TorchTitan's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agents.generator.adapter_folder import CONFIG, WEIGHTS
from agents.generator.lora_slot import PREFIX
from trainers.lora import adapter_config, check_adapter_shapes
from trainers.titan.shards import gather_full, reshard
from trainers.titan.weight_files import WeightFiles, write_file
from trainers.titan.whole_folder import is_first, replacement, write_texts


class _Layer(NamedTuple):
    """An adapted layer, and its name in the file."""

    weight: str  # TorchTitan's name of its weight
    part: Any
    name: str  # of the file's tensors, up to ".lora_A.weight"
    rows: Tensor  # for each row of the file's B, the row in TorchTitan's B

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        a, b = self.part.lora_a.weight, self.part.lora_b.weight
        return {f"{self.name}.lora_A.weight": tuple(a.shape), f"{self.name}.lora_B.weight": tuple(b.shape)}


def export_adapter(model: Any, folder: Path, *, base: str = "", texts: Mapping[str, str] | None = None) -> None:
    """Write the adapters of a model, in float32, as a PEFT folder, which appears complete or not at all.

    Every rank calls it.

    Args:
        base: the model that the file names as the adapter's; "" is the model's folder.
    """
    with replacement(folder) as partial:
        reshard(model.module)
        tensors = _gather(_layers(model))
        if is_first():
            write_file(partial / WEIGHTS, AdapterWeights(model).layout(torch.float32), tensors)
            config = adapter_config(model.adapters.lora, base or str(model.folder))
            (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            write_texts(partial, texts)
        for _ in tensors:  # all ranks gather all of them
            pass


class AdapterWeights:
    """The adapters of a model instead of its weights, for an engine that has the weights: see `HFWeights`.

    Tensors have PEFT's names. Their alpha is their rank, because B comes multiplied by the scaling.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def layout(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Names and shapes in the order of `stream`, as tensors on the meta device. No collective."""
        return {
            name: torch.empty(shape, dtype=dtype, device="meta")
            for layer in _layers(self._model)
            for name, shape in layer.shapes.items()
        }

    @contextmanager
    def stream(self, dtype: torch.dtype) -> Iterator[Iterator[tuple[str, Tensor]]]:
        """Give the tensors one by one, each complete; a collective, like `HFWeights.stream`."""
        reshard(self._model.module)
        scaling = self._model.adapters.lora.scaling
        tensors = _gather(_layers(self._model))
        in_dtype = ((name, (tensor * scaling if ".lora_B." in name else tensor).to(dtype)) for name, tensor in tensors)
        try:
            yield in_dtype if is_first() else iter(())
        finally:
            for _ in tensors:
                pass


def load_adapter(model: Any, folder: Path) -> None:
    """Replace the adapters of a model with the adapters of a PEFT folder. Each rank reads the files; no collective."""
    files, layers = WeightFiles(folder, [folder / WEIGHTS]), _layers(model)
    expected = {name: shape for layer in layers for name, shape in layer.shapes.items()}
    check_adapter_shapes(folder, model.adapters.lora, expected, files.shapes)
    values = {}
    for layer in layers:
        a, b = (files.read(name).float() for name in layer.shapes)
        values[layer.weight] = a, b[torch.argsort(layer.rows)]
    model.adapters.load(values)


def _gather(layers: list[_Layer]) -> Iterator[tuple[str, Tensor]]:
    for layer in layers:
        a, b = (gather_full(half.weight, torch.float32) for half in (layer.part.lora_a, layer.part.lora_b))
        yield from zip(layer.shapes, (a, b[layer.rows.to(b.device)]), strict=True)


def _layers(model: Any) -> list[_Layer]:
    layers, orders = [], {}
    for weight, part in model.adapters.by_weight.items():
        kind = re.sub(r"\d+", "{}", weight, count=1)  # the names of two layers differ in their number only
        if kind not in orders:
            orders[kind] = model.weights.rows(weight, part.weight)
        hf_name, rows = orders[kind]
        number = re.search(r"\d+", weight)
        assert number is not None, weight
        hf_name = re.sub(r"\d+", number[0], hf_name, count=1).removesuffix(".weight")
        layers.append(_Layer(weight, part, f"{PREFIX}{hf_name}", rows))
    return layers
