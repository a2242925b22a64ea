"""What the head by chunks costs and saves against all logits at once, at the sizes of Qwen3-0.6B.

    python -m benchmarks.head [--device cpu|cuda] [--dtype ...] [--tokens 256 1024] [--step-tokens 256] [--json FILE]

Two parts, both forward and backward, on random weights made on the spot:

    head    logprobs of some tokens from hidden states of width 1,024 and a vocabulary of 151,936, with and without
            entropy: seconds, and the peak of memory beside inputs and gradients against all logits in float32
    step    the same at the end of 28 transformer blocks with a tied head, and a step of plain gradient descent

Plain is what one would write: the matrix product, float32, log_softmax, gather. The ways take turns, and the ratio is
that of their medians. On a CPU the time is processor time on one thread, which other work on the machine changes
little, and memory is not measured (the tests of the head count live tensors); on a GPU it is wall time between
synchronisations, and the allocator's peak. Only torch and this repository are needed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.titan.head import head_logprobs

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 151_936, 1024, 28, 16, 8, 128, 3072
HeadCall = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    table = F.linear(hidden, weight).float().log_softmax(-1)
    entropy = -(table.exp() * table).sum(-1) if with_entropy else None
    return table.gather(-1, targets[:, None])[:, 0], entropy


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    return head_logprobs(hidden, weight, targets, with_entropy=with_entropy)


WAYS: dict[str, HeadCall] = {"plain": plain, "chunked": chunked}


def loss_of(head: HeadCall, hidden: Tensor, weight: Tensor, targets: Tensor, with_entropy: bool) -> Tensor:
    """A policy gradient with advantages of both signs, and an entropy bonus."""
    logprobs, entropy = head(hidden, weight, targets, with_entropy)
    advantages = torch.linspace(-1, 1, len(targets), device=targets.device)
    return (logprobs * advantages).mean() + (0 if entropy is None else entropy.mean())


class Block(nn.Module):
    """A transformer block of Qwen3's shape: grouped queries, gated feed-forward; rotation left out."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k = (
            nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False),
            nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False),
        )
        self.v, self.o = (
            nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False),
            nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False),
        )
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) to the same."""
        normed = self.before(x)
        q, k, v = (part(normed).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """596 million parameters, the embedding shared with the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) to hidden states (B, L, D)."""
        return self.norm(self.blocks(self.embedding(tokens)))


def make_inputs(tokens: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, device=device, dtype=dtype, requires_grad=True)
    weight = torch.empty(VOCABULARY, WIDTH, device=device, dtype=dtype).normal_(std=0.02).requires_grad_()
    return hidden, weight, torch.randint(0, VOCABULARY, (tokens,), device=device)


def seconds(device: str, work: Callable[[], None]) -> float:
    if device == "cpu":
        started = time.process_time()
        work()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def compare(device: str, works: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median seconds of each way, and their ratio; they take turns, after one turn that is not counted."""
    runs = [{name: seconds(device, work) for name, work in works.items()} for _ in range(repeats + 1)]
    medians = {name: statistics.median(run[name] for run in runs[1:]) for name in works}
    figures = {f"{name}_seconds": value for name, value in medians.items()}
    return figures | {"time_ratio": medians["chunked"] / medians["plain"]}


def time_head(tokens: int, device: str, dtype: torch.dtype, with_entropy: bool, repeats: int) -> dict[str, float]:
    hidden, weight, targets = make_inputs(tokens, device, dtype)

    def work(head: HeadCall) -> None:
        hidden.grad = weight.grad = None
        loss_of(head, hidden, weight, targets, with_entropy).backward()

    return compare(device, {name: lambda head=head: work(head) for name, head in WAYS.items()}, repeats)


