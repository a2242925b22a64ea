"""gpt-oss in TorchTitan's terms: attention with sinks, alternating windows, and experts with biases.

TorchTitan's blocks and sharding are used, but not these parts of it, which this file has its own of:

- its experts always compute in bfloat16;
- its names of weights lose every expert;
- its attention over packed rows loses a part of the gradient of queries and keys, see `SinkVarlen`;
- tensor parallelism loses a part of the gradient of a bias, see `OutputLinear`.

Matrices of experts are stored as in Hugging Face's files, (experts, inputs, outputs), so a rank reads its slice.

A sink is one number a head: the logit of a place that takes a share of the softmax and gives nothing. With the output
`out` of ordinary attention and the logarithm `lse` of the sum of its exponents, attention with a sink is
`out * sigmoid(lse - sink)` (https://arxiv.org/abs/2508.10925).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

# First of all TorchTitan imports: it settles the device for the others.
import trainers.titan.device  # noqa: F401  # isort: skip
import spmd_types as spmd
from torchtitan.models.common import RMSNorm
from torchtitan.models.common.attention import FlexAttention, VarlenAttention, VarlenMetadata
from torchtitan.models.common.linear import ScaledBiasRowwiseLinear
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.models.common.moe_sharding import set_moe_sharding_config
from torchtitan.models.gpt_oss.model import Attention, GptOssTransformerBlock, apply_attention_sink_rescale
from torchtitan.models.gpt_oss.moe import ScaleBiasForward, swiglu
from torchtitan.models.gpt_oss.parallelize import parallelize_gptoss
from torchtitan.models.gpt_oss.sharding import set_gpt_oss_sharding_config
from torchtitan.protocols.module import Module
from torchtitan.protocols.state_dict_adapter import StateDictAdapter

from contrib.families.gpt_oss import EPS
from forge_env.core.errors import UserError
from trainers.titan.attention import CausalSDPA
from trainers.titan.builder import SKIP, Builder
from trainers.titan.experts import Replayed, local

_MATRICES = ("gate_up_EDG", "down_EFD")
_BIASES = ("gate_up_bias_EG", "down_bias_ED")


class SinkAttention(Attention):
    """Attention that gives its kernel the sinks."""

    @dataclass(kw_only=True, slots=True)
    class Config(Attention.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.softmax_scale = config.head_dim**-0.5  # the factor of yarn is in the table of rope

    def forward(self, x: Tensor, attention_masks: Any, positions: Tensor | None = None) -> Tensor:
        """(B, L, D) to (B, L, D)."""
        queries, keys, values = self.qkv_linear(x)
        queries, keys = self.rope(queries, keys, positions)
        sinks = (
            self.sinks.to_local(grad_placements=self.sinks.placements)
            if isinstance(self.sinks, DTensor)
            else self.sinks
        )
        out = self.inner_attention(
            queries,
            keys,
            values,
            attention_masks=attention_masks,
            scale=self.softmax_scale,
            enable_gqa=self.enable_gqa,
            sinks=sinks,
        )
        output: Tensor = self.wo(out.reshape(*x.shape[:2], -1).contiguous())
        return output


class OutputLinear(ScaledBiasRowwiseLinear):
    """TorchTitan's output projection of attention, with the whole gradient of its bias.

    Tensor ranks sum their outputs, so each adds a part of the bias. TorchTitan's gives the bias a part of its gradient
    only.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ScaledBiasRowwiseLinear.Config):
        pass

    def forward(self, input: Tensor) -> Tensor:
        """(B, L, inputs) of this rank to its part of a sum."""
        bias = ScaleBiasForward.apply(local(self.bias), self.tp_degree, input.dtype)
        return F.linear(input, local(self.weight), bias)


class SinkSDPA(CausalSDPA):
    """Attention with sinks on the CPU: a further key with the value 0, to which every query has the sink as its logit.

    The logit needs a further place in each query and key: it holds the sink in a query, and 1 in the further key.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CausalSDPA.Config):
        pass

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
        assert scale is not None, "`SinkAttention` gives it"
        column = (kwargs["sinks"] / scale).to(q_BLNH.dtype).expand(q_BLNH.shape[:-1])[..., None]
        keys = F.pad(k_BLNH, (0, 1, 0, 0, 1, 0))
        keys[:, 0, :, -1] = 1
        if attention_masks is None:
            length = q_BLNH.shape[1]
            attention_masks = torch.ones(length, length, dtype=torch.bool, device=q_BLNH.device).tril_()
        out = super().forward(
            torch.cat([q_BLNH, column], dim=-1),
            keys,
            F.pad(v_BLNH, (0, 1, 0, 0, 1, 0)),
            attention_masks=F.pad(attention_masks, (1, 0), value=True),
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return out[..., :-1]


class SinkFlex(FlexAttention):
    """Attention with sinks by flex attention, which knows the gradient of `lse`."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        pass

    def forward(self, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, *, sinks: Tensor, **kwargs: Any) -> Tensor:
        out: Tensor = super().forward(
            q_BLNH,
            k_BLNH,
            v_BLNH,
            out_transform=lambda out, lse: apply_attention_sink_rescale(out, lse, sinks),
            **kwargs,
        )
        return out


