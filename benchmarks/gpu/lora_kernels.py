"""Settings of vLLM's LoRA kernels for this GPU, measured: files that `VLLM_TUNED_CONFIG_FOLDER` names.

    python -m benchmarks.gpu.lora_kernels FOLDER [--rank 16] [--json FILE]

A matrix with an adapter takes two kernels more: "shrink", x A^T, and "expand", which adds that times B^T. For the
matrices of Qwen3-0.6B and Qwen3-8B, as vLLM fuses them, and some numbers of tokens, each setting of a grid is timed in
a CUDA graph that calls the kernel for several layers; the fastest one is written, or vLLM's own where none is 2%
faster. All requests have the one adapter, as in a run. The kernels are compiled by several processes first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.lora.ops.triton_ops import lora_expand_op, lora_shrink_op, utils
from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta

TOKENS = (1, 16, 64, 128, 256, 512, 2048, 8192)
WIDTHS = {  # inputs, and outputs of each fused matrix
    "0.6B": [(1024, (2048, 1024, 1024)), (2048, (1024,)), (1024, (3072, 3072)), (3072, (1024,))],
    "8B": [(4096, (4096, 1024, 1024)), (4096, (4096,)), (4096, (12288, 12288)), (12288, (4096,))],
}
LAYERS, REPLAYS = 8, 7
LEAST_GAIN = 0.98
Setting = dict[str, Any]


class Case(NamedTuple):
    op: str  # "shrink" or "expand"
    slices: tuple[int, ...]  # outputs of the fused matrices
    width: int  # inputs

    @property
    def key(self) -> tuple[int, int]:
        """Number of slices, and the width by which vLLM looks a setting up."""
        return len(self.slices), self.width if self.op == "shrink" else max(self.slices)


def grid(op: str, tokens: int) -> Iterator[Setting]:
    """Settings worth a try; the numbers of rows of a block end at the first one that holds all tokens."""
    rows = [m for m in (16, 32, 64, 128) if m < 2 * max(tokens, 16)]
    if op == "shrink":
        splits = (1, 4, 8) if tokens >= 2048 else (1, 8, 16, 32, 64)
        for m, k, split, stages in itertools.product(rows[:3], (64, 128, 256), splits, (2, 4)):
            yield {"block_m": m, "block_n": 16, "block_k": k, "split_k": split, "num_warps": 4, "num_ctas": 1,
                   "group_size_m": 8, "num_stages": stages, "max_nreg": None}  # fmt: skip
        return
    for m, n, warps in itertools.product(rows, (64, 128, 256), (4, 8)):
        yield {"block_m": m, "block_n": n, "block_k": 16, "num_warps": warps, "num_ctas": 1, "num_stages": 2,
               "max_nreg": None}  # fmt: skip


def cases() -> list[Case]:
    found: dict[tuple[str, int, int], Case] = {}
    for matrices in WIDTHS.values():
        for width, slices in matrices:
            for op in ("shrink", "expand"):
                case = Case(op, slices, width)
                found.setdefault((op, *case.key), case)
    return list(found.values())


class Bench:
    """The tensors of a case at a number of tokens, for several layers."""

    def __init__(self, case: Case, rank: int, tokens: int) -> None:
        self.case, device, kind = case, "cuda", torch.bfloat16
        utils._LORA_A_PTR_DICT.clear()  # vLLM knows matrices by their addresses, which come again
        utils._LORA_B_PTR_DICT.clear()
        meta = LoRAKernelMeta.make(1, tokens, device)
        meta.prepare_tensors(torch.zeros(tokens, dtype=torch.int32, device=device))
        self.meta = meta.meta_args(tokens, False)
        self.x = torch.randn(tokens, case.width, device=device, dtype=kind)
        self.low = torch.randn(len(case.slices), tokens, rank, device=device)
        self.y = torch.zeros(tokens, sum(case.slices), device=device, dtype=kind)

        def halves(shape: Iterable[tuple[int, int]]) -> list[list[Tensor]]:
            return [[torch.randn(1, 1, *s, device=device, dtype=kind) * 0.01 for s in shape] for _ in range(LAYERS)]

        self.a = halves([(rank, case.width)] * len(case.slices))
        self.b = halves([(n, rank) for n in case.slices])

    def call(self, setting: Setting, layer: int) -> None:
        module = lora_shrink_op if self.case.op == "shrink" else lora_expand_op
        module.get_lora_op_configs = lambda *args, **names: setting
        if self.case.op == "shrink":
            lora_shrink_op._lora_shrink(self.x, self.a[layer], self.low, *self.meta, 1.0)
        else:
            lora_expand_op._lora_expand(self.low, self.b[layer], self.y, *self.meta, add_inputs=True)

    def microseconds(self, setting: Setting) -> float:
        """Of one call: the median over some replays of a CUDA graph that has one for each layer."""
        self.call(setting, 0)
        for layer in range(LAYERS):  # the addresses of the weights are written to the GPU in the first call
            self.call(setting, layer)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for layer in range(LAYERS):
                self.call(setting, layer)
        times = []
        for _ in range(REPLAYS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end) / LAYERS)
        return statistics.median(times[2:])


def default(case: Case, rank: int, tokens: int) -> Setting:
    """vLLM's own setting."""
    number, width = case.key
    adds = None if case.op == "shrink" else True
    setting: Setting = utils.get_lora_op_configs.__wrapped__(case.op, 2, tokens, width, rank, number, adds)
    return setting


