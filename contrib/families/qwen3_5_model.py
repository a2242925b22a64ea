"""Qwen3.5 on TorchTitan's decoder: gated attention, and layers with a gated delta rule (arXiv 2412.06464).

TorchTitan's own Qwen3.5 needs the package fla to be imported, also on a CPU, and a vision encoder, and cannot tie its
output layer. delta_rule.py has the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan.device import device  # isort: skip
import spmd_types as spmd
from torchtitan.config import CompileConfig
from torchtitan.models.common import Linear, RMSNorm, RoPE, TransformerBlock
from torchtitan.models.common.attention import BaseAttention
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.feed_forward import SigmoidGatedFeedForward
from torchtitan.models.common.moe_sharding import set_moe_sharding_config
from torchtitan.models.common.nn_modules import Conv1d
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.module import Module

from contrib.families.delta_rule import PackedRows, delta_rule
from contrib.families.qwen3_5 import Qwen35
from trainers.families.shape import LinearAttention
from trainers.titan.builder import SKIP, Builder
from trainers.titan.experts import WEIGHTS, ReplayedModel
from trainers.titan.rope import scaling_of


class ShiftedRMSNorm(RMSNorm):
    """A norm with the factor 1 + weight."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.normalized_shape, 1.0 + self.weight.float(), self.eps).to(x.dtype)


class GatedAttention(BaseAttention):
    """Attention with an output that is multiplied with a sigmoid of its input; a part of each head is rotated."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseAttention.Config):
        n_kv_heads: int
        head_dim: int
        rope: RoPE.Config
        wq: Linear.Config
        wk: Linear.Config
        wv: Linear.Config
        wo: Linear.Config
        norm: RMSNorm.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim, self.rope_dim = config.head_dim, config.rope.dim
        self.enable_gqa = config.n_heads > config.n_kv_heads
        self.wq, self.wk, self.wv, self.wo = (part.build() for part in (config.wq, config.wk, config.wv, config.wo))
        self.q_norm, self.k_norm = config.norm.build(), config.norm.build()
        self.rope = config.rope.build()
        self.inner_attention = config.inner_attention.build()

    def forward(self, x: Tensor, attention_masks: Any, positions: Tensor | None) -> Tensor:
        query, gate = self.wq(x).unflatten(-1, (-1, 2 * self.head_dim)).chunk(2, dim=-1)
        key, value = (part(x).unflatten(-1, (-1, self.head_dim)) for part in (self.wk, self.wv))
        query, key = self.q_norm(query), self.k_norm(key)
        rotations = self.rope(query[..., : self.rope_dim], key[..., : self.rope_dim], positions)
        query, key = (
            torch.cat([part, whole[..., self.rope_dim :]], dim=-1)
            for part, whole in zip(rotations, (query, key), strict=True)
        )
        out = self.inner_attention(
            query, key, value, attention_masks=attention_masks, scale=self.head_dim**-0.5, enable_gqa=self.enable_gqa
        )
        output: Tensor = self.wo((out * gate.sigmoid()).flatten(2))
        return output


class GatedDelta(Module):
    """A layer with a memory of one matrix a head: it decays, and a token replaces what its key gives by its value."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        sizes: LinearAttention
        in_proj_qkv: Linear.Config
        in_proj_z: Linear.Config
        in_proj_b: Linear.Config
        in_proj_a: Linear.Config
        out_proj: Linear.Config
        conv1d: Conv1d.Config
        norm: RMSNorm.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.sizes = config.sizes
        self.in_proj_qkv, self.in_proj_z = config.in_proj_qkv.build(), config.in_proj_z.build()
        self.in_proj_b, self.in_proj_a = config.in_proj_b.build(), config.in_proj_a.build()
        self.out_proj, self.conv1d, self.norm = config.out_proj.build(), config.conv1d.build(), config.norm.build()
        self.A_log = nn.Parameter(torch.empty(config.sizes.value_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.sizes.value_heads))

    def forward(self, x: Tensor, rows: PackedRows) -> Tensor:
        flat, sizes = x.flatten(0, 1), self.sizes
        keys = sizes.key_heads * sizes.key_dim
        qkv = F.silu(self._convolve(self.in_proj_qkv(flat), rows.place)).to(x.dtype)
        query, key, value = qkv.split([keys, keys, sizes.value_size], dim=-1)
        query, key = (part.unflatten(-1, (-1, sizes.key_dim)) for part in (query, key))
        value = value.unflatten(-1, (-1, sizes.value_dim))
        gate = self.in_proj_z(flat).view_as(value)
        decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(flat).float() + self.dt_bias)
        out = self.norm(delta_rule(query, key, value, decay, self.in_proj_b(flat).sigmoid(), rows))
        out = (out * F.silu(gate.float())).to(x.dtype)
        output: Tensor = self.out_proj(out.flatten(1)).view_as(x)
        return output

    def _convolve(self, x: Tensor, place: Tensor) -> Tensor:
        """Each channel's weighted sum over the last tokens of a row, (T, channels) float32: zeros lie before each row.

        Shifts are compiled into one kernel. Torch's own convolution of channels is several times slower.
        """
        x, weight = x.float(), self.conv1d.weight[:, 0].float()
        shifts = (torch.where(place[:, None] < gap, 0.0, x.roll(gap, 0)) for gap in range(self.sizes.kernel))
        return sum((part * weight[:, -1 - gap] for gap, part in enumerate(shifts)), torch.zeros((), device=x.device))