class SinkVarlen(VarlenAttention):
    """Attention with sinks by FlashAttention over packed rows.

    The gradient of torch's kernel ignores what comes through `lse`, so TorchTitan's rescaled output gives queries and
    keys a wrong one. Here the backward kernel is given the output and the `lse` of the softmax with the sink in it. It
    computes the probabilities from `lse` and the rest from the output, so its gradient is exact.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def forward(
        self,
        q_BLNH: Tensor,
        k_BLNH: Tensor,
        v_BLNH: Tensor,
        *,
        attention_masks: VarlenMetadata,
        scale: float,
        sinks: Tensor,
        **kwargs: Any,
    ) -> Tensor:
        packed = [part.flatten(0, 1).to(torch.bfloat16) for part in (q_BLNH, k_BLNH, v_BLNH)]
        out: Tensor = _SinkVarlen.apply(*packed, sinks, attention_masks, scale, self.window_size)
        return out.view(q_BLNH.shape).to(q_BLNH.dtype)


class _SinkVarlen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_TNH: Tensor,
        k_TNH: Tensor,
        v_TNH: Tensor,
        sinks: Tensor,
        rows: VarlenMetadata,
        scale: float,
        window: tuple[int, int],
    ) -> Tensor:
        ends = rows.cu_seq_q, rows.cu_seq_k, rows.max_q, rows.max_k
        ctx.settings = window == (-1, 0), scale, list(window)
        is_causal, _, sides = ctx.settings
        plain, lse_NT, random = torch.ops.torch_attn._varlen_attn(
            q_TNH, k_TNH, v_TNH, *ends, is_causal, scale, sides, True, None, None, None
        )
        column = sinks.float()[:, None]
        out = (plain * (lse_NT - column).sigmoid().T[..., None]).to(plain.dtype)
        ctx.save_for_backward(q_TNH, k_TNH, v_TNH, out, torch.logaddexp(lse_NT, column), random, sinks)
        ctx.ends = ends
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, out, lse_NT, random, sinks = ctx.saved_tensors
        is_causal, scale, sides = ctx.settings
        of_out = of_out.contiguous()
        of_inputs = torch.ops.torch_attn._varlen_attn_backward(
            of_out, queries, keys, values, out, lse_NT, *ctx.ends, is_causal, random, scale, sides
        )
        share_TN = (sinks.float()[:, None] - lse_NT).exp().T
        of_sinks = -(share_TN * (of_out.float() * out.float()).sum(-1)).sum(0)
        return (*of_inputs, of_sinks.to(sinks.dtype), None, None, None)


_KERNELS: dict[str, Any] = {"sdpa": SinkSDPA.Config, "flex": SinkFlex.Config, "varlen": SinkVarlen.Config}


class GptOssExperts(GroupedExperts):
    """The experts of a layer, computed in the dtype of their input; gates and ups alternate in their matrix."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def __init__(self, config: Config) -> None:
        Module.__init__(self)
        count, width, inner = config.num_experts, config.dim, config.hidden_dim
        self.num_experts = count
        self.tensor_ranks = 1
        self.gate_up_EDG = nn.Parameter(torch.empty(count, width, 2 * inner))
        self.gate_up_bias_EG = nn.Parameter(torch.empty(count, 2 * inner))
        self.down_EFD = nn.Parameter(torch.empty(count, inner, width))
        self.down_bias_ED = nn.Parameter(torch.empty(count, width))

    def parallelize(self, parallel_dims: Any) -> None:
        """Without expert parallelism each tensor rank adds a part of the bias, for they sum their outputs."""
        self.tensor_ranks = 1 if parallel_dims.ep_enabled else parallel_dims.tp
        super().parallelize(parallel_dims)

    def forward(self, x_RD: Tensor, num_tokens_per_expert_E: Tensor) -> Tensor:
        """As `trainers.titan.experts.SameDtypeExperts.forward`."""
        ends, dtype = num_tokens_per_expert_E.cumsum(0).int(), x_RD.dtype
        gate_up, down = (local(getattr(self, name)).to(dtype) for name in _MATRICES)
        of_gate_up, of_down = (local(getattr(self, name)) for name in _BIASES)
        number = torch.searchsorted(ends, torch.arange(len(x_RD), device=ends.device), right=True)
        number = number.clamp(max=len(gate_up) - 1)  # rows after the last expert's are padding
        hidden = swiglu(self._grouped_mm(A=x_RD, B_t=gate_up, offs=ends) + of_gate_up.to(dtype)[number])
        bias: Tensor = ScaleBiasForward.apply(of_down[number], self.tensor_ranks, dtype)
        return self._grouped_mm(A=hidden, B_t=down, offs=ends) + bias


