"""A TorchTitan model behind a few methods: the only file that knows its internals.

It reads a Hugging Face folder (config.json and safetensors), builds the model on the meta device, shards it, loads
the weights, and gives them back under Hugging Face names. families.py says which architectures there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan.device import SPMD_BACKEND, device  # isort: skip
from safetensors import SafetensorError, safe_open
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common import Decoder, RoPE

from forge_env.core.errors import UserError
from trainers.titan.attention import document_mask
from trainers.titan.context import Context
from trainers.titan.families import FAMILIES, head_sizes, read_config, titan_config
from trainers.titan.lm_head import Head

# TorchTitan's settings for what is computed again in the backward pass.
ACTIVATION_CHECKPOINTS = {"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}


class TitanModel:
    """A sharded model with the weights of a Hugging Face folder.

    Args:
        folder: holds config.json and model.safetensors, or model.safetensors.index.json with its shards.
        parallel: TorchTitan's meshes; the process group must be up.
        dtype: "float32", or "bfloat16" to compute in bfloat16 over float32 master weights.
        attention: "sdpa", "flex" or "varlen".
        compile: compile each transformer block.
        activation_checkpoint: a key of `ACTIVATION_CHECKPOINTS`: "none" keeps all activations for the backward pass,
            "selective" computes the cheap ones and every second matrix product again, "full" each block whole.
        keep_logits_gib: as `TitanSettings.keep_logits_gib`.

    Raises:
        UserError: the folder lacks a file, is not of a family that can be trained, or cannot be cut as `parallel` says.
    """

    def __init__(
        self,
        folder: Path,
        parallel: ParallelDims,
        *,
        dtype: str,
        attention: str,
        compile: bool = False,
        activation_checkpoint: str = "none",
        keep_logits_gib: float = 0.0,
    ) -> None:
        self.folder = folder
        self.hf_config = read_config(folder)
        self.attention = attention
        self.parallel = parallel
        self.context = Context.of(parallel)
        self.device = device()
        self.family = FAMILIES[self.hf_config["model_type"]]
        self.config = titan_config(self.hf_config, attention=attention, fuse_qkv=self.device.type != "cpu")
        self.adapter = self.family.adapter(self.config, None)
        _check_degrees(self.hf_config, parallel)
        self.module = self._build(dtype, compile, activation_checkpoint)
        kept = keep_logits_gib * 2**30 if self.device.type != "cpu" else 0
        self._head = Head(self.module.get_submodule("lm_head"), kept)
        self.load_hf(read_weights(folder))

    @property
    def max_length(self) -> int:
        """The longest row that the position embedding covers."""
        return self.config.max_seq_len

    def logits(self, tokens: Tensor, positions: Tensor | None, selected: Tensor) -> Tensor:
        """Run the model and return the logits of some places only.

        The choice is made before the output layer, which is most of the work of a small model and most of the
        memory of a large one.

        Args:
            tokens: (B, L) int64.
            positions: (B, L) int64 that restart at 0 with each packed row; None when each sequence is one row.
            selected: (N,) int64 places in the flattened (B, L); with context parallelism, all of this rank's part.

        Returns:
            (N, vocabulary) in the dtype the model computes in, with gradient.
        """
        self._head.ask_logits(self._places(tokens, selected))
        return self._run(tokens, positions)

    def logprobs(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        selected: Tensor,
        targets: Tensor,
        temperature: float,
        *,
        with_entropy: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Logprobs of targets (N,) int64 at the places `selected`, without ever holding all their logits.

        Args, beside those of `logits`:
            temperature: above 0; logits are divided by it.
            with_entropy: also return the entropy at each place.

        Returns:
            Logprobs (N,), and entropies (N,) in nats or None: float32, with gradient, the same on tensor ranks.
        """
        self._head.ask_logprobs(self._places(tokens, selected), targets, temperature, with_entropy)
        return self._run(tokens, positions)

    def hf_state_dict(self) -> dict[str, Tensor]:
        """Weights under Hugging Face names: full, detached and contiguous, on their device.

        A collective when sharded: every rank calls it. Tied weights appear once, as transformers saves them. Most
        tensors share memory with the live weights where nothing had to be gathered or reordered.
        """
        with torch.no_grad():
            state = {name: value for name, value in self.module.state_dict().items() if not self._is_copy(name)}
            # Gathered first: the rows of a sharded matrix cannot be reordered where a head lies on two ranks.
            full = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}
            return {name: value.detach().contiguous() for name, value in self.adapter.to_hf(full).items()}

    def load_hf(self, weights: Mapping[str, Tensor]) -> None:
        """Replace all weights; raises UserError when names or shapes do not fit the model."""
        present = self.module.state_dict()
        # Some folders keep a copy of the tied weight, and old ones the frequencies of the position embedding.
        weights = {
            name: value
            for name, value in weights.items()
            if not self._is_copy(name) and not name.endswith("rotary_emb.inv_freq")
        }
        shapes = {name: torch.empty(value.shape, device="meta") for name, value in present.items()}
        _check_weights(self.folder, self.adapter.to_hf(shapes), weights)
        given = self.adapter.from_hf(weights)
        with torch.no_grad():
            self.module.load_state_dict({name: _like(present[name], value) for name, value in given.items()})

    def _is_copy(self, name: str) -> bool:
        """Whether a weight, under either name, is the embedding once more: the embedding counts."""
        return self.config.enable_weight_tying and name == "lm_head.weight"

    def _build(self, dtype: str, compile: bool, activation_checkpoint: str) -> Decoder:
        if activation_checkpoint not in ACTIVATION_CHECKPOINTS:
            known = ", ".join(map(repr, ACTIVATION_CHECKPOINTS))
            raise UserError(f"activation_checkpoint={activation_checkpoint!r} is not known: use one of {known}.")
        parallelism = ParallelismConfig(
            data_parallel_shard_degree=self.parallel.dp_shard,
            tensor_parallel_degree=self.parallel.tp,
            context_parallel_degree=self.parallel.cp,
            spmd_backend=SPMD_BACKEND,
        )
        if self.parallel.tp_enabled:
            self.family.shard(self.config, enable_sp=parallelism.enable_sequence_parallel)
        with torch.device("meta"):
            module: Decoder = self.config.build()
        module = self.family.parallelize(
            module,
            parallel_dims=self.parallel,
            training=TrainingConfig(mixed_precision_param=dtype),
            parallelism=parallelism,
            compile_config=CompileConfig(enable=compile),
            ac_config=ACTIVATION_CHECKPOINTS[activation_checkpoint],
            dump_folder="",
            # One process in float32 has nothing to shard or to cast: plain tensors are faster.
            skip_dp=self.parallel.world_size == 1 and dtype == "float32",
        )
        if self.device.type == "cpu":
            for part in module.modules():
                if isinstance(part, FSDPModule):  # gloo knows neither averages nor pre-multiplied sums
                    part.set_force_sum_reduction_for_comms(True)
        module.to_empty(device=self.device)
        with torch.no_grad():
            module.init_weights(buffer_device=None)
        _share_rope(module)
        return module

    def _places(self, tokens: Tensor, selected: Tensor) -> Tensor:
        """Where the output layer finds them: context parallelism gives it this rank's part of the tokens."""
        return selected if self.context.ranks == 1 else self.context.local_places(selected, tokens.shape[1])

    def _run(self, tokens: Tensor, positions: Tensor | None) -> Any:
        if self.context.ranks > 1:
            return self._run_part(tokens, _positions(tokens) if positions is None else positions)
        return self.module(tokens, attention_masks=self._masks(tokens, positions), positions=positions)

    def _run_part(self, tokens: Tensor, positions: Tensor) -> Any:
        """The forward pass of this rank's part; every rank gets whole sequences, which are small beside activations."""
        if self.attention == "sdpa":
            masks: Any = self.context.mask(positions)
        else:
            masks = self.context.block_mask(positions, self.config.first_attention.inner_attention.block_size)
        # Only padding is beyond the last position that there is.
        positions = self.context.cut(positions).clamp(max=self.max_length - 1)
        return self.module(self.context.cut(tokens), attention_masks=masks, positions=positions)

    def _masks(self, tokens: Tensor, positions: Tensor | None) -> Any:
        if self.attention == "sdpa":
            return None if positions is None else document_mask(positions)
        return self.module.get_attention_masks(_positions(tokens) if positions is None else positions)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Load the safetensors of a folder, one file or several with an index, on the CPU."""
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            raise UserError(f"{index} is damaged: it has no weight_map.") from None
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise UserError(f"{folder} has no weights: {', '.join(missing)} is missing.")
    weights: dict[str, Tensor] = {}
    for name in sorted(names):
        try:
            with safe_open(folder / name, framework="pt") as file:
                weights.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118  not a dictionary
        except SafetensorError as error:
            raise UserError(f"{folder / name} is damaged: {error}.") from None
    return weights


def _positions(tokens: Tensor) -> Tensor:
    """(B, L) int64, of sequences that are one row each."""
    return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)


def _check_degrees(config: Mapping[str, Any], parallel: ParallelDims) -> None:
    heads, kv_heads, _ = head_sizes(config)
    for name, number in {"num_attention_heads": heads, "num_key_value_heads": kv_heads}.items():
        if number % parallel.tp:
            raise UserError(f"tp={parallel.tp} does not divide {name}={number}: choose a divisor.")


def _check_weights(folder: Path, present: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for name in sorted(present.keys() | given.keys()):
        if name not in given or name not in present:
            state = "lacks" if name not in given else "has a superfluous"
            raise UserError(f"{folder} does not fit its config.json: it {state} weight {name}.")
        if present[name].shape != given[name].shape:
            raise UserError(
                f"{folder} does not fit its config.json: weight {name} has shape {tuple(given[name].shape)} "
                f"where {tuple(present[name].shape)} is expected."
            )


def _like(present: Tensor, value: Tensor) -> Tensor:
    """Cast and shard a full tensor like the model's own."""
    value = value.to(device=present.device, dtype=present.dtype)
    return distribute_tensor(value, present.device_mesh, present.placements) if isinstance(present, DTensor) else value


def _share_rope(module: Decoder) -> None:
    """Let all layers use one table of positions: 28 copies of Qwen3's would take 1.2 GB."""
    ropes = [part for part in module.modules() if isinstance(part, RoPE)]
    for rope in ropes[1:]:
        rope.cache = ropes[0].cache
