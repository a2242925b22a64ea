"""The weights of a Hugging Face folder, as its safetensors files have them: names, shapes and single rows.

No tensor is loaded whole.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.model_folder import config_of, weight_files
from forge_env.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""The input embedding and the output layer in Hugging Face's names: a row for each token of the vocabulary."""
_OF_TEXT = "model.language_model."
"""How names begin, in place of "model.", in the files of a text model that was taken out of one that reads images."""
_AT_ONCE = 8192  # rows
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # BF16 is the upper half of F32


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor is."""

    file: Path
    name: str
    shape: tuple[int, ...]


def plain_name(name: str) -> str:
    """The name of a text model's tensor, whatever its name in a file begins with."""
    return "model." + name.removeprefix(_OF_TEXT) if name.startswith(_OF_TEXT) else name


def places(files: Iterable[Path]) -> dict[str, Place]:
    """The tensors of safetensors files by name, from the headers."""
    from safetensors import SafetensorError, safe_open

    there: dict[str, Place] = {}
    for path in files:
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    place = Place(path, name, tuple(file.get_slice(name).get_shape()))
                    if there.setdefault(plain_name(name), place) is not place:
                        raise UserError(
                            f"the weight {name} is in {there[plain_name(name)].file} and in {path}, and no one can say "
                            "which counts: save the model again"
                        )
        except SafetensorError as error:
            raise UserError(f"{path} is damaged: {error}; copy it again") from None
    return there


def rows(place: Place, ids: Sequence[int]) -> np.ndarray:
    """Rows of a matrix: (ids, columns), float32. Nothing imports torch, which takes seconds."""
    with place.file.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        about = json.loads(file.read(size))[place.name]
    if (dtype := about["dtype"]) not in _NUMPY:
        raise UserError(f"{place.file} has {place.name} in {dtype}: save it in BF16")
    matrix = np.memmap(place.file, _NUMPY[dtype], "r", 8 + size + about["data_offsets"][0], place.shape)
    values = np.asarray(matrix[list(ids)])
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values.astype(np.float32)


def write_rows(path: Path, name: str, new: Mapping[int, Tensor]) -> None:
    """Replace rows of a matrix in a safetensors file, where they are in it.

    Args:
        new: the rows by number, each (columns,).
    """
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as content:
        dtype = content.get_slice(name)[0:1].dtype
    with path.open("r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        start, _ = json.loads(file.read(size))[name]["data_offsets"]
        for number, row in new.items():
            data = row.to(dtype).contiguous().view(torch.uint8).numpy().tobytes()
            file.seek(8 + size + start + number * len(data))
            file.write(data)


def check_head(folder: Path) -> None:
    """Check the output layer of a model whose config.json says that it is the embedding.

    A folder may hold an equal copy of the embedding. Of another one, transformers and vLLM would compute with the
    file's, and the trainer with the embedding.
    """
    there = places(weight_files(folder))
    if not config_of(folder).get("tie_word_embeddings"):
        return
    if HEAD not in there or EMBEDDING not in there or _equal(there[EMBEDDING], there[HEAD]):
        return
    raise UserError(
        f"the model folder {folder} says tie_word_embeddings: true, and holds a {HEAD} that differs from its "
        f"{EMBEDDING}: set tie_word_embeddings to false in its config.json if the model has an output layer of its "
        f"own, or remove {HEAD} from its files"
    )


def _equal(embedding: Place, head: Place) -> bool:
    from safetensors import safe_open

    if embedding.shape != head.shape:
        return False
    with safe_open(embedding.file, framework="pt") as one, safe_open(head.file, framework="pt") as other:
        first, second = one.get_slice(embedding.name), other.get_slice(head.name)
        parts = (slice(start, start + _AT_ONCE) for start in range(0, embedding.shape[0], _AT_ONCE))
        return all(bool((first[part] == second[part]).all()) for part in parts)


def check_finite(folder: Path) -> None:
    """Check that no weight of a model is NaN or infinite. All are read, which brings them into the system's cache."""
    from safetensors import safe_open

    for file in weight_files(folder):
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118
                if not is_finite(content.get_tensor(name)):
                    raise UserError(
                        f"the model folder {folder} has values that are not finite in {name}: choose another"
                    )


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor has neither infinities nor NaN. It is read once, and nothing is allocated."""
    if not tensor.numel() or not tensor.is_floating_point() or tensor.element_size() < 2:  # no bounds of a float8
        return True
    return all(bool(bound.isfinite()) for bound in tensor.aminmax())


OLD = "rotary_emb.inv_freq"
"""Old folders have a weight with this end of its name, which no model reads."""
PREDICTS = ".eh_proj.weight"
"""A layer with this weight predicts further tokens (GLM-4.5): no model but a draft of the engine reads it."""
Shapes = Mapping[str, tuple[int, ...]]


def check_weights(where: Path, expected: Shapes, present: Shapes) -> None:
    """Check names and shapes of tensors.

    Args:
        expected: of the model. Without an output layer, that is the embedding, and the files may have a copy.
    """
    drafts = tuple(f"{name.removesuffix(PREDICTS)}." for name in present if name.endswith(PREDICTS))
    others = {name for name in present if name.endswith(OLD) or name.startswith(drafts)} | ({HEAD} - expected.keys())
    for name in sorted(expected.keys() | (present.keys() - others)):
        if name not in present or name not in expected:
            state = "lacks" if name not in present else "has a superfluous"
            raise UserError(f"{where} does not fit its config.json: it {state} weight {name}.")
        if expected[name] != present[name]:
            raise UserError(
                f"{where} does not fit its config.json: weight {name} has shape {present[name]} where {expected[name]} "
                "is expected."
            )
