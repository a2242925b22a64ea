"""Kernels of causal attention on one long row, forward and backward: 32 query heads over 8 key heads of 128, bfloat16.

    python -m benchmarks.gpu.attention [--lengths 16384 65536] [--json FILE]

TFLOP/s count the lower half of the square: 2 matrix products forward, and 5 backward. "varlen" is what the trainer's
attention of that name calls, with FlashAttention-4 if its package is there; "flex" is compiled; the two of sdpa know no
packed rows.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import (
    SDPBackend,
    activate_flash_attention_impl,
    restore_flash_attention_impl,
    sdpa_kernel,
)
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

from benchmarks.machine import describe
from trainers.titan.flash_attention import choose, register

HEADS, KEY_HEADS, SIZE = 32, 8, 128
TIMED = 3


def seconds(work: Callable[[], object]) -> float:
    """The median of some calls after the first."""
    found = []
    for _ in range(1 + TIMED):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def kernels(length: int) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Each takes queries, keys and values, (1, heads, length, size)."""

    def sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def varlen(*tensors: Tensor) -> Tensor:
        ends = torch.tensor([0, length], device="cuda", dtype=torch.int32)
        q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in tensors)
        found = varlen_attn(q, k, v, ends, ends, length, length, window_size=(-1, 0), enable_gqa=True)
        assert isinstance(found, Tensor)
        return found.transpose(0, 1)[None]

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cuda")
    newest = choose(torch.cuda.get_device_capability())
    return {
        "sdpa, FlashAttention-2": functools.partial(sdpa, SDPBackend.FLASH_ATTENTION),
        "sdpa, cuDNN": functools.partial(sdpa, SDPBackend.CUDNN_ATTENTION),
        "varlen, FlashAttention-2": varlen,
        **({f"varlen, {newest}": varlen} if newest else {}),
        "flex": functools.partial(torch.compile(flex_attention), block_mask=mask, enable_gqa=True),
    }


def measure(length: int) -> dict[str, dict[str, float]]:
    def tensor(heads: int) -> Tensor:
        return torch.randn(1, heads, length, SIZE, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step(kernel: Callable[..., Tensor]) -> None:
        kernel(*inputs).backward(gradient)

    inputs, flops = (tensor(HEADS), tensor(KEY_HEADS), tensor(KEY_HEADS)), 2 * HEADS * SIZE * length**2
    gradient, found = torch.randn_like(inputs[0]), {}
    for name, kernel in kernels(length).items():
        if name.startswith("varlen, FA"):
            activate_flash_attention_impl(name.removeprefix("varlen, "))
        with torch.no_grad():
            forward = seconds(functools.partial(kernel, *inputs))
        both = seconds(functools.partial(step, kernel))
        speeds = {"forward_tflops": flops / forward / 1e12, "backward_tflops": 2.5 * flops / (both - forward) / 1e12}
        found[name] = speeds | {"seconds": both}
        restore_flash_attention_impl(_raise_warn=False)
        print(length, name, json.dumps(found[name]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16_384, 65_536])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    register()
    found = {str(length): measure(length) for length in given.lengths}
    result: dict[str, Any] = {"machine": describe(), "cudnn": torch.backends.cudnn.version(), "lengths": found}
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
