"""The head's kernels for GPUs: in Triton's interpreter they compute what plain torch does, and they compile for GPUs.

The interpreter rounds to bfloat16 toward zero, where a GPU rounds to nearest; hence float16 here.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainers.titan.test_head import gradients, make_inputs, plain
from trainers.titan import head

pytest.importorskip("triton", reason="triton is not installed: it comes with the torch of a GPU, and with vLLM")


Check = Callable[..., None]


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Check]:
    """Calls a check in a process of its own: whether it interprets, Triton decides when it is imported."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(int).result(timeout=120)  # its process starts here
        yield lambda check, *given: pool.submit(check, *given).result(timeout=120)


def make_logits(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Part of wider rows, as a chunk of them is; what is beside it must stay."""
    wide = torch.randn(rows, columns + 3, generator=torch.Generator().manual_seed(rows)) * 3
    return wide.to(dtype)[:, :columns]


SIZES = [(3, 5000), (4, 100), (2, 4096), (1, 9001)]


def check_sums(rows: int, columns: int, dtype: torch.dtype) -> None:
    from trainers.titan import head_kernels as kernels

    logits = make_logits(rows, columns, dtype)
    distribution = torch.distributions.Categorical(logits=logits.double() / 0.7)
    lse, entropy = kernels.sums(logits, 0.7, True)
    torch.testing.assert_close(lse.double(), (logits.double() / 0.7).logsumexp(-1), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(entropy.double(), distribution.entropy(), atol=1e-5, rtol=1e-5)
    alone, nothing = kernels.sums(logits, 0.7, False)
    assert torch.equal(alone, lse) and not nothing.any()


def check_gradients(rows: int, columns: int, with_entropy: bool) -> None:
    from trainers.titan import head_kernels as kernels

    logits = make_logits(rows, columns, torch.float32)
    lse, entropy = (value.float() for value in kernels.sums(logits, 0.7, True))
    targets = torch.randint(-columns, 2 * columns, (rows,), generator=torch.Generator().manual_seed(1))
    targets[0] = columns - 1
    w, u = torch.randn(2, rows, generator=torch.Generator().manual_seed(2))
    of_entropy = u if with_entropy else None
    expected = head._of_scaled(
        logits.clone(), *head._within(targets[:, None], slice(0, columns)), lse, entropy, w[:, None], of_entropy, 0.7
    )
    beside = torch.full((rows, columns + 5), math.pi)
    beside[:, :columns] = logits
    result = kernels.gradient_(beside[:, :columns], targets, lse, entropy, w, of_entropy, 0.7)
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)
    assert (beside[:, columns:] == math.pi).all()


def check_head(columns: int | None, kept_bytes: float) -> None:
    head._has_kernels = lambda logits: True  # in this process of its own
    hidden, weight, targets, upstream = make_inputs(6, 5, 150, torch.float32)
    targets[2], upstream[0, 2] = 150, 0.0  # one that no chunk has
    ours = head.head_logprobs(hidden, weight, targets, 0.7, with_entropy=True, columns=columns, kept_bytes=kept_bytes)
    double = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    expected = plain(*double, targets.clamp(max=149), 0.7)
    assert ours[0][2] == -math.inf
    kept = torch.arange(6) != 2
    torch.testing.assert_close(ours[0][kept].double(), expected[0][kept], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours[1].double(), expected[1], atol=1e-5, rtol=1e-5)
    result = gradients(ours, upstream, (hidden, weight))
    for mine, true in zip(result, gradients(expected, upstream, double), strict=True):
        torch.testing.assert_close(mine.double(), true, atol=1e-5, rtol=1e-4)
    several = torch.stack([targets.clamp(max=149), targets.roll(1).clamp(max=149)], dim=1)
    both = head.head_logprobs(hidden, weight, several, 0.7, with_entropy=True, columns=columns, kept_bytes=kept_bytes)
    wanted = (double[0] @ double[1].T / 0.7).log_softmax(-1)
    weights = torch.stack([upstream[0], upstream[1]], dim=1)
    found = torch.autograd.grad((both[0] * weights).sum() + both[1].sum(), (hidden, weight))
    total = (wanted.gather(-1, several) * weights).sum() - (wanted.exp() * wanted).sum()
    for mine, true in zip(found, torch.autograd.grad(total, double), strict=True):
        torch.testing.assert_close(mine.double(), true, atol=1e-5, rtol=1e-4)


def check_extremes() -> None:
    """Certain tokens have the entropy 0, and infinite logits show."""
    from trainers.titan import head_kernels as kernels

    logits = torch.zeros(4, 6000)
    logits[0, 5000] = 1e6
    logits[1, :5000] = -math.inf
    logits[2, 17], logits[3, 5999] = math.nan, math.inf
    lse, entropy = kernels.sums(logits, 1.0, True)
    assert lse[0] == 1e6 and entropy[0] == 0
    torch.testing.assert_close((lse[1].item(), entropy[1].item()), (math.log(1000), math.log(1000)))
    assert not lse[2:].isfinite().any()
    w, u = torch.tensor([1.0, 1.0, 1.0, math.nan]), torch.ones(4)
    gradient = kernels.gradient_(logits.clone(), torch.full((4,), 5500), lse, entropy, w, u, 1.0)
    assert gradient[:2].isfinite().all() and not gradient[2:].isfinite().any()


CHECKS: list[tuple[Any, ...]] = [
    *((check_sums, *size, dtype) for size in SIZES for dtype in (torch.float32, torch.float16)),
    *((check_gradients, *size, with_entropy) for size in SIZES for with_entropy in (False, True)),
    *((check_head, columns, kept_bytes) for columns in (None, 40, 64) for kept_bytes in (0, math.inf)),
    (check_extremes,),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: " ".join([check[0].__name__, *map(str, check[1:])]))
def test_they_compute_what_plain_torch_does(interpreter: Check, check: tuple[Any, ...]) -> None:
    interpreter(*check)


def test_without_rows_nothing_is_asked_of_a_gpu() -> None:
    from trainers.titan import head_kernels as kernels

    lse, entropy = kernels.sums(torch.zeros(0, 10), 1.0, True)
    assert lse.shape == entropy.shape == (0,)
    nothing = torch.zeros(0)
    assert kernels.gradient_(torch.zeros(0, 10), nothing.long(), lse, entropy, nothing, None, 1.0).shape == (0, 10)


@pytest.mark.parametrize(
    ("target", "with_entropy"),
    [(("cuda", 90, 32), False), (("cuda", 90, 32), True), (("cuda", 80, 32), True), (("hip", "gfx942", 64), True)],
    ids=str,
)
def test_they_compile_for_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: tuple[str, int | str, int], with_entropy: bool
) -> None:
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from trainers.titan import head_kernels as kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # as the versions before 3.10 have it anyway
    types = {"logits": "*bf16", "targets": "*i64", "stride": "i32", "columns": "i32", "scale": "fp32"}
    for kernel in (kernels._sums_kernel, kernels._gradient_kernel):
        signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
        signature |= {"WITH_ENTROPY": "constexpr", "BLOCK": "constexpr"}
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={"WITH_ENTROPY": with_entropy, "BLOCK": kernels.BLOCK},
            attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if name in types},
        )
        made = compile_kernel(source, target=GPUTarget(*target), options={"num_warps": kernels.WARPS})
        assert made.asm["cubin" if target[0] == "cuda" else "hsaco"]
        if target[0] == "cuda":
            assert "ld.global.v4" in made.asm["ptx"], "eight logits are read at once"
