"""An adapter's folder in PEFT's format, read for an engine that computes with it, and checked.

vLLM ignores a matrix that its model does not have, and would silently answer with half of an adapter.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.generator.lora_slot import PREFIX, RANKS, TARGETS
from agents.model_folder import check_booleans, weight_files
from agents.model_weights import places
from forge_env.core.errors import UserError
from forge_env.records.run_files import read_object

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of the folder."""
_HARMLESS = """auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config exclude_modules
    inference_mode init_lora_weights layers_pattern layers_to_transform lora_alpha lora_dropout lora_ga_config
    loftq_config megatron_config megatron_core peft_type peft_version qalora_group_size r revision runtime_config
    target_modules task_type velora_config"""
"""Settings of PEFT (0.21) that change nothing of what an adapter computes, or that its tensors' names say again."""
SCALES = ("use_rslora", "rank_pattern", "alpha_pattern")
"""Settings that change its scale; see `AdapterFolder.tensors`."""
_INITS = ("true", "false", "none", "gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Values of init_lora_weights after which the adapter is of the model as it is; PiSSA and others change its weights."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """An adapter that fits its model."""

    path: Path
    rank: int
    """The largest of its matrices' ranks."""
    scalings: Mapping[str, float]
    """By Hugging Face's names of the layers."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by PEFT's names, all of the largest rank; the scaling is multiplied into B.

        It is alpha / rank, or with rsLoRA (arXiv 2312.03732) alpha / sqrt(rank).
        """
        from safetensors.torch import load_file
        from torch.nn.functional import pad

        tensors = {}
        for name, tensor in load_file(self.path / WEIGHTS).items():
            layer, half = _split(name)
            if not tensor.isfinite().all():
                raise UserError(f"the adapter {self.path} has values that are not finite in {name}: choose another one")
            if half == "lora_A":
                tensors[name] = pad(tensor, (0, 0, 0, self.rank - len(tensor)))
            else:
                tensors[name] = pad(tensor * self.scalings[layer], (0, self.rank - tensor.shape[1]))
        return tensors


def open_adapter(path: Path, model: Path, *, option: str = "--adapter") -> AdapterFolder:
    """Check an adapter's folder against its model."""
    if not path.is_dir():
        raise UserError(f"{option} is {path}, which is no folder: name one in PEFT's format, with {CONFIG}")
    config = read_config(path, option=option)
    _scale(config, "", f"{option} is {path}")
    halves, weights = (
        {name: place.shape for name, place in places(files).items()}
        for files in ([path / WEIGHTS], weight_files(model))
    )
    if not halves:
        raise UserError(f"{option} is {path}, and its {WEIGHTS} is empty: choose another adapter")
    ranks, scalings = dict[str, int](), dict[str, float]()
    for name in halves:
        layer, _ = _split(name)
        ranks[layer], scalings[layer] = _scale(config, layer, f"{option} is {path}")
        _check_matrix(name, halves, weights, ranks[layer], f"{option} is {path}", model)
    return AdapterFolder(path, max(ranks.values()), scalings)


def _scale(config: Mapping[str, Any], layer: str, what: str) -> tuple[int, float]:
    """The rank of a layer, and what its B A is multiplied by."""
    rank = _of_layer(config.get("rank_pattern"), layer, config.get("r"), what)
    alpha = _of_layer(config.get("alpha_pattern"), layer, config.get("lora_alpha"), what)
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= RANKS[-1]:
        raise UserError(
            f"{what} with r = {rank!r}, and the engine takes ranks from 1 to {RANKS[-1]}: merge the adapter into its "
            "model, and name that"
        )
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise UserError(f"{what} with lora_alpha = {alpha!r}, which must be a finite number")
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_layer(pattern: Any, layer: str, default: Any, what: str) -> Any:
    """PEFT's rule: the first key that is the end of a layer's name, from a dot on."""
    if pattern and not isinstance(pattern, dict):
        raise UserError(f"{what} with the pattern {pattern!r:.60}, which must be an object of patterns and numbers")
    for key, value in (pattern or {}).items():
        try:
            if re.match(rf"(.*\.)?({key})$", layer):
                return value
        except re.error as error:
            raise UserError(f"{what} with the pattern {key!r}, which is no regular expression: {error}") from None
    return default


def read_config(path: Path, *, option: str) -> dict[str, Any]:
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise UserError(f"{option} is {path}, which is no PEFT folder: it has no {name}")
    config = read_object(path / CONFIG)
    check_booleans({name: value for name, value in config.items() if name != "init_lora_weights"}, path / CONFIG)
    remedy = "choose another adapter, or merge it into its model and name that"
    if config.get("peft_type", "LORA") != "LORA":
        raise UserError(
            f"{option} is {path} with peft_type = {config['peft_type']!r}, and only 'LORA' is known: {remedy}"
        )
    if str(init := config.get("init_lora_weights")).lower() not in _INITS:
        raise UserError(
            f"{option} is {path} with init_lora_weights = {init!r}, which changes the model's own weights: {remedy}"
        )
    for name in sorted(config.keys() - {*_HARMLESS.split(), *SCALES}):
        if config[name] and (name, config[name]) != ("bias", "none"):
            raise UserError(f"{option} is {path} with {name} = {config[name]!r}, which is not supported: {remedy}")
    return config


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
