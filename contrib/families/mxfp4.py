"""Writes a folder with experts in MXFP4, as gpt-oss was published, as one in bfloat16, which trainer and engine take.

MXFP4 (OCP Microscaling Formats 1.0): 32 numbers share a scale, a power of two. Its exponent is a byte less 127. Each
number has four bits, E2M1: a sign, and one of eight values. Two of them are in a byte, the first one in its low bits.
Every one of these numbers is one of bfloat16, so nothing is rounded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from agents.model_folder import config_of
from trainers.titan.weight_files import INDEX, WeightFiles, write_folder

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BLOCKS, _SCALES = "_blocks", "_scales"
_TEXTS = (".json", ".jinja", ".txt", ".model")  # beside the weights


def write_bfloat16(folder: Path, into: Path) -> None:
    """Write the model of a folder in bfloat16 to a new one, which appears complete or not at all."""
    files = WeightFiles.of_folder(folder)
    partial = into.with_name(f".{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    layout = {
        name.removesuffix(_BLOCKS): torch.empty(_shape(name, shape), dtype=torch.bfloat16, device="meta")
        for name, shape in files.shapes.items()
        if not name.endswith(_SCALES)
    }
    write_folder(partial, layout, _tensors(files, layout))
    for path in folder.iterdir():
        if path.is_file() and path.suffix in _TEXTS and path.name not in ("config.json", INDEX):
            shutil.copyfile(path, partial / path.name)
    config = {name: value for name, value in config_of(folder).items() if name != "quantization_config"}
    config = {name: value for name, value in config.items() if name != "torch_dtype"} | {"dtype": "bfloat16"}
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    partial.rename(into)


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """Numbers in MXFP4 as bfloat16: (rows, blocks x 32).

    Args:
        blocks: (rows, blocks, 16) uint8.
        scales: (rows, blocks) uint8.
    """
    table = torch.tensor([*_VALUES, *(-value for value in _VALUES)])
    numbers = torch.stack([table[(blocks & 15).int()], table[(blocks >> 4).int()]], dim=-1).flatten(-2)
    return torch.ldexp(numbers, (scales.int() - 127)[..., None]).flatten(-2).bfloat16()


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a weight in bfloat16: (experts, inputs, outputs) of the blocks of experts, (experts, outputs, blocks, 16)."""
    return (shape[0], 2 * shape[2] * shape[3], shape[1]) if name.endswith(_BLOCKS) else shape


def _tensors(files: WeightFiles, layout: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, empty in layout.items():
        if name in files.shapes:
            yield name, files.read(name).bfloat16()
            continue
        weight = torch.empty(empty.shape, dtype=torch.bfloat16)
        for expert in range(len(weight)):
            place = (slice(expert, expert + 1),)
            blocks, scales = (files.read(f"{name}{part}", place)[0] for part in (_BLOCKS, _SCALES))
            weight[expert] = dequantize(blocks, scales).T
        yield name, weight
