"""Where an RL step of a small model with many short rows spends its time, and what other ways of running it take.

    python -m benchmarks.gpu.small [--shape 135M] [--variants today fused] [--detail today] [--json FILE]

A step has 32 x 16 episodes of up to 200 tokens; half of the groups have no advantage, so that they are not computed.
The batches of the steps differ, as in a run. `VARIANTS` are changes that this file alone makes:

- micro: tokens of a micro-batch.
- root: one FSDP unit for the whole model, in the place of one for each block.
- plain: no FSDP; the model computes with bfloat16 copies, and their gradients are added to those of the weights.
- nosync: attention's cumulative lengths are counted on the host, before the first pass.
- real: Llama's rotation in real numbers; Inductor generates no code for complex ones.
- whole: one compiled function for all blocks, in the place of one for each.
- graph: also forward and backward passes of one step as a CUDA graph.

Printed for each: seconds of a step and of the copy for the engine, host seconds by phase (some are parts of others).
With --detail: launches, synchronisations, the share of the time that the GPU works, and the costliest host functions.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import random
import re
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe
from forge_env.core.episode import Row
from forge_env.runtime.weights import TensorLayout, WeightStream
from trainers.batching.batch import Sample
from trainers.losses import GRPOLoss
from trainers.objective.loss_metrics import LossMetrics

import trainers.titan.trainer as of_trainer  # isort: skip
import torchtitan.models.llama3.parallelize as of_llama  # isort: skip
import torchtitan.models.qwen3.parallelize as of_qwen  # isort: skip
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchtitan.distributed.fsdp import disable_fsdp_gradient_division
from torchtitan.models.common.attention import VarlenMetadata
from torchtitan.models.common.rope import ComplexRoPE

from trainers.titan.backward import StepLoss
from trainers.titan.llama import LlamaBuilder
from trainers.titan.model import TitanModel
from trainers.titan.passes import Passes
from trainers.titan.rank_batches import RankBatches
from trainers.titan.trainer import TitanSettings, TitanTrainer

ON_GPU = torch.cuda.is_available()
VARIANTS: dict[str, dict[str, Any]] = {
    "today": {},
    "today8k": {"micro": 8192},
    "never": {"reshard": "never"},
    "today64k": {"micro": 65536},
    "nosync": {"nosync": True},
    "root": {"root": True},
    "root+nosync": {"root": True, "nosync": True},
    "root+nosync64k": {"root": True, "nosync": True, "micro": 65536},
    "plain+nosync": {"plain": True, "nosync": True, "graph": True},
    "plain+nosync64k": {"plain": True, "nosync": True, "micro": 65536, "graph": True},
    "real": {"real": True},
    "real+plain+nosync": {"real": True, "plain": True, "nosync": True},
    "real+plain+nosync64k": {"real": True, "plain": True, "nosync": True, "micro": 65536, "graph": True},
    "whole": {"plain": True, "nosync": True, "whole": True, "real": True, "graph": True},
    "whole64k": {"plain": True, "nosync": True, "whole": True, "real": True, "micro": 65536, "graph": True},
}
PHASES: dict[str, tuple[Any, str]] = {
    "check_rows": (RankBatches, "check_rows"),
    "pack": (RankBatches, "work"),
    "to_device": (RankBatches, "rounds"),
    "forward": (Passes, "forward"),
    "forward.mask": (TitanModel, "_mask"),
    "backward": (StepLoss, "backward"),
    "backward.autograd": (Tensor, "backward"),
    "backward.metrics": (LossMetrics, "add"),
    "update": (TitanTrainer, "_update_weights"),
    "update.clip": (TitanTrainer, "_clip_gradients"),
    "update.optimizer": (of_trainer, "take_step"),
    "values": (LossMetrics, "values"),
}


def make_samples(given: argparse.Namespace, vocabulary: int, seed: int) -> list[Sample]:
    """The episodes of a step; those of every second group have the advantage 0."""
    rng, random_ids = random.Random(seed), np.random.default_rng(seed)
    samples = []
    for group in range(given.groups):
        prompt = rng.randint(40, 80)
        for _ in range(given.episodes):
            size = prompt + rng.randint(10, 100)
            mask = np.arange(size) >= prompt
            row = Row(
                token_ids=random_ids.integers(0, vocabulary, size).astype(np.int32),
                loss_mask=mask,
                generator_logprobs=np.where(mask, -10.8, 0.0),
                versions=np.where(mask, 0, -1).astype(np.int32),
            )
            samples.append(Sample(rows=(row,), advantage=rng.gauss(0, 1) if group % 2 else 0.0))
    return samples


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    before = owner.__dict__.get(name)
    setattr(owner, name, make(getattr(owner, name)))
    try:
        yield
    finally:
        delattr(owner, name) if before is None else setattr(owner, name, before)


@contextmanager
def clocks() -> Iterator[dict[str, float]]:
    """Host seconds by phase, summed over the calls; nothing is waited for."""
    seconds: dict[str, float] = defaultdict(float)

    def clocked(phase: str) -> Callable[[Any], Any]:
        def make(function: Any) -> Any:
            def call(*args: Any, **named: Any) -> Any:
                started = time.perf_counter()
                try:
                    return function(*args, **named)
                finally:
                    seconds[phase] += time.perf_counter() - started

            return call

        return make

    with ExitStack() as stack:
        for phase, (owner, name) in PHASES.items():
            stack.enter_context(patched(owner, name, clocked(phase)))
        yield seconds


# -- the variants ------------------------------------------------------------------------------------------------------


class Halves:
    """bfloat16 copies of a model's float32 weights, which take their places during a forward pass."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = list(module.parameters())
        self.copies = [nn.Parameter(weight.detach().to(torch.bfloat16)) for weight in self.weights]
        copy_of = dict(zip(map(id, self.weights), self.copies, strict=True))
        self._places = [
            (part, name, weight, copy_of[id(weight)])
            for part in module.modules()
            for name, weight in part._parameters.items()
            if weight is not None
        ]

    @contextmanager
    def installed(self) -> Iterator[None]:
        for part, name, _, copy in self._places:
            part._parameters[name] = copy
        try:
            yield
        finally:
            for part, name, weight, _ in self._places:
                part._parameters[name] = weight

    @torch.no_grad()
    def cast(self) -> None:
        torch._foreach_copy_(self.copies, self.weights)

    @torch.no_grad()
    def collect(self) -> None:
        gradients = [torch.empty_like(weight) for weight in self.weights]
        torch._foreach_copy_(gradients, [copy.grad for copy in self.copies])  # type: ignore[misc]
        if self.weights[0].grad is None:
            for weight, gradient in zip(self.weights, gradients, strict=True):
                weight.grad = gradient
        else:
            torch._foreach_add_([weight.grad for weight in self.weights], gradients)  # type: ignore[misc]
        self.forget()

    def forget(self) -> None:
        for copy in self.copies:
            copy.grad = None


