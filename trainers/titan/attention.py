"""Attention on the CPU: torch's own kernel, in the place of those of TorchTitan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

# First of all TorchTitan imports: it settles the device for the others.
import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common.attention import FlexAttention


class CausalSDPA(FlexAttention):
    """Attention for the CPU, where TorchTitan's own have no backward (flex) or no kernel (varlen).

    It is a subclass of FlexAttention, so that TorchTitan hands it gathered keys and values under context parallelism.
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
        """Attend causally, or as the boolean mask (B, 1, L of q, L of k) says; returns (B, L, N, H)."""
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


def document_mask(positions: Tensor) -> Tensor:
    """Boolean attention mask (B, 1, L, L): causal, and within the document that starts at each position 0."""
    document = (positions == 0).cumsum(1)  # (B, L)
    same = document[:, :, None] == document[:, None, :]
    return same.tril_()[:, None]
