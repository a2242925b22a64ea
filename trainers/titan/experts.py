"""Mixture-of-experts layers in TorchTitan's terms: a router chooses a few experts for each token.

TorchTitan's experts always compute in bfloat16; `SameDtypeExperts` compute in the dtype of their input. No bias
balances the load of the experts (`load_balance_coeff`): it would change the routing from step to step beside the loss,
and the engine does not know it.

Routing replay: the model takes the experts that the engine chose as an input beside the tokens, and each block hands
its layer's experts to its router. Their scores, and so the router's gradient, are the trainer's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common import Linear
from torchtitan.models.common.config_utils import make_token_dispatcher_config
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.moe import GroupedExperts, MoE, RoutedExperts, TokenChoiceTopKRouter
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock

from trainers.families.family import Experts

# TorchTitan's router asks autocast for float32, which only GPUs have; on a CPU it computes in the model's dtype.
warnings.filterwarnings("ignore", "In CPU autocast, but the target dtype is not supported")
WEIGHTS = ("w1_EFD", "w2_EDF", "w3_EFD")
"""The stacked matrices of all experts of a layer: gate, down and up."""
STACKS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The stacked matrices of transformers' modules, and the matrices of an expert that each has."""


class SameDtypeExperts(GroupedExperts):
    """TorchTitan's experts, computed in the dtype of their input."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD: Tensor, num_tokens_per_expert_E: Tensor) -> Tensor:
        """Compute tokens that are sorted by their expert.

        Args:
            x_RD: (tokens, width), the tokens of the first local expert first.
            num_tokens_per_expert_E: (local experts,) int64, the number of tokens of each.

        Returns:
            (tokens, width) in the dtype of x_RD.
        """
        ends = num_tokens_per_expert_E.cumsum(0).int()
        gate, down, up = (local(getattr(self, name)).to(x_RD.dtype).transpose(-2, -1) for name in WEIGHTS)
        hidden = F.silu(self._grouped_mm(A=x_RD, B_t=gate, offs=ends)) * self._grouped_mm(A=x_RD, B_t=up, offs=ends)
        return self._grouped_mm(A=hidden, B_t=down, offs=ends)


def replay(ids: Tensor, given_ids: Tensor, counts: Tensor) -> Tensor:
    """The given experts if they differ from the router's, and otherwise the router's, in its order.

    Args:
        ids: (..., K) int64, the router's.
        given_ids: (..., K) int64; -1 lets the router choose.
        counts: (2,) int64, becomes the number of tokens with given experts, and with other ones than the router's.
    """
    is_given = given_ids[..., 0] >= 0
    is_same = (ids[..., :, None] == given_ids[..., None, :]).any(-1).all(-1)
    is_other = is_given & ~is_same
    counts.copy_(torch.stack([is_given.sum(), is_other.sum()]))
    return torch.where(is_other[..., None], given_ids, ids).contiguous()


class Router(TokenChoiceTopKRouter):
    """TokenChoiceTopKRouter that takes given experts, and works under tensor parallelism with any number of sequences.

    Each tensor rank has a part of the sum that is the gradient of the scores. DTensor would scatter the sum over the
    sequences, and fails if their number is odd. Here all ranks get the full sum.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(TokenChoiceTopKRouter.Config):
        pass

    replay_counts: Tensor
    """(2,) int64, of the last forward pass with given experts: this rank's tokens with given experts, and the number of
    them for which the router would have chosen others. If a pass is computed again, it writes the same numbers
    again."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.register_buffer("replay_counts", torch.zeros(2, dtype=torch.int64), persistent=False)

    def forward(
        self, x_BLD: Tensor, expert_bias_E: Tensor | None = None, given_BLK: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choose experts, and score them.

        If a token is given the experts that the router chooses, the result is the same bit by bit as without given
        experts.

        Args:
            x_BLD: (B, L, D).
            expert_bias_E: None.
            given_BLK: (B, L, K) int64: K different experts for each token, or -1 if the router is to choose. None lets
                it choose for all tokens. Under tensor parallelism every rank has all tokens.

        Returns:
            Scores (B, L, K) and numbers (B, L, K) of the experts, and scores (B, L, E) of all.
        """
        weights, ids, scores = super().forward(x_BLD, expert_bias_E)
        if given_BLK is not None:
            ids = self._replay(ids, given_BLK)
            weights = scores.gather(dim=-1, index=ids)
            if self.route_norm:
                weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
            weights = weights * self.route_scale
        if isinstance(weights, DTensor):
            weights = weights.redistribute(placements=weights.placements)  # changes its gradient's placement only
        return weights, ids, scores

    @torch.no_grad()
    def _replay(self, ids: Tensor, given_ids: Tensor) -> Tensor:
        if isinstance(ids, DTensor):  # cut over the sequences, or complete on every rank
            mesh, placements = ids.device_mesh, ids.placements
            on_mesh = DTensor.from_local(given_ids, mesh, [Replicate()] * mesh.ndim, run_check=False)
            given_ids = on_mesh.redistribute(placements=placements).to_local()
            return DTensor.from_local(self._replay(ids.to_local(), given_ids), mesh, placements, run_check=False)
        return replay(ids, given_ids, self.replay_counts)

    def _init_self_buffers(self, *, buffer_device: torch.device | None = None) -> None:
        self.replay_counts = torch.zeros(2, dtype=torch.int64, device=buffer_device or self.replay_counts.device)


