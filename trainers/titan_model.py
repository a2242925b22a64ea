"""TorchTitan's Qwen3, behind five methods: the only file that knows its internals.

It reads a Hugging Face folder (config.json and safetensors), builds the model on the meta device, shards it, loads
the weights, and gives them back under Hugging Face names. Dense Qwen3 only: other architectures, rope scaling,
sliding windows and attention biases are refused with a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchtitan.tools.utils as titan_utils
from torch import Tensor, nn

# Without an accelerator TorchTitan takes "cuda" for granted, and its other modules copy these two names when they
# are imported: they have to be right before anything else of TorchTitan is loaded.
if not torch.accelerator.is_available():
    titan_utils.device_type, titan_utils.device_module = "cpu", torch.cpu

# On Hopper TorchTitan's varlen attention insists on FlashAttention 3; without its package torch's own kernel serves.
if titan_utils.get_cuda_flash_attention_impl() == "FA3" and find_spec("flash_attn_interface") is None:
    titan_utils.get_cuda_flash_attention_impl = lambda: None

from safetensors import SafetensorError, safe_open
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.qwen3 import _build_qwen3_layers
from torchtitan.models.qwen3.model import Qwen3Model
from torchtitan.models.qwen3.parallelize import parallelize_qwen3
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.module import Module

from forge_env.errors import UserError

SPMD_BACKEND = "partial_dtensor"  # the default, "spmd_types", wants fused QKV weights and every parameter on a mesh


def device() -> torch.device:
    """The device of this process: the accelerator of its local rank, else the CPU."""
    if titan_utils.device_type == "cpu":
        return torch.device("cpu")
    return torch.device(titan_utils.device_type, titan_utils.device_module.current_device())


class CausalSDPA(Module):
    """Attention for the CPU, where TorchTitan's own have no backward (flex) or no kernel (varlen)."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()

    # TorchTitan's sharding code finds the arguments by these names.
    def forward(
        self,
        q_BLNH: Tensor,
        k_BLNH: Tensor,
        v_BLNH: Tensor,
        *,
        attention_masks: Tensor | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Attend causally, or as the boolean mask (B, 1, L, L) says; returns (B, L, N, H)."""
        out = F.scaled_dot_product_attention(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            attn_mask=attention_masks,
            is_causal=attention_masks is None,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return out.transpose(1, 2)


class Qwen3:
    """A sharded Qwen3 with the weights of a Hugging Face folder.

    Args:
        folder: holds config.json and model.safetensors, or model.safetensors.index.json with its shards.
        parallel: TorchTitan's meshes; the process group must be up.
        dtype: "float32", or "bfloat16" to compute in bfloat16 over float32 master weights.
        attention: "sdpa", "flex" or "varlen".
        compile: compile each transformer block.

    Raises:
        UserError: the folder lacks a file, is not a dense Qwen3, or cannot be cut as `parallel` says.
    """

    def __init__(
        self, folder: Path, parallel: ParallelDims, *, dtype: str, attention: str, compile: bool = False
    ) -> None:
        self.folder = folder
        self.hf_config = read_config(folder)
        self.attention = attention
        self.parallel = parallel
        self.device = device()
        self.config = titan_config(self.hf_config, attention=attention, fuse_qkv=self.device.type != "cpu")
        self.adapter = Qwen3StateDictAdapter(self.config, None)
        self._selected: Tensor | None = None
        _check_degrees(self.hf_config, parallel)
        self.module = self._build(dtype, compile)
        self.module.get_submodule("lm_head").register_forward_pre_hook(self._select)
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
            selected: (N,) int64 places in the flattened (B, L).

        Returns:
            (N, vocabulary) in the dtype the model computes in, with gradient.
        """
        self._selected = selected
        out = self.module(tokens, attention_masks=self._masks(tokens, positions), positions=positions)
        if isinstance(out, DTensor):  # tensor parallel: the vocabulary is sharded
            out = out.full_tensor()
        return out.flatten(0, 1)[selected] if self.parallel.tp_enabled else out[0]

    def hf_state_dict(self) -> dict[str, Tensor]:
        """Weights under Hugging Face names: full, detached and contiguous, on their device.

        A collective when sharded: every rank calls it. Tied weights appear once, as transformers saves them. Where
        nothing had to be gathered the tensors share memory with the live weights.
        """
        with torch.no_grad():
            named = self.adapter.to_hf(dict(self.module.state_dict()))
            return {
                name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().contiguous()
                for name, value in named.items()
            }

    def load_hf(self, weights: Mapping[str, Tensor]) -> None:
        """Replace all weights; raises UserError when names or shapes do not fit the model."""
        own = self.module.state_dict()
        if self.config.enable_weight_tying:  # some folders keep a copy of the tied weight: the embedding counts
            weights = {name: value for name, value in weights.items() if name != "lm_head.weight"}
        try:
            given = self.adapter.from_hf(dict(weights))
        except KeyError as error:
            raise UserError(f"{self.folder} has a weight that Qwen3 does not know: {error}.") from None
        _check_weights(self.folder, own, given)
        with torch.no_grad():
            self.module.load_state_dict({name: _like(own[name], value) for name, value in given.items()})

    def _build(self, dtype: str, compile: bool) -> Qwen3Model:
        parallelism = ParallelismConfig(
            data_parallel_shard_degree=self.parallel.dp_shard,
            tensor_parallel_degree=self.parallel.tp,
            spmd_backend=SPMD_BACKEND,
        )
        if self.parallel.tp_enabled:
            set_qwen3_sharding_config(self.config, enable_sp=parallelism.enable_sequence_parallel, enable_ep=False)
        with torch.device("meta"):
            module: Qwen3Model = self.config.build()
        module = parallelize_qwen3(
            module,
            parallel_dims=self.parallel,
            training=TrainingConfig(mixed_precision_param=dtype),
            parallelism=parallelism,
            compile_config=CompileConfig(enable=compile),
            ac_config=None,
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

    def _masks(self, tokens: Tensor, positions: Tensor | None) -> Any:
        if self.attention == "sdpa":
            return None if positions is None else document_mask(positions)
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        return self.module.get_attention_masks(positions)

    def _select(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._selected is None or self.parallel.tp_enabled:  # DTensors are chosen from after the output layer
            return None
        (hidden,) = args  # (B, L, D)
        return (hidden.flatten(0, 1)[self._selected][None],)  # (1, N, D)


def document_mask(positions: Tensor) -> Tensor:
    """Boolean attention mask (B, 1, L, L): causal, and within the document that starts at each position 0."""
    document = (positions == 0).cumsum(1)  # (B, L)
    same = document[:, :, None] == document[:, None, :]
    return same.tril_()[:, None]


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json and make sure that it is a dense Qwen3 of the plain kind."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a Hugging Face model folder: it has no config.json.")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    architecture = (config.get("architectures") or [config.get("model_type", "unknown")])[0]
    if config.get("model_type") != "qwen3":
        raise UserError(f"{folder} is a {architecture}: only Qwen3ForCausalLM (dense) can be trained.")
    rope = rope_parameters(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    unsupported = {
        f"rope scaling {kind!r}": kind != "default",
        "attention_bias": config.get("attention_bias", False),
        "use_sliding_window": config.get("use_sliding_window", False),
        f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
    }
    for what, found in unsupported.items():
        if found:
            raise UserError(f"{path} asks for {what}, which the trainer does not support: set it to Qwen3's default.")
    return config


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope settings, wherever this version of transformers wrote them."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return rope


def titan_config(config: Mapping[str, Any], *, attention: str, fuse_qkv: bool) -> Qwen3Model.Config:
    """Translate a Hugging Face config into TorchTitan's."""
    vocabulary, width, heads = config["vocab_size"], config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or width // heads
    tied = config.get("tie_word_embeddings", False)
    norm = {"eps": config.get("rms_norm_eps", 1e-6), "param_init": {"weight": nn.init.ones_}}
    # Every weight is loaded after construction, so initial values would be wasted work.
    skip = {"weight": skip_param_init}
    rope = CosSinRoPE.Config(
        dim=head_dim, max_seq_len=config["max_position_embeddings"], theta=rope_parameters(config)["rope_theta"]
    )
    layers = _build_qwen3_layers(
        n_layers=config["num_hidden_layers"],
        dim=width,
        n_heads=heads,
        n_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        hidden_dim=config["intermediate_size"],
        fuse_qkv=fuse_qkv,
        attn_backend="flex" if attention == "sdpa" else attention,
        rope=rope,
    )
    for layer in layers:
        layer.attention_norm = RMSNorm.Config(normalized_shape=width, **norm)
        layer.ffn_norm = RMSNorm.Config(normalized_shape=width, **norm)
        layer.attention.qk_norm = RMSNorm.Config(normalized_shape=head_dim, **norm)
        if attention == "sdpa":
            layer.attention.inner_attention = CausalSDPA.Config()
    return Qwen3Model.Config(
        vocab_size=vocabulary,
        dim=width,
        norm=RMSNorm.Config(normalized_shape=width, **norm),
        enable_weight_tying=tied,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=width, param_init=skip),
        lm_head=Linear.Config(in_features=width, out_features=vocabulary, param_init=skip),
        layers=layers,
    )


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


def _check_degrees(config: Mapping[str, Any], parallel: ParallelDims) -> None:
    for what in ("num_attention_heads", "num_key_value_heads"):
        if config.get(what, parallel.tp) % parallel.tp:
            raise UserError(f"tp={parallel.tp} does not divide {what}={config[what]}: choose a divisor.")


def _check_weights(folder: Path, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for name in sorted(own.keys() | given.keys()):
        if name not in given or name not in own:
            state = "lacks" if name not in given else "has a superfluous"
            raise UserError(f"{folder} does not fit its config.json: it {state} weight {name}.")
        if own[name].shape != given[name].shape:
            raise UserError(
                f"{folder} does not fit its config.json: weight {name} has shape {tuple(given[name].shape)} "
                f"where {tuple(own[name].shape)} is expected."
            )


def _like(own: Tensor, value: Tensor) -> Tensor:
    """Cast and shard a full tensor like the model's own."""
    value = value.to(device=own.device, dtype=own.dtype)
    return distribute_tensor(value, own.device_mesh, own.placements) if isinstance(own, DTensor) else value


def _share_rope(module: Qwen3Model) -> None:
    """Let all layers use one table of positions: 28 copies of Qwen3's would take 1.2 GB."""
    ropes = [part for part in module.modules() if isinstance(part, CosSinRoPE)]
    for rope in ropes[1:]:
        rope.cache = ropes[0].cache
