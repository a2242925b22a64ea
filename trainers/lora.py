"""LoRA: low-rank adapters beside the frozen matrices of a model (arXiv 2106.09685). Nothing here needs torch.

A matrix W of a target becomes W + alpha / rank * B A, with A (rank, inputs) and B (outputs, rank). Only A and B are
trained. trainers/titan/lora.py builds them; trainers/titan/adapter_files.py reads and writes them in PEFT's format.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Gt, Interval

from agents.generator.adapter_folder import SCALES, read_config
from agents.generator.lora_slot import PREFIX, RANKS, TARGETS
from forge_env.core.errors import UserError
from forge_env.utils.settings import MAY_CHANGE
from trainers.families.shape import ModelShape

ALL = "all-linear"
"""The name for all of `TARGETS`."""
IN_ATTENTION, IN_MLP = TARGETS[:4], TARGETS[4:]
"""In a model with experts the matrices of `IN_MLP` are not single matrices."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters, which are trained in the place of all weights; docs/lora.md."""

    rank: Annotated[int, Interval(ge=0, le=1024)] = 0
    """Rows of the adapters' small matrices; 0 trains all weights, without adapters."""
    alpha: Annotated[float, Gt(0)] = 32.0
    """What an adapter computes is multiplied by alpha / rank."""
    targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """The matrices that get an adapter: all-linear, or any of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and
    down_proj, with commas between them."""
    publish: Annotated[Literal["auto", "merged", "adapter"], MAY_CHANGE] = "auto"
    """"merged": the engine gets weights that are summed with the adapter in float32. "adapter": it gets the adapter
    alone, and computes it beside the weights that it started with. "auto" is merged for an engine in float32 and for a
    model with experts. Otherwise it is adapter: rounding to bfloat16 would lose small updates of merged weights."""
    adapter: str = ""
    """An adapter to start from, in PEFT's format: a folder with adapter_config.json. Its rank, alpha and targets must
    be the ones set here. The KL penalty is then against it."""

    def resolve(self, engine_dtype: str, shape: ModelShape | None = None) -> Lora | None:
        """The adapters that are asked for, if `check` is content; None for training all weights.

        Args:
            engine_dtype: what the engine computes in, "float32" or "bfloat16".
            shape: of the model; None if it is not known yet. What the engine gets depends on it.
        """
        if not self.is_on:
            return None
        return Lora(
            rank=self.rank,
            alpha=float(self.alpha),
            targets=tuple(name for name in TARGETS if name in self.targets) or TARGETS,
            adapter=str(Path(self.adapter).expanduser().resolve()) if self.adapter else "",
            publish=self.choose_publish(engine_dtype, shape)[0],
        )

    def choose_publish(
        self, engine_dtype: str, shape: ModelShape | None = None
    ) -> tuple[Literal["merged", "adapter"], str]:
        """What the engine gets, "merged" weights or the "adapter" alone, and why that was chosen; see `resolve`."""
        if self.publish != "auto":
            return self.publish, "as --lora.publish says"
        if engine_dtype == "float32":
            return "merged", "an engine in float32 has merged weights without rounding, and is the fastest with them"
        if shape is not None and shape.num_experts:
            return "merged", "the model has experts, and their kernels differ in an engine that holds adapters"
        if self.rank > RANKS[-1]:
            return "merged", f"the engine takes adapters of rank up to {RANKS[-1]}"
        return "adapter", f"an engine in {engine_dtype} would round small updates of merged weights away"

    def check(self) -> None:
        """Check the names of the targets, the adapter to start from, and what the engine takes."""
        if list(self.targets) != [ALL]:
            _check_targets(self.targets)
        lora = self.resolve("float32")
        if lora is None and self.adapter:
            raise UserError(
                f"--lora.adapter is {self.adapter} and --lora.rank is 0, which trains all weights: set --lora.rank to "
                "the adapter's rank, which its adapter_config.json names r"
            )
        if lora is not None and lora.adapter:
            check_adapter(Path(lora.adapter), lora)
        if self.publish == "adapter" and not 1 <= self.rank <= RANKS[-1]:
            raise UserError(
                f"--lora.publish is adapter and --lora.rank is {self.rank}: the engine takes adapters of rank 1 to "
                f"{RANKS[-1]}: set the rank to that, or --lora.publish to merged"
            )

    def check_shape(self, shape: ModelShape) -> None:
        """Check that a model of this shape takes the adapters."""
        if shape.linear:
            raise UserError(
                f"--lora.rank is {self.rank}, and the model has layers of linear attention, which get no adapter: set "
                "it to 0, which trains all weights"
            )
        if not shape.num_experts:
            return
        if self.publish == "adapter":
            raise UserError(
                "--lora.publish is adapter, which sends the adapter alone, and the model has experts, whose kernels "
                "differ in an engine that holds adapters: set it to merged"
            )
        if set(self.targets) & {ALL, *IN_MLP}:
            targets = ALL if set(self.targets) == set(TARGETS) else ",".join(self.targets)
            raise UserError(
                f"--lora.targets is {targets}, and the model has experts, whose matrices "
                f"{', '.join(IN_MLP)} get no adapter: set it to {','.join(IN_ATTENTION)}, or to some of these"
            )

    @property
    def is_on(self) -> bool:
        """Whether adapters are trained, and not all weights."""
        return self.rank > 0


