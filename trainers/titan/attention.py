"""Attention on the CPU, by torch's own kernel, and checkpointing that keeps what attention gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.models.common.attention import FlexAttention

SAVED_OPS: set[Any] = set()
"""Operations of families whose outputs checkpoints keep as those of attention."""


class CausalSDPA(FlexAttention):
    """Attention for the CPU. TorchTitan's flex has no backward pass there, and its varlen no kernel.

    It is a subclass of FlexAttention, so under context parallelism TorchTitan gives it gathered keys and values.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        pass

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
        """Attend causally, or by the boolean mask (B, 1, L of q, L of k); returns (B, L, N, H)."""
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


def document_mask(positions: Tensor, window: int | None = None) -> Tensor:
    """Boolean attention mask (B, 1, L, L): causal, and within the document that starts at each position 0.

    With a window, a token attends to that many tokens at most, itself among them.
    """
    document = (positions == 0).cumsum(1)  # (B, L)
    same = (document[:, :, None] == document[:, None, :]).tril_()
    return (same if window is None else same.triu_(1 - window))[:, None]


class MatrixAC(SelectiveAC):
    """TorchTitan's choice: keep what attention and every second matrix product give; and `SAVED_OPS`."""

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set[Any]:
        return super().get_save_ops() | SAVED_OPS


class AttentionAC(SelectiveAC):
    """Keep the input of each block and the output of its attention, and compute the rest of the block again."""

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set[Any]:
        return SAVED_OPS | {
            torch.ops.torch_attn._varlen_attn.default,
            torch.ops.higher_order.flex_attention,
            torch.ops.higher_order.inductor_compiled_code,  # flex, if the blocks are not compiled
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
            torch.ops.aten._scaled_dot_product_flash_attention.default,
            torch.ops.aten._scaled_dot_product_efficient_attention.default,
            torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        }