class Block(GptOssTransformerBlock):
    """A block of gpt-oss that can be given experts."""

    @dataclass(kw_only=True, slots=True)
    class Config(GptOssTransformerBlock.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.window = config.attention.sliding_window_size

    def forward(
        self, x: Tensor, attention_masks: Any, positions: Tensor | None = None, given_ids: Tensor | None = None
    ) -> Tensor:
        """As `trainers.titan.experts.ReplayedBlock.forward`; the masks are one for each window."""
        masks = attention_masks[self.window]
        x = x + self.attention(self.attention_norm(x), masks, positions)
        output: Tensor = x + self.moe(self.ffn_norm(x), given_ids)
        return output


class Names(StateDictAdapter):
    """Names of weights: every parameter is one tensor of Hugging Face, in the same layout."""

    def __init__(self, model_config: Replayed.Config, hf_assets_path: str | None) -> None:
        super().__init__(model_config, hf_assets_path)
        attention = {
            f"self_attn.{part}_proj.{kind}": f"attention.{'wo' if part == 'o' else f'qkv_linear.w{part}'}.{kind}"
            for part in "qkvo"
            for kind in ("weight", "bias")
        }
        experts = dict(
            zip(("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"), _MATRICES + _BIASES, strict=True)
        )
        layer = {
            **attention,
            "self_attn.sinks": "attention.sinks",
            **{f"mlp.experts.{name}": f"moe.routed_experts.inner_experts.{ours}" for name, ours in experts.items()},
            **{f"mlp.router.{kind}": f"moe.router.gate.{kind}" for kind in ("weight", "bias")},
            "input_layernorm.weight": "attention_norm.weight",
            "post_attention_layernorm.weight": "ffn_norm.weight",
        }
        self.from_hf_map = {
            "model.embed_tokens.weight": "tok_embeddings.weight",
            "model.norm.weight": "norm.weight",
            "lm_head.weight": "lm_head.weight",
            **{f"model.layers.{{}}.{name}": f"layers.{{}}.{ours}" for name, ours in layer.items()},
        }
        self._to_hf = {ours: name for name, ours in self.from_hf_map.items()}

    def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {_rename(name, self._to_hf): value for name, value in state_dict.items()}

    def from_hf(self, hf_state_dict: dict[str, Any]) -> dict[str, Any]:
        return {_rename(name, self.from_hf_map): value for name, value in hf_state_dict.items()}


def _rename(name: str, names: Mapping[str, str]) -> str:
    layer = re.search(r"(?<=layers\.)\d+", name)
    return names[name] if layer is None else names[re.sub(r"(?<=layers\.)\d+", "{}", name)].format(layer[0])


class GptOssBuilder(Builder):
    model = Replayed.Config
    block = Block.Config
    adapter = Names

    def __init__(self, config: Mapping[str, Any], *, attention: str, fuse_qkv: bool) -> None:
        super().__init__(config, attention=attention, fuse_qkv=fuse_qkv)
        if quantization := self.family.quantization(config):
            raise UserError(
                f"the model has {quantization}, which cannot be trained: write them as bfloat16 first, by "
                "contrib.families.mxfp4.write_bfloat16, as a run does"
            )

    def kernel(self, window: int | None) -> Any:
        if self.attention == "varlen" and window is not None:
            return SinkVarlen.Config(window_size=(window - 1, 0))
        return _KERNELS[self.attention]()

    def attention_of(self, number: int) -> SinkAttention.Config:
        gqa = super().attention_of(number)
        return SinkAttention.Config(
            n_heads=gqa.n_heads,
            n_kv_heads=gqa.n_kv_heads,
            head_dim=gqa.head_dim,
            dim=gqa.dim,
            qkv_linear=gqa.qkv_linear,
            wo=OutputLinear.Config(in_features=gqa.wo.in_features, out_features=gqa.dim, bias=True, param_init=SKIP),
            sliding_window_size=self.family.windows(self.hf)[number],
            inner_attention=gqa.inner_attention,
            rope=gqa.rope,
            param_init={"sinks": SKIP["weight"]},
        )

    def mlp(self) -> dict[str, Any]:
        parts = super().mlp()
        parts["moe"].router.gate.bias = True
        plain = parts["moe"].routed_experts.inner_experts
        parts["moe"].routed_experts.inner_experts = GptOssExperts.Config(
            dim=plain.dim,
            hidden_dim=plain.hidden_dim,
            num_experts=plain.num_experts,
            param_init=dict.fromkeys(_MATRICES + _BIASES, SKIP["weight"]),
        )
        return parts

    def norm(self, size: int) -> RMSNorm.Config:
        return RMSNorm.Config(normalized_shape=size, eps=EPS, param_init=SKIP)

    def shard(self, config: Any, *, enable_sp: bool, enable_ep: bool) -> None:
        set_gpt_oss_sharding_config(config, enable_sp=enable_sp, enable_ep=enable_ep)
        cuts = {"gate_up_EDG": spmd.S(2), "gate_up_bias_EG": spmd.S(1), "down_EFD": spmd.S(1), "down_bias_ED": spmd.R}
        for layer in config.layers:
            set_moe_sharding_config(layer.moe, enable_ep=enable_ep, enable_sp=enable_sp, expert_param_layout=cuts)

    def parallelize(self, module: Any, *, skip_dp: bool, **settings: Any) -> Any:
        return parallelize_gptoss(module, skip_dp=skip_dp, **settings)
