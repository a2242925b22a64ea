"""The attention of packed rows on one GPU, in bfloat16, against float32 attention of each row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("torchtitan")
import trainers.titan.device  # noqa: F401  # isort: skip
from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn

from trainers.titan.flash_attention import choose

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU")]
ROWS = (1, 700, 129, 2048, 64, 3)  # tokens


def exact(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of each row by itself, (tokens, heads, size) in float32."""
    rows = []
    for q, k, v in zip(*(part.split(ROWS) for part in (queries, keys, values)), strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        rows.append(out[0].transpose(0, 1))
    return torch.cat(rows)


@pytest.mark.parametrize(("heads", "key_heads", "size"), [(32, 8, 128), (6, 2, 32), (4, 4, 64)])
@pytest.mark.parametrize("kernels", ["", "FA4"])
def test_packed_rows_have_the_outputs_and_gradients_of_single_ones(
    kernels: str, heads: int, key_heads: int, size: int
) -> None:
    if kernels == "FA4" and choose(torch.cuda.get_device_capability()) != "FA4":
        pytest.skip("FlashAttention-4 is not for this GPU, or is not installed")
    torch.manual_seed(0)
    total = sum(ROWS)
    shapes = [(total, heads, size), (total, key_heads, size), (total, key_heads, size)]
    wide = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
    narrow = [tensor.detach().bfloat16().requires_grad_() for tensor in wide]
    ends = torch.tensor([0, *torch.tensor(ROWS).cumsum(0)], device="cuda", dtype=torch.int32)
    gradient = torch.randn(shapes[0], device="cuda")
    if kernels:
        activate_flash_attention_impl(kernels)
    try:
        q, k, v = narrow
        out = varlen_attn(q, k, v, ends, ends, max(ROWS), max(ROWS), window_size=(-1, 0), enable_gqa=True)
        assert isinstance(out, Tensor)
        out.backward(gradient.bfloat16())
        expected = exact(wide[0], wide[1], wide[2])
        expected.backward(gradient)
    finally:
        if kernels:
            restore_flash_attention_impl()
    pairs = [(out, expected), *((ours.grad, theirs.grad) for ours, theirs in zip(narrow, wide, strict=True))]
    for ours, theirs in pairs:
        assert ours is not None and theirs is not None
        assert (ours.float() - theirs).norm() < 0.01 * theirs.norm()
