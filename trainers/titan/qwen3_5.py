"""Qwen3.5 on TorchTitan's decoder: gated attention, and layers with a gated delta rule (arXiv 2412.06464).

TorchTitan's own Qwen3.5 needs the package fla to be imported, also on a CPU, and a vision encoder, and cannot tie its
output layer. Here the rule is computed by fla on a GPU, and on a CPU in chunks as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# First of all TorchTitan imports: it settles the device for the others.
import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.config import CompileConfig
from torchtitan.models.common import Linear, RMSNorm, RoPE, TransformerBlock
from torchtitan.models.common.attention import BaseAttention
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.nn_modules import Conv1d
from torchtitan.models.qwen3.model import Qwen3Model
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.module import Module

from trainers.families.qwen3_5 import Qwen35
from trainers.families.shape import LinearAttention
from trainers.titan.builder import SKIP, Builder
from trainers.titan.rope import scaling_of

_CHUNK = 64  # tokens, as in fla and transformers


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The rows of a forward pass over (B, L) tokens, which are one sequence of B x L tokens to the delta rule."""

    borders: Tensor
    """(rows + 1,) int64, on the CPU: the first place of each row, in order, and the end of the last."""
    number: Tensor
    """(B x L,) int64: the row of each token."""

    @classmethod
    def of(cls, tokens: Tensor, positions: Tensor | None) -> PackedRows:
        """Find the rows.

        Args:
            tokens: (B, L).
            positions: (B, L), 0 at the start of each row; None when each sequence is one row.
        """
        is_first = torch.zeros_like(tokens, dtype=torch.bool) if positions is None else positions == 0
        is_first = is_first.index_fill(1, is_first.new_zeros(1, dtype=torch.int64), True).flatten()
        return cls(F.pad(is_first.nonzero()[:, 0].cpu(), (0, 1), value=len(is_first)), is_first.cumsum(0) - 1)


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
        self.head_dim, self.rotated = config.head_dim, config.rope.dim
        self.enable_gqa = config.n_heads > config.n_kv_heads
        self.wq, self.wk, self.wv, self.wo = (part.build() for part in (config.wq, config.wk, config.wv, config.wo))
        self.q_norm, self.k_norm = config.norm.build(), config.norm.build()
        self.rope = config.rope.build()
        self.inner_attention = config.inner_attention.build()

    def forward(self, x: Tensor, attention_masks: Any, positions: Tensor | None) -> Tensor:
        query, gate = self.wq(x).unflatten(-1, (-1, 2 * self.head_dim)).chunk(2, dim=-1)
        key, value = (part(x).unflatten(-1, (-1, self.head_dim)) for part in (self.wk, self.wv))
        query, key = self.q_norm(query), self.k_norm(key)
        turned = self.rope(query[..., : self.rotated], key[..., : self.rotated], positions)
        query, key = (
            torch.cat([part, whole[..., self.rotated :]], dim=-1)
            for part, whole in zip(turned, (query, key), strict=True)
        )
        out = self.inner_attention(
            query,
            key,
            value,
            attention_masks=attention_masks,
            scale=self.head_dim**-0.5,
            enable_gqa=self.enable_gqa,
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
        mixed = F.silu(self._convolve(self.in_proj_qkv(flat), rows))
        query, key, value = mixed.split([keys, keys, sizes.value_size], dim=-1)
        query, key = (part.unflatten(-1, (-1, sizes.key_dim)) for part in (query, key))
        value = value.unflatten(-1, (-1, sizes.value_dim))
        gate = self.in_proj_z(flat).view_as(value)
        decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(flat).float() + self.dt_bias)
        out = self.norm(delta_rule(query, key, value, decay, self.in_proj_b(flat).sigmoid(), rows.borders))
        out = (out * F.silu(gate.float())).to(x.dtype)
        output: Tensor = self.out_proj(out.flatten(1)).view_as(x)
        return output

    def _convolve(self, x: Tensor, rows: PackedRows) -> Tensor:
        """Each channel's sum over the last tokens of a row, (T, channels): zeros lie before each row."""
        gap = self.sizes.kernel - 1
        place = torch.arange(len(x), device=x.device) + gap * rows.number
        spread = x.new_zeros(len(x) + gap * (len(rows.borders) - 1), x.shape[1]).index_copy(0, place + gap, x)
        return F.conv1d(spread.T, self.conv1d.weight, groups=x.shape[1]).T[place]


