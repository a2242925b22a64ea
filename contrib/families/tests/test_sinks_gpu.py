"""Attention with sinks over packed rows on one GPU, in bfloat16, against the formula in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchtitan")
import trainers.titan.device  # noqa: F401  # isort: skip
from torchtitan.models.common.attention import VarlenMetadata

from contrib.families.gpt_oss_model import SinkVarlen

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU")]
ROWS = (1, 700, 129, 2048, 64, 3)  # tokens


def exact_with_sinks(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor, window: int) -> Tensor:
    """The formula of gpt-oss's attention, (tokens, heads, size) in float32: the sink is one more logit."""
    rows = []
    for q, k, v in zip(*(part.split(ROWS) for part in (queries, keys, values)), strict=True):
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        back = torch.arange(len(q), device=q.device)[:, None] - torch.arange(len(q), device=q.device)
        scores = torch.einsum("qnh,knh->nqk", q, k).mul(0.1).masked_fill((back < 0) | (back >= window), -torch.inf)
        shares = torch.cat([scores, sinks[:, None, None].expand(-1, len(q), 1)], dim=-1).softmax(-1)
        rows.append(torch.einsum("nqk,knh->qnh", shares[..., :-1], v))
    return torch.cat(rows)


@pytest.mark.parametrize("window", [128, max(ROWS)])
def test_sinks_have_their_outputs_and_gradients(window: int) -> None:
    torch.manual_seed(0)
    total = sum(ROWS)
    wide = [torch.randn(total, heads, 64, device="cuda", requires_grad=True) for heads in (16, 4, 4)]
    sinks = torch.randn(16, device="cuda", requires_grad=True)
    inputs = [*wide, sinks]
    narrow = [tensor.detach().bfloat16()[None].requires_grad_() for tensor in wide]
    narrow.append(sinks.detach().clone().requires_grad_())
    ends = torch.tensor([0, *torch.tensor(ROWS).cumsum(0)], device="cuda", dtype=torch.int32)
    gradient = torch.randn(total, 16, 64, device="cuda")
    attention = SinkVarlen.Config(window_size=(window - 1, 0) if window < max(ROWS) else (-1, 0)).build()
    rows = VarlenMetadata(ends, ends, max(ROWS), max(ROWS))
    q, k, v, of_heads = narrow
    out = attention(q, k, v, attention_masks=rows, scale=0.1, sinks=of_heads)
    expected = exact_with_sinks(wide[0], wide[1], wide[2], sinks, window)
    found = torch.autograd.grad(out, narrow, gradient.bfloat16()[None])
    wanted = torch.autograd.grad(expected, inputs, gradient)
    for ours, theirs in [(out, expected), *zip(found, wanted, strict=True)]:
        assert (ours.float().view(theirs.shape) - theirs).norm() < 0.02 * theirs.norm()