class ReplayedMoE(MoE):
    """TorchTitan's MoE that hands given experts to its router, without the parts for a bias of the load."""

    @dataclass(kw_only=True, slots=True)
    class Config(MoE.Config):
        pass

    # TorchTitan's sharding code finds the arguments by these names.
    def forward(self, x_BLD: Tensor, given_BLK: Tensor | None = None) -> Tensor:
        """(B, L, D) to (B, L, D); `given_BLK` as in `Router`."""
        if isinstance(x_BLD, DTensor):
            # A single sequence is still being gathered from the tensor ranks. The experts compute on the local tensor,
            # and a tensor that is not there yet would silently lose its gradient.
            x_BLD = x_BLD.clone()
        weights, ids, scores = self.router(x_BLD, None, given_BLK)
        is_chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, ids, True)
        output: Tensor = self.routed_experts(x_BLD, weights, ids, is_chosen.sum(dim=(0, 1)))
        return output if self.shared_experts is None else output + self.shared_experts(x_BLD)


class ReplayedBlock(Qwen3TransformerBlock):
    """A block of Qwen3 that can be given experts."""

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen3TransformerBlock.Config):
        pass

    def forward(
        self, x: Tensor, attention_masks: Any, positions: Tensor | None = None, given_ids: Tensor | None = None
    ) -> Tensor:
        """Like its parent, with (B, L, K) experts or None.

        The experts are an argument. So a block that is computed again in the backward pass gets the same ones.
        """
        x = x + self.attention(self.attention_norm(x), attention_masks, positions)
        output: Tensor = x + self.moe(self.ffn_norm(x), given_ids)
        return output


class Replayed(Decoder):
    """A model whose experts can be given; its blocks take them as their last argument."""

    @dataclass(kw_only=True, slots=True)
    class Config(Decoder.Config):
        pass

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, attention_masks: Any = None, routes: Tensor | None = None
    ) -> Any:
        """Like its parent, with the experts of each layer, (B, L, layers, K) integers, or None."""
        hidden = self.tok_embeddings(tokens)
        for number, layer in enumerate(self.layers.values()):
            given_ids = None if routes is None else routes[:, :, number].long().contiguous()
            hidden = layer(hidden, attention_masks, positions, given_ids)
        return self.lm_head(self.norm(hidden))

    @property
    def replay_counts(self) -> Tensor:
        """(2,) int64, over all layers of this rank in the last forward pass with routes: tokens with given experts, and
        the number of them for which the router would have chosen others."""
        parts = [part.replay_counts for part in self.modules() if isinstance(part, Router)]
        return torch.stack(parts).sum(0)


class ReplayedModel(Replayed, Qwen3Model):
    """Qwen3 with experts that can be given."""

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen3Model.Config):
        pass


def experts_config(width: int, experts: Experts, init: Mapping[str, Callable[..., Any]]) -> MoE.Config:
    """The config of a layer's router and experts."""
    return ReplayedMoE.Config(
        num_experts=experts.count,
        load_balance_coeff=None,
        router=Router.Config(
            num_experts=experts.count,
            gate=Linear.Config(in_features=width, out_features=experts.count, param_init=dict(init)),
            top_k=experts.active,
            score_func="softmax",
            route_norm=experts.normalised,
        ),
        routed_experts=RoutedExperts.Config(
            inner_experts=SameDtypeExperts.Config(
                dim=width,
                hidden_dim=experts.size,
                num_experts=experts.count,
                param_init=dict.fromkeys(WEIGHTS, init["weight"]),
            ),
            # Without expert parallelism it reorders the tokens of this rank.
            token_dispatcher=make_token_dispatcher_config(
                num_experts=experts.count, top_k=experts.active, comm_backend="standard"
            ),
        ),
    )


def is_expert(name: str) -> bool:
    """Whether this is the name of a parameter that stacks one matrix for each expert."""
    return name.rpartition(".")[2] in WEIGHTS or name.rpartition(".mlp.experts.")[2] in STACKS


def local(weight: nn.Parameter) -> Tensor:
    """This rank's part of a parameter."""
    return weight.to_local() if isinstance(weight, DTensor) else weight