@torch.compiler.disable  # fla's kernels are no part of a graph
def delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor, borders: Tensor) -> Tensor:
    """What the memory gives to each token; it is empty at the start of each row.

    Args:
        query, key: (T, key heads, key size).
        value: (T, value heads, value size).
        decay: (T, value heads) float32, at most 0: logarithm of what stays of the memory.
        rate: (T, value heads), 0 to 1: how much of the new value is written.

    Returns:
        (T, value heads, value size) in the dtype of the values.
    """
    if value.is_cuda:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        # New tensors each time: fla keeps what it computes from one, and a block that is computed again would differ.
        starts = {"cu_seqlens": borders.to(value.device), "cu_seqlens_cpu": borders.clone()}
        batch = (part[None] for part in (query, key, value, decay, rate))
        output: Tensor = chunk_gated_delta_rule(*batch, use_qk_l2norm_in_kernel=True, **starts)[0][0]
        return output
    groups = value.shape[1] // key.shape[1]
    query, key = (_unit(part).repeat_interleave(groups, dim=1) for part in (query, key))
    parts = (query * query.shape[-1] ** -0.5, key, value.float(), decay, rate.float())
    lengths = borders.diff().tolist()
    if len(set(lengths)) == 1:
        out = _by_chunks(*(part.unflatten(0, (len(lengths), -1)) for part in parts)).flatten(0, 1)
    else:
        rows = zip(*(part.split(lengths) for part in parts), strict=True)
        out = torch.cat([_by_chunks(*(part[None] for part in row))[0] for row in rows])
    return out.to(value.dtype)


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1, in float32; 1e-6 as in fla and transformers."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _by_chunks(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor) -> Tensor:
    """The rule for R rows of equal length L, by chunks (arXiv 2412.06464, section 3.3): (R, L, heads, value size)."""
    length = query.shape[1]

    def chunked(x: Tensor) -> Tensor:
        """(R, heads, chunks, tokens of a chunk, ...)"""
        padded = F.pad(x, (0, 0) * (x.ndim - 2) + (0, -length % _CHUNK))
        return padded.unflatten(1, (-1, _CHUNK)).movedim(3, 1)

    query, key, value, decay, rate = map(chunked, (query, key, value, decay, rate))
    since = decay.cumsum(-1)  # of the chunk's start
    later = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=query.device).triu(1)
    between = (since[..., :, None] - since[..., None, :]).masked_fill(later, -torch.inf).exp()
    written = key * rate[..., None]
    # Each token of a chunk writes what the tokens before it in the chunk have not written: a triangular system.
    system = (written @ key.mT) * between
    sides = torch.cat([value * rate[..., None], written * since.exp()[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    new, read = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    within, from_start = (query @ key.mT) * between, query * since.exp()[..., None]
    to_end, whole = key * (since[..., -1:] - since).exp()[..., None], since[..., -1].exp()[..., None, None]
    memory = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1])
    outputs = []
    for chunk in range(value.shape[2]):
        change = new[:, :, chunk] - read[:, :, chunk] @ memory
        outputs.append(from_start[:, :, chunk] @ memory + within[:, :, chunk] @ change)
        memory = memory * whole[:, :, chunk] + to_end[:, :, chunk].mT @ change
    return torch.cat(outputs, dim=2).transpose(1, 2)[:, :length]


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
        self.feed_forward = config.feed_forward.build()
        self.attention_norm, self.ffn_norm = config.attention_norm.build(), config.ffn_norm.build()

    def forward(self, x: Tensor, masks_and_rows: tuple[Any, PackedRows], positions: Tensor | None) -> Tensor:
        masks, rows = masks_and_rows
        normed = self.attention_norm(x)
        x = x + (self.delta(normed, rows) if self.attention is None else self.attention(normed, masks, positions))
        output: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return output


class HybridModel(Qwen3Model):
    """A decoder that tells its blocks the rows."""

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen3Model.Config):
        pass

    def forward(self, tokens: Tensor, positions: Tensor | None = None, attention_masks: Any = None) -> Any:
        return super().forward(tokens, positions, (attention_masks, PackedRows.of(tokens, positions)))


class Qwen35StateDictAdapter(Qwen3StateDictAdapter):
    """Names of Qwen3.5."""

    def __init__(self, model_config: Decoder.Config, hf_assets_path: str | None) -> None:
        super().__init__(model_config, hf_assets_path)
        for letter in "qkv":
            name = f"model.layers.{{}}.self_attn.{letter}_proj.weight"
            self.from_hf_map[name] = f"layers.{{}}.attention.w{letter}.weight"
        weights = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "conv1d", "norm")
        for name in (*(f"{weight}.weight" for weight in weights), "A_log", "dt_bias"):
            self.from_hf_map[f"model.layers.{{}}.linear_attn.{name}"] = f"layers.{{}}.delta.{name}"


class Qwen35Builder(Builder):
    """Builds Qwen3.5."""

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
        mixed, values, heads = sizes.mixed_size, sizes.value_size, sizes.value_heads
        conv = Conv1d.Config(
            in_channels=mixed, out_channels=mixed, kernel_size=sizes.kernel, groups=mixed, bias=False, param_init=SKIP
        )
        return GatedDelta.Config(
            sizes=sizes,
            in_proj_qkv=linear(width, mixed),
            in_proj_z=linear(width, values),
            in_proj_b=linear(width, heads),
            in_proj_a=linear(width, heads),
            out_proj=linear(values, width),
            conv1d=conv,
            norm=super().norm(sizes.value_dim),
            param_init={"A_log": SKIP["weight"], "dt_bias": SKIP["weight"]},
        )

    def parallelize(self, module: Any, *, skip_dp: bool, **settings: Any) -> Any:
        compile_config = settings["compile_config"]
        of_parent = {**settings, "compile_config": CompileConfig(enable=False)}
        module = super().parallelize(module, skip_dp=skip_dp, **of_parent)
        if compile_config.enable:  # in parts around `delta_rule`, while TorchTitan compiles whole blocks
            for block in module.layers.children():
                block.compile(backend=compile_config.backend)
        return module

    def norm(self, size: int) -> RMSNorm.Config:
        return ShiftedRMSNorm.Config(normalized_shape=size, eps=self.hf.get("rms_norm_eps", 1e-6), param_init=SKIP)


def linear(inputs: int, outputs: int) -> Linear.Config:
    """A matrix that is loaded after construction."""
    return Linear.Config(in_features=inputs, out_features=outputs, param_init=SKIP)