class HybridBlock(TransformerBlock):
    """A block with one of the two kinds of attention."""

    @dataclass(kw_only=True, slots=True)
    class Config(TransformerBlock.Config):
        attention: GatedAttention.Config | None = None  # as Decoder.first_attention has it
        delta: GatedDelta.Config | None = None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = config.attention.build() if config.attention else None
        self.delta: Any = config.delta.build() if config.delta else None
        self.moe_enabled = config.moe is not None  # TorchTitan's FSDP asks
        self.moe: Any = config.moe.build() if config.moe else None
        self.feed_forward: Any = config.feed_forward.build() if config.feed_forward else None
        self.attention_norm, self.ffn_norm = config.attention_norm.build(), config.ffn_norm.build()

    def forward(
        self,
        x: Tensor,
        masks_and_rows: tuple[Any, PackedRows],
        positions: Tensor | None = None,
        given_ids: Tensor | None = None,
    ) -> Tensor:
        """As `trainers.titan.experts.ReplayedBlock.forward`, with the rows beside the masks."""
        masks, rows = masks_and_rows
        norm = self.attention_norm(x)
        x = x + (self.delta(norm, rows) if self.attention is None else self.attention(norm, masks, positions))
        norm = self.ffn_norm(x)
        output: Tensor = x + (self.feed_forward(norm) if self.moe is None else self.moe(norm, given_ids))
        return output


class HybridModel(ReplayedModel):
    @dataclass(kw_only=True, slots=True)
    class Config(ReplayedModel.Config):
        pass

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, attention_masks: Any = None, routes: Tensor | None = None
    ) -> Any:
        return super().forward(tokens, positions, (attention_masks, PackedRows.of(tokens, positions)), routes)


class Qwen35StateDictAdapter(Qwen3StateDictAdapter):
    def __init__(self, model_config: Decoder.Config, hf_assets_path: str | None) -> None:
        super().__init__(model_config, hf_assets_path)
        for letter in "qkv":
            name = f"model.layers.{{}}.self_attn.{letter}_proj.weight"
            self.from_hf_map[name] = f"layers.{{}}.attention.w{letter}.weight"
        weights = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "conv1d", "norm")
        for name in (*(f"{weight}.weight" for weight in weights), "A_log", "dt_bias"):
            self.from_hf_map[f"model.layers.{{}}.linear_attn.{name}"] = f"layers.{{}}.delta.{name}"
        experts = "layers.{}.moe.shared_experts"
        self.from_hf_map["model.layers.{}.mlp.shared_expert_gate.weight"] = f"{experts}.gate.weight"
        for name, ours in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            self.from_hf_map[f"model.layers.{{}}.mlp.shared_expert.{name}.weight"] = f"{experts}.{ours}.weight"


