"""Where an RL step of a small model with many short rows spends its time, for micro-batches of several sizes.

    python -m benchmarks.gpu.small [--shape 135M] [--micro 16384 65536] [--detail 65536] [--json FILE]

A step has 32 x 16 episodes of up to 180 tokens; half of the groups have no advantage, so that they are not computed.
The batches of the steps differ, as in a run. The trainers of all sizes take their steps in turns. Printed for each:
seconds of a step and of the copy for the engine, and host seconds by phase (some are parts of others). With --detail:
launches, the share of the time that the GPU works, and the costliest host functions.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe
from forge_env.core.episode import Row
from forge_env.runtime.weights import TensorLayout, WeightStream
from trainers.batching.batch import Sample
from trainers.losses import GRPOLoss
from trainers.objective.loss_metrics import LossMetrics

import trainers.titan.trainer as of_trainer  # isort: skip
from trainers.titan.backward import StepLoss
from trainers.titan.passes import Passes
from trainers.titan.rank_batches import RankBatches
from trainers.titan.trainer import TitanSettings, TitanTrainer

ON_GPU = torch.cuda.is_available()
PHASES: dict[str, tuple[Any, str]] = {
    "check_rows": (RankBatches, "check_rows"),
    "pack": (RankBatches, "work"),
    "forward": (Passes, "forward"),
    "backward": (StepLoss, "backward"),
    "backward.autograd": (Tensor, "backward"),
    "backward.metrics": (LossMetrics, "add"),
    "update": (TitanTrainer, "_update_weights"),
    "update.clip": (TitanTrainer, "_clip_gradients"),
    "update.optimizer": (of_trainer, "take_step"),
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
            ids = random_ids.integers(0, vocabulary, size).astype(np.int32)
            logprobs, versions = np.where(mask, -10.8, 0.0), np.where(mask, 0, -1).astype(np.int32)
            row = Row(token_ids=ids, loss_mask=mask, generator_logprobs=logprobs, versions=versions)
            samples.append(Sample(rows=(row,), advantage=rng.gauss(0, 1) if group % 2 else 0.0))
    return samples


@contextmanager
def clocks() -> Iterator[dict[str, float]]:
    """Host seconds by phase, summed over the calls."""
    seconds: dict[str, float] = defaultdict(float)

    def clocked(phase: str, function: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                seconds[phase] += time.perf_counter() - started

        return call

    with ExitStack() as stack:
        for phase, (owner, name) in PHASES.items():
            stack.enter_context(patch.object(owner, name, clocked(phase, getattr(owner, name))))
        yield seconds


def seconds_of(work: Callable[[], object]) -> float:
    """With all that the work has queued on the GPU."""
    started = time.perf_counter()
    work()
    torch.cuda.synchronize() if ON_GPU else None
    return time.perf_counter() - started


class Runner:
    """A trainer with micro-batches of at most `micro` tokens, and the steps that it takes."""

    def __init__(self, folder: Path, given: argparse.Namespace, micro: int) -> None:
        before, started = torch.cuda.memory_allocated(), time.perf_counter()
        torch.cuda.reset_peak_memory_stats() if ON_GPU else None
        settings = TitanSettings(
            compile=not given.eager,
            compile_full=not given.eager,
            dtype="bfloat16",
            max_tokens_per_micro_batch=micro,
            pack_length=micro,
            learning_rate=1e-5,
        )
        self.trainer = TitanTrainer(str(folder), settings)
        self.start_seconds = time.perf_counter() - started
        self._sets = [make_samples(given, self.trainer.model.hf_config["vocab_size"], seed) for seed in range(4)]
        self.losses, self.seconds = list[float](), list[float]()
        for _ in self._sets:
            self.step()
        self.peak_gib = (torch.cuda.max_memory_allocated() - before) / 2**30

    def step(self) -> float:
        samples = self._sets[len(self.losses) % len(self._sets)]
        self.losses.append(self.trainer.train_step(samples, GRPOLoss())["loss"])
        return self.losses[-1]

    def copy(self) -> None:
        """Of the weights, as for an engine."""
        published = self.trainer.model.published_weights
        layout = TensorLayout.of(published.layout(torch.bfloat16))
        flat = torch.empty(layout.size, dtype=torch.uint8, device=self.trainer.device)
        with published.stream(torch.bfloat16) as tensors:
            WeightStream(layout, self.trainer.device, tensors).copy_to(flat)

    def found(self) -> dict[str, Any]:
        with clocks() as phases:
            for _ in self._sets:
                seconds_of(self.step)
        return {
            "seconds": statistics.median(self.seconds),
            "start_seconds": self.start_seconds,
            "losses": self.losses[:3],
            "peak_gib": self.peak_gib,
            "phases_ms": {phase: round(1e3 * total / len(self._sets), 2) for phase, total in phases.items()},
            "copy_seconds": statistics.median(seconds_of(self.copy) for _ in range(3)),
        }

    def two_steps(self) -> None:
        self.step()
        self.step()

    def detail(self) -> dict[str, Any]:
        """What two steps are made of."""
        with torch.profiler.profile() as profiled:
            seconds_of(self.two_steps)
        events = list(profiled.events() or ())
        launches = sum(bool(re.match(r"cu(da)?\w*Launch", event.name)) for event in events)
        spans = sorted((e.time_range.start, e.time_range.end) for e in events if e.device_type.name == "CUDA")
        busy, end = 0.0, float("-inf")
        for first, last in spans:
            busy, end = busy + max(0.0, last - max(first, end)), max(end, last)
        profiler = cProfile.Profile()
        with torch.autograd.set_multithreading_enabled(False):  # else it cannot see the backward pass
            profiler.runcall(lambda: seconds_of(self.two_steps))
        pstats.Stats(profiler).strip_dirs().sort_stats("cumulative").print_stats(60).sort_stats("time").print_stats(24)
        return {"launches": launches / 2, "gpu_busy_share": busy / 2e6 / statistics.median(self.seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="135M")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--micro", type=int, nargs="+", default=[65536])
    parser.add_argument("--timed", type=int, default=12)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--detail", type=int, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")  # as a run's trainer has them
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "model"
        make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), folder)
        runners = {micro: Runner(folder, given, micro) for micro in given.micro}
        for _ in range(given.timed):
            for runner in runners.values():
                runner.seconds.append(seconds_of(runner.step))
        results: dict[str, Any] = {"machine": describe()}
        for micro, runner in runners.items():
            results[str(micro)] = runner.found() | (runner.detail() if micro in given.detail else {})
        print(json.dumps(results, indent=2))
        if given.json:
            given.json.write_text(json.dumps(results, indent=2) + "\n")
        for runner in reversed(runners.values()):  # the first one has the process group
            runner.trainer.close()


if __name__ == "__main__":
    main()