def compile_some(settings: list[tuple[Case, Setting]], rank: int) -> None:
    benches: dict[Case, Bench] = {}
    for case, setting in settings:
        if case not in benches:
            benches[case] = Bench(case, rank, 16)
        benches[case].call(setting, 0)
    torch.cuda.synchronize()


def tune(rank: int, given: argparse.Namespace) -> dict[str, Any]:
    tables: dict[str, Any] = {"shrink": {}, "expand": {}}
    rows = []
    for case in cases():
        number, width = case.key
        for tokens in given.tokens:
            bench = Bench(case, rank, tokens)
            usual = default(case, rank, tokens)
            before = min(bench.microseconds(usual) for _ in range(2))
            settings = list(grid(case.op, tokens))
            timed = sorted((bench.microseconds(setting), index) for index, setting in enumerate(settings))
            again = min((bench.microseconds(settings[index]), index) for _, index in timed[:3])
            best = settings[again[1]] if again[0] < LEAST_GAIN * before else usual
            place = tables[case.op].setdefault("2", {}).setdefault(str(number), {}).setdefault(str(tokens), {})
            place = place.setdefault(str(width if case.op == "shrink" else rank), {})
            place[str(rank if case.op == "shrink" else width)] = best
            row = {"op": case.op, "slices": number, "width": width, "tokens": tokens, "default_us": round(before, 2),
                   "best_us": round(min(again[0], before), 2), "setting": best}  # fmt: skip
            rows.append(row)
            print(json.dumps(row), flush=True)
    return {"tables": tables, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    started = time.perf_counter()
    fork = multiprocessing.get_context("fork")  # vLLM is imported, and the GPU not yet touched
    tried = {op: list({str(s): s for t in TOKENS for s in grid(op, t)}.values()) for op in ("shrink", "expand")}
    work = [(case, setting) for case in cases() for setting in tried[case.op]]
    count = max(1, min(14, len(os.sched_getaffinity(0)) - 1))
    ranks = [fork.Process(target=compile_some, args=(work[i::count], given.rank)) for i in range(count)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    compiled = time.perf_counter() - started
    found = tune(given.rank, given)
    name = torch.cuda.get_device_name().replace(" ", "_").replace("-", "_")
    given.folder.mkdir(parents=True, exist_ok=True)
    for op, end in (("shrink", "SHRINK"), ("expand", "EXPAND_TRUE")):
        (given.folder / f"{name}_{end}.json").write_text(json.dumps(found["tables"][op], indent=1) + "\n")
    seconds = time.perf_counter() - started
    result = {"gpu": torch.cuda.get_device_name(), "rank": given.rank, "seconds": seconds, "compile_seconds": compiled,
              "rows": found["rows"]}  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"seconds": round(seconds, 1), "compile_seconds": round(compiled, 1)}))


if __name__ == "__main__":
    main()
