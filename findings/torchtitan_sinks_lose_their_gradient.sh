#!/bin/sh
# Attention with sinks in TorchTitan, as gpt-oss has it, with `attn_backend="varlen"`, the default of its gpt_oss models.
# Packages: torchtitan 0.3.0, torch 2.13.0. Guess: the gradient is that of the forward pass, as with flex attention.
# Seen: the sinks rescale the output by sigmoid(lse - sink), so queries and keys have a gradient through lse too. torch's
# varlen_attn returns an lse that requires a gradient, and its backward pass ignores the gradient of it. So the loss and the
# gradients of the values and the sinks are right, and those of queries and keys are wrong: here by 14% of their norm, and by more
# with larger sinks. Nothing warns. Without sinks all are right.
# torch has no kernel of varlen_attn for the CPU: the two operators get plain ones here, with FlashAttention's formulas. What is
# wrong is between them, in torch's own autograd formula.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torchtitan==0.3.0 torch==2.13.0 triton==3.9.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
from functools import partial
from importlib.metadata import version

import torch
from torch.nn.attention import varlen
from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata
from torchtitan.models.gpt_oss.model import apply_attention_sink_rescale

assert version("torchtitan") == "0.3.0" and version("torch").startswith("2.13.0")
LENGTH, HEADS, DIM = 24, 4, 16
SCALE = DIM**-0.5
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def scores(q, k):
    return (torch.einsum("qhd,khd->hqk", q.float(), k.float()) * SCALE).masked_fill(~CAUSAL, float("-inf"))


@varlen._varlen_attn.register_kernel("cpu")
def forward(q, k, v, *_, **__):
    s = scores(q, k)
    out = torch.einsum("hqk,khd->qhd", s.softmax(-1), v.float())
    return out.to(q.dtype), s.logsumexp(-1), torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def backward(grad, q, k, v, out, lse, *_, **__):
    p, grad = (scores(q, k) - lse[..., None]).exp(), grad.float()
    ds = p * (torch.einsum("qhd,khd->hqk", grad, v.float()) - torch.einsum("qhd,qhd->hq", grad, out.float())[..., None]) * SCALE
    dq, dk = torch.einsum("hqk,khd->qhd", ds, k.float()), torch.einsum("hqk,qhd->khd", ds, q.float())
    return dq.to(q.dtype), dk.to(k.dtype), torch.einsum("hqk,qhd->khd", p, grad).to(v.dtype)


def plain(q, k, v, sinks):
    """The same attention, differentiated by autograd step by step."""
    s = scores(q[0], k[0])
    out = torch.einsum("hqk,khd->qhd", s.softmax(-1), v[0].float())[None]
    return out if sinks is None else apply_attention_sink_rescale(out, s.logsumexp(-1).T[None], sinks)


def titan(q, k, v, sinks):
    ends = torch.tensor([0, LENGTH], dtype=torch.int32)
    document = VarlenMetadata(cu_seq_q=ends, cu_seq_k=ends, max_q=LENGTH, max_k=LENGTH)
    transform = None if sinks is None else partial(apply_attention_sink_rescale, sinks=sinks)
    return VarlenAttention.Config().build()(q, k, v, attention_masks=document, scale=SCALE, out_transform=transform)


for with_sinks in (False, True):
    torch.manual_seed(0)
    tensors = [torch.randn(1, LENGTH, HEADS, DIM).bfloat16().float().requires_grad_() for _ in "qkv"]
    sinks = (torch.randn(HEADS) + 1.0).requires_grad_() if with_sinks else None
    weights = torch.randn(1, LENGTH, HEADS, DIM)
    results = []
    for attention in (plain, titan):
        loss = (attention(*tensors, sinks) * weights).sum()
        results.append([loss, *torch.autograd.grad(loss, [*tensors, *([sinks] if with_sinks else [])])])
    errors = [float((b - a).norm() / a.norm()) for a, b in zip(*results, strict=True)]
    print("sinks:" if with_sinks else "none:", {name: round(e, 3) for name, e in zip(("loss", "q", "k", "v", "sink"), errors)})
    for name, error in zip(("loss", "q", "k", "v", "sink"), errors):
        assert (error > 0.05) is (with_sinks and name in "qk"), (name, error)
EOP