def one_unit(model: Any, dp_mesh: Any, *, param_dtype: Any, reduce_dtype: Any, **_: Any) -> None:
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
    fully_shard(model, mesh=dp_mesh, mp_policy=policy, reshard_after_forward=False)
    disable_fsdp_gradient_division(model)


def as_one(module: Any) -> None:
    """Compile all blocks as one function."""

    def blocks(h: Tensor, masks: Any, positions: Tensor) -> Tensor:
        for layer in module.layers.values():
            h = layer(h, masks, positions)
        return h

    compiled = torch.compile(blocks)

    def forward(tokens: Tensor, positions: Tensor | None = None, attention_masks: Any = None) -> Any:
        return module.lm_head(module.norm(compiled(module.tok_embeddings(tokens), attention_masks, positions)))

    module.forward = forward


def lengths_on_host(stack: ExitStack) -> None:
    masks: dict[int, tuple[Any, VarlenMetadata]] = {}

    def placed(function: Any) -> Any:
        def call(self: RankBatches, batch: Any) -> Any:
            moved = function(self, batch)
            if batch.positions is not None:
                starts = np.flatnonzero(batch.positions.numpy().ravel() == 0)
                ends = np.append(starts, batch.positions.numel()).astype(np.int32)
                bounds, longest = torch.from_numpy(ends).to(moved.tokens.device), int(np.diff(ends).max())
                masks[id(moved.positions)] = moved.positions, VarlenMetadata(bounds, bounds, longest, longest)
            return moved

        return call

    def mask(function: Any) -> Any:
        def call(self: TitanModel, tokens: Tensor, positions: Any, window: Any) -> Any:
            found = masks.get(id(positions)) if self.attention == "varlen" else None
            return function(self, tokens, positions, window) if found is None else found[1]

        return call

    def work(function: Any) -> Any:
        return lambda *args, **named: masks.clear() or function(*args, **named)  # type: ignore[func-returns-value]

    stack.enter_context(patched(RankBatches, "placed", placed))
    stack.enter_context(patched(TitanModel, "_mask", mask))
    stack.enter_context(patched(RankBatches, "work", work))