@dataclass(frozen=True, kw_only=True)
class Lora(LoraConfig):
    """The adapters of a trainer, for example `Lora(rank=16, alpha=32.0)`: the section `lora`, resolved."""

    targets: Sequence[str] = TARGETS  # type: ignore[assignment]
    publish: Literal["auto", "merged", "adapter"] = "merged"

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


def published_parameters(lora: Lora | None, shape: ModelShape) -> int:
    """The number of values in one snapshot of the weights for an engine."""
    return lora.parameters(shape) if lora and lora.publish == "adapter" else shape.parameters


def target_sizes(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """The inputs and outputs of each target's matrix."""
    h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.intermediate_size
    return dict(zip(TARGETS, [(h, q), (h, k), (h, k), (q, h), (h, m), (h, m), (m, h)], strict=True))


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


def check_adapter(folder: Path, lora: Lora) -> None:
    """Check that a PEFT folder has a plain adapter with the rank and alpha of `lora`.

    `check_adapter_shapes` checks its tensors.
    """
    config = read_config(folder, option="--lora.adapter")
    for key in SCALES:
        if config.get(key):
            raise UserError(
                f"--lora.adapter is {folder} with {key} = {config[key]!r}, and a trained adapter has one rank and the "
                "scale alpha / rank: choose another adapter, or merge it into its model and name that"
            )
    for name, key, value in (("rank", "r", lora.rank), ("alpha", "lora_alpha", lora.alpha)):
        if config.get(key) != value:
            raise UserError(
                f"--lora.{name} is {value:g}, and the adapter in {folder} has {key} = {config.get(key)}: set "
                f"--lora.{name} to that"
            )


def adapter_shapes(lora: Lora, shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """The name and the shape of every tensor of an adapter's file, by PEFT's names."""
    sizes, shapes = target_sizes(shape), dict[str, tuple[int, ...]]()
    for layer in range(shape.num_hidden_layers):
        for target in lora.targets:
            inputs, outputs = sizes[target]
            name = f"{PREFIX}model.layers.{layer}.{'mlp' if target in IN_MLP else 'self_attn'}.{target}"
            shapes |= {f"{name}.lora_A.weight": (lora.rank, inputs), f"{name}.lora_B.weight": (outputs, lora.rank)}
    return shapes


def check_adapter_shapes(
    folder: Path, lora: Lora, expected: Mapping[str, tuple[int, ...]], present: Mapping[str, tuple[int, ...]]
) -> None:
    """Check the tensors of an adapter's file against those that the model and the targets ask for."""
    for name in sorted(expected.keys() | present.keys()):
        if name not in present or name not in expected:
            state = "lacks" if name not in present else "has"
            raise UserError(
                f"the adapter in {folder} {state} {name}, which does not fit lora.targets, {','.join(lora.targets)}, "
                "of this model: set lora.targets to the target_modules of its adapter_config.json, or choose its own "
                "model"
            )
        if expected[name] != present[name]:
            raise UserError(
                f"the adapter in {folder} is not of this model: {name} has shape {present[name]} where "
                f"{expected[name]} is expected."
            )


def adapter_config(lora: Lora, base: str) -> dict[str, Any]:
    """PEFT's adapter_config.json.

    Args:
        base: the folder or hub id of the adapters' model.
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
