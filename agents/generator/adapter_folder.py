"""An adapter's folder in PEFT's format, read for an engine that computes with it, and checked.

vLLM ignores a matrix that its model does not have, and would silently answer with half of an adapter.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.generator.lora_slot import PREFIX, RANKS, TARGETS
from agents.model_folder import weight_files
from agents.model_weights import places
from forge_env.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of the folder."""
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_rslora": (False, None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": ([], None),
    "layers_to_transform": ([], None),
}
"""Settings of PEFT, and the values with which an adapter adds alpha / rank * B A."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """An adapter that fits its model."""

    path: Path
    rank: int
    alpha: float

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by PEFT's names; alpha / rank is multiplied into B."""
        from safetensors.torch import load_file

        scaling = self.alpha / self.rank
        halves = load_file(self.path / WEIGHTS)
        return {name: half * scaling if name.endswith(".lora_B.weight") else half for name, half in halves.items()}


def open_adapter(path: Path, model: Path, *, option: str = "--adapter") -> AdapterFolder:
    """Check an adapter's folder against its model.

    Args:
        path: the folder.
        model: the Hugging Face folder of the model.
        option: the option that named the folder, for error messages.

    Raises:
        UserError: it is no such folder, the engine does not take its rank or kind, or the model has no such matrices.
    """
    if not path.is_dir():
        raise UserError(f"{option} is {path}, which is no folder: name one in PEFT's format, with {CONFIG}")
    saved = read_config(path, option=option)
    rank, alpha = saved.get("r"), saved.get("lora_alpha")
    if not isinstance(rank, int) or not 1 <= rank <= RANKS[-1]:
        raise UserError(
            f"{option} is {path} with r = {rank}, and the engine takes ranks from 1 to {RANKS[-1]}: merge the "
            "adapter into its model, and name that"
        )
    if not isinstance(alpha, int | float):
        raise UserError(f"{option} is {path} with lora_alpha = {alpha!r}, which must be a number")
    halves, weights = (
        {name: place.shape for name, place in places(files).items()}
        for files in ([path / WEIGHTS], weight_files(model))
    )
    if not halves:
        raise UserError(f"{option} is {path}, and its {WEIGHTS} is empty: choose another adapter")
    for name in halves:
        _check_matrix(name, halves, weights, rank, f"{option} is {path}", model)
    return AdapterFolder(path, rank, float(alpha))


def read_config(path: Path, *, option: str) -> dict[str, Any]:
    """Read the adapter_config.json of a folder.

    Raises:
        UserError: the folder lacks a file, or the adapter is of a kind other than plain LoRA.
    """
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise UserError(f"{option} is {path}, which is no PEFT folder: it has no {name}")
    try:
        saved = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path / CONFIG} is not valid JSON: {error}") from None
    if not isinstance(saved, dict):
        raise UserError(f"{path / CONFIG} is not the config of an adapter: it holds no JSON object")
    for name, allowed in _PLAIN.items():
        if saved.get(name, allowed[0]) not in allowed:
            raise UserError(
                f"{option} is {path} with {name} = {saved[name]!r}, and only {allowed[0]!r} is supported: choose "
                "another adapter, or merge it into its model and name that"
            )
    return saved


def _check_matrix(name: str, halves: Shapes, weights: Shapes, rank: int, what: str, model: Path) -> None:
    """Check one tensor of an adapter: its other half is there, and the model has their matrix, with their sizes."""
    layer, half = _split(name)
    matrix = f"{layer}.weight"
    if not layer or layer.rpartition(".")[2] not in TARGETS or ".experts." in layer:
        raise UserError(f"{what}, which has {name}, and the engine computes adapters of {', '.join(TARGETS)} only")
    if matrix not in weights:
        near = difflib.get_close_matches(matrix, weights, n=1)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise UserError(f"{what}, an adapter of {matrix}, which the model {model} does not have{hint}: name its model")
    other = f"{PREFIX}{layer}.{'lora_B' if half == 'lora_A' else 'lora_A'}.weight"
    if other not in halves:
        raise UserError(f"{what}, which lacks {other}, the other half of {name}: save the adapter again")
    outputs, inputs = weights[matrix]
    expected = (rank, inputs) if half == "lora_A" else (outputs, rank)
    if halves[name] != expected:
        raise UserError(
            f"{what}, and its {name} has shape {list(halves[name])}. For rank {rank} and {matrix} of the model {model} "
            f"it must be {list(expected)}: name the model that the adapter was trained on"
        )


def _split(name: str) -> tuple[str, str]:
    """A tensor's layer by Hugging Face's name, and its half; both empty for another kind of tensor."""
    for half in ("lora_A", "lora_B"):
        if name.startswith(PREFIX) and name.endswith(f".{half}.weight"):
            return name.removeprefix(PREFIX).removesuffix(f".{half}.weight"), half
    return "", ""