def without_fsdp(stack: ExitStack, made: list[Halves]) -> None:
    def parallelize(function: Any) -> Any:
        return lambda self, module, *, skip_dp, **settings: function(self, module, skip_dp=True, **settings)

    def init(function: Any) -> Any:
        def call(self: TitanModel, *args: Any, **named: Any) -> None:
            function(self, *args, **named)
            made.append(Halves(self.module))

        return call

    def run(function: Any) -> Any:
        def call(*args: Any) -> Any:
            with made[0].installed():
                return function(*args)

        return call

    def backward(function: Any) -> Any:
        return lambda *args, **named: (function(*args, **named), made[0].collect())[0]

    def take_step(function: Any) -> Any:
        return lambda *args: (function(*args), made[0].cast())[0]

    stack.enter_context(patched(LlamaBuilder, "parallelize", parallelize))
    stack.enter_context(patched(TitanModel, "__init__", init))
    stack.enter_context(patched(TitanModel, "_run", run))
    stack.enter_context(patched(StepLoss, "backward", backward))
    stack.enter_context(patched(of_trainer, "take_step", take_step))


def real_table(self: ComplexRoPE, query: Tensor, positions: Tensor | None = None) -> Tensor:
    table = torch.view_as_real(self.cache)  # (positions, dim / 2, 2)
    return (table[: query.shape[1]][None] if positions is None else table[positions])[:, :, None]


def real_rotation(query: Tensor, key: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    cos, sin = table.unbind(-1)
    pairs = [x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1) for x in (query, key)]
    rotated = [torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3) for a, b in pairs]
    return tuple(x.to(query.dtype) for x in rotated)


def compiled_whole(stack: ExitStack) -> None:
    for where in (of_llama, of_qwen):
        stack.enter_context(patched(where, "apply_compile", lambda _: lambda *args, **named: None))

    def init(function: Any) -> Any:
        def call(self: TitanModel, *args: Any, **named: Any) -> None:
            function(self, *args, **named)
            as_one(self.module)

        return call

    stack.enter_context(patched(TitanModel, "__init__", init))


# -- measuring ---------------------------------------------------------------------------------------------------------


def wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def timed(work: Callable[[], object], count: int) -> float:
    """Median seconds, with all that the work has queued."""
    seconds = []
    for _ in range(count):
        wait()
        started = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def sync_times(trainer: TitanTrainer) -> dict[str, float]:
    """Seconds of the parts of a copy of the weights for the engine."""
    published = trainer.model.published
    layout = TensorLayout.of(published.layout(torch.bfloat16))
    flat = torch.empty(layout.size, dtype=torch.uint8, device=trainer.device)

    def copy() -> None:
        with published.stream(torch.bfloat16) as tensors:
            WeightStream(layout, trainer.device, tensors).copy_to(flat)

    found = {"layout": timed(lambda: TensorLayout.of(published.layout(torch.bfloat16)), 3), "copy": timed(copy, 3)}
    found["bytes"] = float(layout.size)
    return found


