"""LoRA: low-rank adapters beside the frozen matrices of a model (arXiv 2106.09685). Nothing here needs torch.

A matrix W of a target becomes W + alpha / rank * B A, with A (rank, inputs) and B (outputs, rank). Only A and B are
trained. trainers/titan/lora.py builds them; trainers/titan/adapter_files.py reads and writes them in PEFT's format.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from trainers.config import LoraConfig
from trainers.model.shape import ModelShape

ALL = "all-linear"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The matrices of a transformer block, by Hugging Face's names: what "all-linear" stands for."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of an adapter in PEFT's format."""
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
"""Settings of PEFT, and the values under which an adapter is what the formula above says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """The adapters of a trainer, e.g. `Lora(rank=16, alpha=32.0)`."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = TARGETS
    """Names of `TARGETS`."""
    adapter: str = ""
    """A PEFT folder to start from; "" starts from an adapter that changes nothing."""

    publish: str = "merged"
    """"merged" weights, or the "adapter" alone."""

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank

    def parameters_of_layer(self, shape: ModelShape) -> int:
        """Trained parameters of one transformer block."""
        sizes = target_sizes(shape)
        return sum(self.rank * sum(sizes[name]) for name in self.targets)

    def parameters(self, shape: ModelShape) -> int:
        """Trained parameters of a model."""
        return shape.num_hidden_layers * self.parameters_of_layer(shape)


def target_sizes(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the matrix of each target."""
    h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.intermediate_size
    return dict(zip(TARGETS, [(h, q), (h, k), (h, k), (q, h), (h, m), (h, m), (m, h)], strict=True))


def lora_of(config: LoraConfig) -> Lora | None:
    """The adapters that a config asks for, which `check_config` has checked; None for training all weights."""
    if config.rank < 1:
        return None
    return Lora(
        rank=config.rank,
        alpha=float(config.alpha),
        targets=tuple(name for name in TARGETS if name in config.targets) or TARGETS,
        adapter=str(Path(config.adapter).expanduser().resolve()) if config.adapter else "",
        publish=config.publish,
    )


def check_config(config: LoraConfig) -> None:
    """Check the names of the targets, and the adapter to start from.

    Raises:
        UserError: for an unknown target, or an adapter folder that does not fit the other settings.
    """
    if list(config.targets) != [ALL]:
        _check_targets(config.targets)
    lora = lora_of(config)
    if lora is None and config.adapter:
        raise UserError(
            f"--lora.adapter is {config.adapter} and --lora.rank is 0, which trains all weights: set the latter to the "
            "adapter's rank, which its adapter_config.json names r"
        )
    if lora is not None and lora.adapter:
        check_adapter(Path(lora.adapter), lora)


def _check_targets(names: Sequence[str]) -> None:
    if not names:
        raise UserError(f"--lora.targets is empty, so that nothing would be trained: set it to {ALL}, or to names")
    for name in names:
        if name not in TARGETS:
            near = difflib.get_close_matches(name, [ALL, *TARGETS], n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}? " if near and near[0] != name else ""
            raise UserError(
                f"--lora.targets names {name!r}, which is no target: {hint}it is {ALL} alone, or any of "
                f"{', '.join(TARGETS)}"
            )


def check_trainer(lora: Lora | None, optimizer_state: str, *, cpu_offload: bool) -> None:
    """Check that the trainer's other settings work with adapters.

    Raises:
        UserError: when they do not.
    """
    trained = "" if lora is None else f"and --lora.rank is {lora.rank}, by which adapters are trained"
    if trained and optimizer_state == "8bit":
        raise UserError(
            f"--training.optimizer_state is 8bit {trained}, whose small moments are not kept in 8 bits: set it to "
            "float32, or --lora.rank to 0"
        )
    if trained and cpu_offload:
        raise UserError(
            f"--training.cpu_offload is true {trained}, and the frozen weights stay on the GPU: leave it out, or set "
            "--lora.rank to 0"
        )


def check_adapter(folder: Path, lora: Lora) -> None:
    """Check that a PEFT folder has an adapter of the rank and alpha of `lora`, and is of the plain kind.

    Its targets are checked against the weights, when these are read.

    Raises:
        UserError: when it has not.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"--lora.adapter is {folder}, which is no PEFT folder: it has no {name}")
    try:
        saved = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{folder / CONFIG} is not valid JSON: {error}") from None
    if not isinstance(saved, dict):
        raise UserError(f"{folder / CONFIG} is not the config of an adapter: it holds no JSON object")
    for name, allowed in _PLAIN.items():
        if saved.get(name, allowed[0]) not in allowed:
            raise UserError(
                f"--lora.adapter is {folder}, whose {name} is {saved[name]!r}, and only {allowed[0]!r} can be trained: "
                "choose another adapter, or merge it into its model and start from that"
            )
    for name, key, value in (("rank", "r", lora.rank), ("alpha", "lora_alpha", lora.alpha)):
        if saved.get(key) != value:
            raise UserError(
                f"--lora.{name} is {value:g}, and the adapter in {folder} has {key} = {saved.get(key)}: set "
                f"--lora.{name} to that"
            )


def adapter_config(lora: Lora, base: str) -> dict[str, Any]:
    """PEFT's adapter_config.json.

    Args:
        lora: the adapters.
        base: the folder or hub id of the model that they belong to.
    """
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": list(lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
