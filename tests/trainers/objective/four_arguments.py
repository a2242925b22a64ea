"""A loss as a user writes it: the four arguments of torchforge's losses, and a local mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MyLoss(nn.Module):
    """Policy gradient with a KL penalty, mean over the tokens of whatever batch it is given."""

    def __init__(self, beta: float = 0.1) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor) -> Tensor:
        """All (episodes, tokens), the advantages (episodes, 1); returns a scalar."""
        difference = ref_logprobs - logprobs
        kl = torch.exp(difference) - difference - 1
        per_token = -(torch.exp(logprobs - logprobs.detach()) * advantages - self.beta * kl)
        return (per_token * padding_mask).sum() / padding_mask.sum().clamp(min=1)
