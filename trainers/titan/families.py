"""The model families that can be trained: what a Hugging Face config.json means, in TorchTitan's terms.

    TITAN[model_type]       how TorchTitan builds, shards and names an architecture
    read_config(folder)     its config.json, if everything in it is supported
    titan_config(config)    the same as TorchTitan's config of a model

TorchTitan has no Qwen2.5. Here it is TorchTitan's Qwen3 without the norms of queries and keys, and with biases in their
projections; TorchTitan's sharding and fused projections know these. Qwen3 with experts is TorchTitan's Qwen3 with the
layers of experts.py. TorchTitan has no Mixtral, and no gated shared expert, which Qwen2-MoE has.

Llama's queries and keys are rotated as complex numbers, in pairs of neighbours. Hugging Face stores their weights for
pairs that lie half a head apart. TorchTitan's adapter reorders the rows on the way in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

# First of all TorchTitan imports: it settles the device for the others.
import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm, RoPE, TransformerBlock
from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.parallelize import parallelize_qwen3
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.state_dict_adapter import StateDictAdapter

from trainers.model.families import FAMILIES, LLAMA3_ROPE, head_sizes, read_experts, rope_parameters
from trainers.titan.attention import CausalSDPA
from trainers.titan.experts import ReplayedBlock, ReplayedModel, experts_config

# Every weight is loaded after construction, so initial values would be wasted work.
_SKIP = {"weight": skip_param_init, "bias": skip_param_init}
_TITAN_ROPE = {"factor": "scaling_factor"}  # Hugging Face's name -> TorchTitan's, if they differ


class Qwen2StateDictAdapter(Qwen3StateDictAdapter):
    """Names of Qwen2.5: Qwen3's names, and the biases of the query, key and value projections."""

    def __init__(self, model_config: Qwen3Model.Config, hf_assets_path: str | None) -> None:
        super().__init__(model_config, hf_assets_path)
        for letter in "qkv":
            name = f"model.layers.{{}}.self_attn.{letter}_proj.bias"
            self.from_hf_map[name] = f"layers.{{}}.attention.qkv_linear.w{letter}.bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanFamily:
    """How TorchTitan builds, shards and names one architecture of Hugging Face."""

    model: type[Decoder.Config]
    block: type[TransformerBlock.Config]
    rope: type[RoPE.Config]
    adapter: type[StateDictAdapter]
    """Translates names and layouts of weights between Hugging Face and TorchTitan."""
    shard: Callable[..., None]
    """Fill in how the config's matrices are cut for tensor and expert parallelism: shard(config, enable_sp=,
    enable_ep=)."""
    parallelize: Callable[..., Any]
    """TorchTitan's tensor parallelism, activation checkpointing, compilation and FSDP, in this order."""


def _shard_llama(config: Llama3Model.Config, *, enable_sp: bool, enable_ep: bool) -> None:
    set_llama3_sharding_config(config, enable_sp=enable_sp)


def _parallelize_llama(model: Llama3Model, *, skip_dp: bool, **settings: Any) -> Llama3Model:
    """parallelize_llama, which always wraps a model in FSDP. Without FSDP parallelize_qwen3 does what it would do."""
    return parallelize_qwen3(model, skip_dp=True, **settings) if skip_dp else parallelize_llama(model, **settings)


_QWEN3 = TitanFamily(
    model=Qwen3Model.Config,
    block=Qwen3TransformerBlock.Config,
    rope=CosSinRoPE.Config,
    adapter=Qwen3StateDictAdapter,
    shard=set_qwen3_sharding_config,
    parallelize=parallelize_qwen3,
)
# model_type of config.json -> how TorchTitan builds it
TITAN = {
    "qwen3": _QWEN3,
    "qwen3_moe": replace(_QWEN3, model=ReplayedModel.Config, block=ReplayedBlock.Config),
    "llama": TitanFamily(
        model=Llama3Model.Config,
        block=Llama3TransformerBlock.Config,
        rope=ComplexRoPE.Config,
        adapter=Llama3StateDictAdapter,
        shard=_shard_llama,
        parallelize=_parallelize_llama,
    ),
    "qwen2": replace(_QWEN3, adapter=Qwen2StateDictAdapter),
}


def titan_config(config: Mapping[str, Any], *, attention: str, fuse_qkv: bool) -> Decoder.Config:
    """Translate a Hugging Face config into TorchTitan's.

    Args:
        config: as `trainers.model.families.read_config` returns it.
        attention: "sdpa", "flex" or "varlen".
        fuse_qkv: compute queries, keys and values with one matrix.
    """
    vocabulary, width = config["vocab_size"], config["hidden_size"]
    return TITAN[config["model_type"]].model(
        vocab_size=vocabulary,
        dim=width,
        norm=_norm(config, width),
        enable_weight_tying=config.get("tie_word_embeddings") or False,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=width, param_init=_SKIP),
        lm_head=Linear.Config(in_features=width, out_features=vocabulary, param_init=_SKIP),
        layers=[_layer(config, attention=attention, fuse_qkv=fuse_qkv) for _ in range(config["num_hidden_layers"])],
    )


def _layer(config: Mapping[str, Any], *, attention: str, fuse_qkv: bool) -> TransformerBlock.Config:
    kind, width = config["model_type"], config["hidden_size"]
    family, titan = FAMILIES[kind], TITAN[kind]
    heads, kv_heads, head_dim = head_sizes(config)
    gqa = make_gqa_config(
        dim=width,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        wqkv_param_init=_SKIP,
        wo_param_init=_SKIP,
        inner_attention=CausalSDPA.Config() if attention == "sdpa" else get_attention_config(attention),
        fuse_qkv=fuse_qkv,
        rope=_rope(config, titan.rope, head_dim),
        qk_norm=_norm(config, head_dim) if family.qk_norm else None,
    )
    for name in ("wqkv",) if fuse_qkv else ("wq", "wkv"):
        projection = getattr(gqa.qkv_linear, name)
        projection.bias, projection.param_init = family.qkv_bias, _SKIP
    experts = read_experts(config)
    if experts is not None:
        mlp: dict[str, Any] = {"moe": experts_config(width, experts, _SKIP)}
    else:
        hidden = config["intermediate_size"]
        mlp = {
            "feed_forward": make_ffn_config(dim=width, hidden_dim=hidden, w1_param_init=_SKIP, w2w3_param_init=_SKIP)
        }
    return titan.block(attention=gqa, attention_norm=_norm(config, width), ffn_norm=_norm(config, width), **mlp)


def _norm(config: Mapping[str, Any], size: int) -> RMSNorm.Config:
    return RMSNorm.Config(normalized_shape=size, eps=config.get("rms_norm_eps", 1e-6), param_init=_SKIP)


def _rope(config: Mapping[str, Any], kind: type[RoPE.Config], head_dim: int) -> RoPE.Config:
    rope = rope_parameters(config)
    scaling = {_TITAN_ROPE.get(name, name): rope[name] for name in LLAMA3_ROPE} if rope["rope_type"] == "llama3" else {}
    return kind(
        dim=head_dim,
        max_seq_len=config["max_position_embeddings"],
        theta=rope["rope_theta"],
        scaling="llama" if scaling else "none",
        **scaling,
    )