class Qwen35Builder(Builder):
    model = HybridModel.Config
    block = HybridBlock.Config
    adapter = Qwen35StateDictAdapter
    family: Qwen35

    def layer(self, number: int) -> TransformerBlock.Config:
        width = self.hf["hidden_size"]
        is_linear = self.family.layer_types(self.hf)[number] == "linear_attention"
        kind = {"delta": self.delta()} if is_linear else {"attention": self.attention_of(number)}
        return self.block(attention_norm=self.norm(width), ffn_norm=self.norm(width), **kind, **self.mlp())

    def attention_of(self, number: int) -> GatedAttention.Config:
        shape, rope = self.family.shape(self.hf), self.family.rope(self.hf)
        width = shape.hidden_size
        return GatedAttention.Config(
            n_heads=shape.num_attention_heads,
            n_kv_heads=shape.num_key_value_heads,
            head_dim=shape.head_dim,
            inner_attention=self.kernel(None),
            rope=self.rope(
                dim=int(shape.head_dim * rope["partial_rotary_factor"]),
                max_seq_len=shape.max_position_embeddings,
                **scaling_of(rope),
            ),
            wq=linear(width, 2 * shape.query_size),
            wk=linear(width, shape.key_value_size),
            wv=linear(width, shape.key_value_size),
            wo=linear(shape.query_size, width),
            norm=self.norm(shape.head_dim),
        )

    def delta(self) -> GatedDelta.Config:
        """A layer with a gated delta rule."""
        width, sizes = self.hf["hidden_size"], self.family.linear(self.hf)
        qkv_size, values, heads = sizes.mixed_size, sizes.value_size, sizes.value_heads
        conv = Conv1d.Config(
            in_channels=qkv_size,
            out_channels=qkv_size,
            kernel_size=sizes.kernel,
            groups=qkv_size,
            bias=False,
            param_init=SKIP,
        )
        return GatedDelta.Config(
            sizes=sizes,
            in_proj_qkv=linear(width, qkv_size),
            in_proj_z=linear(width, values),
            in_proj_b=linear(width, heads),
            in_proj_a=linear(width, heads),
            out_proj=linear(values, width),
            conv1d=conv,
            norm=super().norm(sizes.value_dim),
            param_init={"A_log": SKIP["weight"], "dt_bias": SKIP["weight"]},
        )

    def mlp(self) -> dict[str, Any]:
        parts, shape = super().mlp(), self.family.shape(self.hf)
        if shape.shared_size:
            width, inner = shape.hidden_size, shape.shared_size
            parts["moe"].shared_experts = SigmoidGatedFeedForward.Config(
                w1=linear(width, inner), w2=linear(inner, width), w3=linear(width, inner), gate=linear(width, 1)
            )
        return parts

    def shard(self, config: Any, *, enable_sp: bool, enable_ep: bool) -> None:
        for layer in config.layers:  # nothing but its experts is cut
            cuts = dict.fromkeys(WEIGHTS, spmd.R)
            set_moe_sharding_config(layer.moe, enable_ep=enable_ep, enable_sp=enable_sp, expert_param_layout=cuts)

    def parallelize(self, module: Any, *, skip_dp: bool, **settings: Any) -> Any:
        if (
            device().type == "cpu"
        ):  # there the rule is not an operation of torch's, and TorchTitan compiles whole blocks
            settings["compile_config"] = CompileConfig(enable=False)
        return super().parallelize(module, skip_dp=skip_dp, **settings)

    def norm(self, size: int) -> RMSNorm.Config:
        return ShiftedRMSNorm.Config(normalized_shape=size, eps=self.hf.get("rms_norm_eps", 1e-6), param_init=SKIP)


def linear(inputs: int, outputs: int) -> Linear.Config:
    return Linear.Config(in_features=inputs, out_features=outputs, param_init=SKIP)
