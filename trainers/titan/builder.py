"""How TorchTitan builds, shards and names the models of a family.

`Builder` builds Qwen3; each family in `trainers/families/` names its subclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common import Embedding, Linear, RMSNorm, RoPE, TransformerBlock
from torchtitan.models.common.attention import GQAttention, VarlenAttention
from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.parallelize import parallelize_qwen3
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.state_dict_adapter import StateDictAdapter

from trainers.families.family import head_sizes
from trainers.families.rope import rope_parameters
from trainers.families.table import family_of
from trainers.titan.attention import CausalSDPA
from trainers.titan.experts import experts_config
from trainers.titan.rope import ScaledCosSinRoPE, scaling_of

SKIP = {"weight": skip_param_init, "bias": skip_param_init}
"""Every weight is loaded after construction, so initial values would be wasted work."""


class Builder:
    """The model of one folder, in TorchTitan's terms.

    Args:
        config: Hugging Face's, as `trainers.families.table.read_config` returns it.
        fuse_qkv: compute queries, keys and values with one matrix.
    """

    model: ClassVar[type[Decoder.Config]] = Qwen3Model.Config
    block: ClassVar[type[TransformerBlock.Config]] = Qwen3TransformerBlock.Config
    rope: ClassVar[type[RoPE.Config]] = ScaledCosSinRoPE.Config
    adapter: ClassVar[type[StateDictAdapter]] = Qwen3StateDictAdapter
    """Translates names and layouts of weights between Hugging Face and TorchTitan."""

    def __init__(self, config: Mapping[str, Any], *, attention: str, fuse_qkv: bool) -> None:
        self.hf = config
        self.family = family_of(config)
        self.attention = attention
        self.fuse_qkv = fuse_qkv

    def decoder(self) -> Decoder.Config:
        """The whole model."""
        vocabulary, width = self.hf["vocab_size"], self.hf["hidden_size"]
        return self.model(
            vocab_size=vocabulary,
            dim=width,
            norm=self.norm(width),
            enable_weight_tying=self.hf.get("tie_word_embeddings") or False,
            tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=width, param_init=SKIP),
            lm_head=Linear.Config(in_features=width, out_features=vocabulary, param_init=SKIP),
            layers=[self.layer(number) for number in range(self.hf["num_hidden_layers"])],
        )

    def layer(self, number: int) -> TransformerBlock.Config:
        """One transformer block."""
        width = self.hf["hidden_size"]
        return self.block(
            attention=self.attention_of(number),
            attention_norm=self.norm(width),
            ffn_norm=self.norm(width),
            **self.mlp(),
        )

    def attention_of(self, number: int) -> Any:
        """The attention of a layer."""
        heads, kv_heads, head_dim = head_sizes(self.hf)
        gqa: GQAttention.Config = make_gqa_config(
            dim=self.hf["hidden_size"],
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=head_dim,
            wqkv_param_init=SKIP,
            wo_param_init=SKIP,
            inner_attention=self.kernel(self.family.windows(self.hf)[number]),
            fuse_qkv=self.fuse_qkv,
            rope=self.rope(
                dim=head_dim, max_seq_len=self.hf["max_position_embeddings"], **scaling_of(rope_parameters(self.hf))
            ),
            qk_norm=self.norm(head_dim) if self.family.qk_norm else None,
        )
        for name in ("wqkv",) if self.fuse_qkv else ("wq", "wkv"):
            projection = getattr(gqa.qkv_linear, name)
            projection.bias, projection.param_init = self.family.qkv_bias, SKIP
        return gqa

    def kernel(self, window: int | None) -> Any:
        """What attends, for a layer with this window; the masks are `TitanModel`'s."""
        if self.attention == "varlen" and window is not None:
            return VarlenAttention.Config(window_size=(window - 1, 0))
        return CausalSDPA.Config() if self.attention == "sdpa" else get_attention_config(self.attention)

    @property
    def windows(self) -> list[int | None]:
        """The different windows of the layers."""
        return list(dict.fromkeys(self.family.windows(self.hf)))

    def mlp(self) -> dict[str, Any]:
        """A block's MLP or experts, by the name of the block's part."""
        width, experts = self.hf["hidden_size"], self.family.experts(self.hf)
        if experts is not None:
            return {"moe": experts_config(width, experts, SKIP)}
        hidden = self.hf["intermediate_size"]
        return {"feed_forward": make_ffn_config(dim=width, hidden_dim=hidden, w1_param_init=SKIP, w2w3_param_init=SKIP)}

    def norm(self, size: int) -> RMSNorm.Config:
        """A norm of vectors of this size."""
        return RMSNorm.Config(normalized_shape=size, eps=self.hf.get("rms_norm_eps", 1e-6), param_init=SKIP)

    def shard(self, config: Any, *, enable_sp: bool, enable_ep: bool) -> None:
        """Fill in how the matrices of a decoder's config are cut for tensor and expert parallelism."""
        set_qwen3_sharding_config(config, enable_sp=enable_sp, enable_ep=enable_ep)

    def parallelize(self, module: Any, *, skip_dp: bool, **settings: Any) -> Any:
        """TorchTitan's tensor parallelism, activation checkpointing, compilation and FSDP, in this order."""
        return parallelize_qwen3(module, skip_dp=skip_dp, **settings)


def builder_of(config: Mapping[str, Any]) -> type[Builder]:
    """The class that builds the models of a config's family."""
    module, _, name = family_of(config).builder.partition(":")
    builder: type[Builder] = getattr(import_module(module), name)
    return builder