def detail(name: str, step: Callable[[], object], wall: float) -> dict[str, Any]:
    """What two steps are made of."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]
    with torch_profile(activities=activities) as profiled:
        step(), step()
        wait()
    events = list(profiled.events() or ())
    calls = Counter(e.name for e in events if re.match(r"cu(da)?[A-Z]", e.name))  # of CUDA's runtime or driver
    spans = sorted((e.time_range.start, e.time_range.end) for e in events if e.device_type.name == "CUDA")
    busy, end = 0.0, float("-inf")
    for first, last in spans:
        busy, end = busy + max(0.0, last - max(first, end)), max(end, last)
    for order in ("self_cpu_time_total", "self_device_time_total")[: 1 + ON_GPU]:
        print(f"-- {name}: {order}, two steps")
        print(profiled.key_averages().table(sort_by=order, row_limit=22, max_name_column_width=60), flush=True)
    profiler = cProfile.Profile()
    with torch.autograd.set_multithreading_enabled(False):  # else the backward pass is in a thread that it cannot see
        profiler.enable()
        step(), step()
        wait()
        profiler.disable()
    for order in ("tottime", "cumulative"):
        print(f"-- {name}: host functions by {order}, two steps")
        pstats.Stats(profiler).strip_dirs().sort_stats(order).print_stats(24 if order == "tottime" else 50)
    launches = sum(n for call, n in calls.items() if "Launch" in call)
    return {
        "launches": launches / 2,
        "gpu_events": len(spans) / 2,
        "gpu_busy_seconds": busy / 2e6,
        "gpu_busy_share": busy / 2e6 / wall,
        "calls": {call: n / 2 for call, n in calls.most_common(16)},
    }


def graph_seconds(trainer: TitanTrainer, samples: list[Sample], halves: Halves) -> float | str:
    """Seconds of the passes of a step as one CUDA graph, or why there is none."""
    loss = GRPOLoss()
    call = of_trainer.LossCall(loss)
    work = trainer._batches.work(samples, skips_idle=call.skips_idle)
    batches = trainer._batches.rounds(work.batches, len(work.batches))
    normalizer = torch.tensor(float(call.units(work.tokens, work.episodes)), device=trainer.device)
    step = StepLoss(call, normalizer, LossMetrics(loss, trainer.device), old_is_present=False)

    def passes() -> None:
        for batch in batches:
            logprobs, entropies, *_ = trainer._passes.forward(batch, 1.0, with_entropy=True)
            step.backward(batch, logprobs, entropies)

    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            passes(), passes()  # type: ignore[func-returns-value]
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            passes()
        return timed(graph.replay, 5)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        for weight in halves.weights:
            weight.grad = None


def measure(folder: Path, given: argparse.Namespace, name: str) -> dict[str, Any]:
    variant = VARIANTS[name]
    micro = variant.get("micro", given.micro)
    settings = TitanSettings(
        compile=not given.eager,
        compile_full=not given.eager,
        attention="varlen" if ON_GPU else "sdpa",
        dtype="auto" if ON_GPU else "bfloat16",
        reshard_after_forward=variant.get("reshard", "default"),
        max_tokens_per_micro_batch=micro,
        pack_length=micro,
        learning_rate=1e-5,
    )
    torch._dynamo.reset()
    halves: list[Halves] = []
    started = time.perf_counter()
    with ExitStack() as stack:
        if variant.get("root"):
            stack.enter_context(patched(of_llama, "apply_fsdp_to_decoder", lambda _: one_unit))
        if variant.get("real"):
            stack.enter_context(patched(ComplexRoPE, "_reshape_cache", lambda _: real_table))
            stack.enter_context(patched(ComplexRoPE, "apply_rotary_emb", lambda _: staticmethod(real_rotation)))
        if variant.get("whole"):
            compiled_whole(stack)
        if variant.get("plain"):
            without_fsdp(stack, halves)
        if variant.get("nosync"):
            lengths_on_host(stack)
        trainer = TitanTrainer(str(folder), settings)
        stack.callback(trainer.close)
        loaded = time.perf_counter() - started
        for each in halves:
            each.forget()  # gradients that were compiled for
        sets = [make_samples(given, trainer.model.hf_config["vocab_size"], seed) for seed in range(4)]
        number, loss, losses = 0, GRPOLoss(), []

        def step() -> None:
            nonlocal number
            losses.append(trainer.train_step(sets[number % len(sets)], loss)["loss"])
            number += 1

        for _ in range(given.warm):
            step()
        warm = time.perf_counter() - started - loaded
        seconds = timed(step, given.timed)
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        with clocks() as phases:
            for _ in range(len(sets)):
                step()
        batches = len(trainer._batches.work(sets[0], skips_idle=True).batches)
        found = {
            "seconds": seconds,
            "start_seconds": loaded,
            "warm_seconds": warm,
            "micro_batches": batches,
            "losses": losses[:3],
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if ON_GPU else 0.0,
            "phases_ms": {phase: round(1e3 * total / len(sets), 2) for phase, total in phases.items()},
            "sync": sync_times(trainer),
        }
        if name in given.detail:
            found |= detail(name, step, seconds)
        if variant.get("graph") and ON_GPU:
            found["graph_seconds"] = graph_seconds(trainer, sets[0], halves[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="135M")
    parser.add_argument("--layers", type=int, default=0, help="of the model; 0 is as many as its shape has")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--micro", type=int, default=16384, help="tokens of a micro-batch, if the variant names none")
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--timed", type=int, default=12)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--variants", nargs="+", default=["today"], choices=list(VARIANTS))
    parser.add_argument("--detail", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")  # as a run's trainer has them
    results: dict[str, Any] = {"machine": describe()}
    print(results, flush=True)
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "model"
        make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), folder, layers=given.layers)
        for name in given.variants:
            try:
                results[name] = measure(folder, given, name)
            except Exception as error:
                results[name] = f"{type(error).__name__}: {str(error)[:600]}"
            gc.collect()
            if ON_GPU:
                torch.cuda.empty_cache()
            print(name, json.dumps(results[name]), flush=True)
            if given.json:
                given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
