"""Safetensors files: names and shapes from their headers, tensors slice by slice, and new files tensor by tensor.

The format (https://huggingface.co/docs/safetensors): eight bytes with the length of the header; the header, JSON with
dtype, shape and offsets of each tensor; then the tensors, one after the other without gaps.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.model_folder import weight_files
from agents.model_weights import is_finite, places, plain_name
from forge_env.core.errors import InvariantError, UserError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_FILE_BYTES = 5 * 10**9
"""Size of a file at most, unless a single tensor is larger; Hugging Face's limit."""
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_KINDS = {kind: dtype for dtype, kind in _DTYPES.items()} | {"U8": torch.uint8}  # MXFP4 is in bytes
_ALIGNMENT = 8  # bytes: tensors begin at a multiple of it
Parts = Callable[[str, tuple[int, ...]], Mapping[str, tuple[int, ...]]]


class WeightFiles:
    """The tensors of some files. The constructor reads the headers only.

    Args:
        parts: for a tensor in a file, the names and shapes of the tensors that it holds one after the other, which are
            equally large. None if each is itself.
    """

    def __init__(self, where: Path, files: Sequence[Path], parts: Parts | None = None) -> None:
        missing = sorted(file.name for file in files if not file.is_file())
        if missing:
            raise UserError(f"{where} has no weights: {', '.join(missing)} is missing.")
        self.where = where
        shapes = {name: tensor.shape for name, tensor in places(files).items()}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, tuple[Path, str, int, int]] = {}  # file, dtype, begin and end in the file
        for file in files:
            for name, (kind, start, end) in _places(file).items():
                pieces = {name: shapes[name]} if parts is None else parts(name, shapes[name])
                size = (end - start) // max(1, len(pieces))
                self.shapes |= pieces
                for number, piece in enumerate(pieces):
                    self._places[piece] = file, kind, start + number * size, start + (number + 1) * size

    @classmethod
    def of_folder(cls, folder: Path, parts: Parts | None = None) -> WeightFiles:
        """The weights of a Hugging Face folder: one file, or several with an index."""
        return cls(folder, weight_files(folder), parts)

    def read(self, name: str, place: tuple[slice, ...] | None = None) -> Tensor:
        """A tensor, or a slice of it, on the CPU, in the file's dtype.

        It is a view of the file. Its pages are read when they are used, and freed with the tensor. The names in the
        file are not read again: layers with many experts have thousands of them.
        """
        path, kind, start, end = self._places[name]
        if kind not in _KINDS:
            raise UserError(f"{self.where} cannot be trained: its weight {name} has numbers of the type {kind}")
        tensor = _view(path, _KINDS[kind], start, end).view(self.shapes[name])
        tensor = tensor if place is None else tensor[place]
        if not is_finite(tensor):
            raise UserError(f"{self.where} cannot be trained: its weight {name} has values that are not finite")
        return tensor


def write_folder(
    folder: Path,
    layout: Mapping[str, Tensor],
    tensors: Iterator[tuple[str, Tensor]],
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write the weights of a Hugging Face folder: one file, or several with an index if they do not fit into one.

    Args:
        layout: names and shapes, on any device, the meta device too.
        tensors: in the order of the layout; one at a time is in the host's memory.
    """
    parts = _parts(layout, max_file_bytes)
    if len(parts) == 1:
        write_file(folder / SINGLE, layout, tensors)
        return
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        write_file(folder / name, part, tensors)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": sum(map(_nbytes, layout.values()))}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def write_file(path: Path, layout: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write one file, tensor by tensor; `tensors` may go on beyond the layout."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in layout.items():
        start, end = end, end + _nbytes(tensor)
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for expected, (name, tensor) in zip(layout.items(), tensors, strict=False):
            if expected[0] != name or expected[1].shape != tensor.shape or expected[1].dtype != tensor.dtype:
                raise InvariantError(f"weight {name} came where {expected[0]} was due, or in another form")
            file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
            del tensor  # before the next one is gathered
        if file.tell() != 8 + len(header) + end:
            raise InvariantError(f"{path} did not get all of its {len(layout)} weights")


def _parts(layout: Mapping[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    parts: list[dict[str, Tensor]] = [{}]
    for name, tensor in layout.items():
        if parts[-1] and sum(map(_nbytes, parts[-1].values())) + _nbytes(tensor) > max_bytes:
            parts.append({})
        parts[-1][name] = tensor
    return parts


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _places(path: Path) -> dict[str, tuple[str, int, int]]:
    """For each tensor's name, its dtype and its first and last byte in the file."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {
        plain_name(name): (entry["dtype"], *(8 + size + offset for offset in entry["data_offsets"]))
        for name, entry in header.items()
    }


def _view(path: Path, dtype: torch.dtype, start: int, end: int) -> Tensor:
    """A part of a file as a tensor of one dimension; the file is mapped as long as the tensor lives."""
    if start == end:
        return torch.empty(0, dtype=dtype)
    first = start - start % mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as file:  # a private map: the file does not change if the tensor is written to
        memory = mmap.mmap(file.fileno(), end - first, access=mmap.ACCESS_COPY, offset=first)
    return torch.frombuffer(memory, dtype=dtype, count=(end - start) // dtype.itemsize, offset=start - first)