def time_step(tokens: int, device: str, dtype: torch.dtype, repeats: int) -> dict[str, float]:
    """One row of up to 1,024 tokens, or several; every place is a target."""
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(dtype)
        model = Model()
        torch.set_default_dtype(torch.float32)
        rows = torch.randint(0, VOCABULARY, (max(1, tokens // 1024), min(tokens, 1024) + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=False)

    def work(head: HeadCall) -> None:
        hidden = model(rows[:, :-1]).flatten(0, 1)
        loss_of(head, hidden, model.embedding.weight, rows[:, 1:].flatten(), False).backward()
        optimizer.step()
        optimizer.zero_grad()

    return compare(device, {name: lambda head=head: work(head) for name, head in WAYS.items()}, repeats)


def peak_bytes(way: str, tokens: int, dtype: torch.dtype, with_entropy: bool) -> int:
    """Peak of one forward and backward on the GPU beside inputs and gradients, as the allocator saw it.

    The gradient of the weight is made only in backward, so what plain holds in forward is counted less its size.
    """
    hidden, weight, targets = make_inputs(tokens, "cuda", dtype)
    # A first turn of few tokens loads what the products need, and makes the gradients that are not counted.
    loss_of(WAYS[way], hidden[:8], weight, targets[:8], with_entropy).backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    hidden.grad = weight.grad = None
    loss_of(WAYS[way], hidden, weight, targets, with_entropy).backward()
    return torch.cuda.max_memory_allocated() - before


def measure_memory(tokens: int, dtype: torch.dtype, with_entropy: bool) -> dict[str, float]:
    """Each figure in a process of its own, so that nothing of one is still held in the next."""
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for way in WAYS:
        with context.Pool(1) as pool:
            peaks[way] = pool.apply(peak_bytes, (way, tokens, dtype, with_entropy))
    figures = {f"{way}_peak_bytes": float(peak) for way, peak in peaks.items()}
    return figures | {"memory_against_float32_logits": peaks["chunked"] / (tokens * VOCABULARY * 4)}


def measure_head(tokens: int, device: str, dtype: torch.dtype, with_entropy: bool, repeats: int) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "dtype": str(dtype).removeprefix("torch."),
        "repeats": repeats,
        "entropy": with_entropy,
        **time_head(tokens, device, dtype, with_entropy, repeats),
        **(measure_memory(tokens, dtype, with_entropy) if device == "cuda" else {}),
    }


def machine(device: str) -> dict[str, Any]:
    """The whole description where the gym is installed; else what is known anywhere."""
    try:
        from benchmarks.machine import describe

        facts = describe()
    except ImportError:
        facts = {"cores": len(os.sched_getaffinity(0)), "system": f"{platform.system()} {platform.release()}"}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    return facts | {"torch": torch.__version__, "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="float32 on CPU, bfloat16 on GPU")
    parser.add_argument(
        "--tokens", type=int, nargs="*", help="of the head alone: 256 and 1,024; on GPU 4,096 and 16,384"
    )
    parser.add_argument("--step-tokens", type=int, help="of the whole step, 0 for none: 256, on GPU 8,192")
    parser.add_argument("--repeats", type=int, help="runs that are counted: 3, on GPU 10")
    parser.add_argument("--json", type=Path, help="file for the figures and the machine; what was not measured stays")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    dtype = getattr(torch, options.dtype or ("float32" if on_cpu else "bfloat16"))
    tokens = ([256, 1024] if on_cpu else [4096, 16384]) if options.tokens is None else options.tokens
    step_tokens = (256 if on_cpu else 8192) if options.step_tokens is None else options.step_tokens
    repeats = options.repeats or (3 if on_cpu else 10)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    for count in tokens:
        for with_entropy in (False, True):
            measured = measure_head(count, options.device, dtype, with_entropy, repeats)
            figures.setdefault("head", []).append(measured)
            print(json.dumps(measured), flush=True)
    if step_tokens:
        about = {"tokens": step_tokens, "dtype": str(dtype).removeprefix("torch."), "repeats": repeats}
        figures["step"] = about | time_step(step_tokens, options.device, dtype, repeats)
        print(json.dumps(figures["step"]), flush=True)
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        known.setdefault(options.device, {}).update(machine=machine(options.device), **figures)
        options.json.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
