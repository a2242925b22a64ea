"""The bytes that a trainer on the CPU holds in a step, from torch's allocator.

One rank of four is a process of its own: its collectives return at once, and all other work and memory is the rank's.
"""

from __future__ import annotations

import dataclasses
import gc
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.test_trainer import SETTINGS, make_model, make_samples
from trainers.losses import GRPOLoss
from trainers.titan.trainer import TitanTrainer

TOKENS = 4  # so few that weights and gradients are nearly all
MODELS: dict[str, tuple[bool, dict[str, int]]] = {  # whether the output layer is the embedding, and the sizes
    "large blocks": (False, {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 32}),
    "a large output layer, tied": (True, {"num_hidden_layers": 3, "vocab_size": 6000}),
}
OF_FOUR: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "hsdp": {"data_parallel_replicate_degree": 2},
    "replicas": {"data_parallel_replicate_degree": 4},
    "never": {"reshard_after_forward": "never"},
    "fp32 head": {"fp32_head": True},
    "tp": {"tensor_parallel_degree": 2},
    "tp, hsdp": {"tensor_parallel_degree": 2, "data_parallel_replicate_degree": 2},
}


def make_models(root: Path) -> dict[str, Path]:
    """The folder of each model."""
    return {name: make_folder(root / name, "qwen3", tied=tied, **sizes) for name, (tied, sizes) in MODELS.items()}


def most_of_a_step(folder: Path, **changes: Any) -> int:
    """Bytes that a step of two micro-batches takes beside weights and moments at its worst moment: gradients too."""
    trainer = TitanTrainer(folder, dataclasses.replace(SETTINGS, dtype="bfloat16", **changes))

    def two_passes() -> None:
        tokens = torch.arange(TOKENS)[None]
        for is_last in (False, True):
            trainer.model.complete_gradients(is_last)
            logprobs, _ = trainer.model.logprobs(tokens, None, torch.arange(TOKENS - 1), tokens[0, 1:], 1.0)
            logprobs.sum().backward()

    two_passes()  # what is made once, by the first pass, is there already
    trainer.model.module.zero_grad()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        two_passes()
    trainer.close()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


class RaisesOnce(GRPOLoss):
    """In the second micro-batch of the first step."""

    calls = 0

    def forward(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise ArithmeticError
        return super().forward(*arguments, **named)


def norms_after_a_mistake(folder: Path) -> list[float]:
    """The gradient norm of a step after one whose loss raised while sums waited for the replicas; and without that."""
    # So many tokens that no episode is split.
    settings = dataclasses.replace(SETTINGS, data_parallel_replicate_degree=4, max_tokens_per_micro_batch=80)
    loss, norms = RaisesOnce(), []
    for is_first in (True, False):
        trainer = TitanTrainer(folder, settings)
        if is_first:
            with suppress(ArithmeticError):
                trainer.train_step(make_samples(16), loss)
                raise AssertionError("the loss did not raise")
        norms.append(trainer.train_step(make_samples(16), loss)["grad_norm"])
        trainer.close()
    return norms


def sums_of_a_step(trainer: TitanTrainer) -> tuple[int, int]:
    """How many passes there are in one optimizer step, and how many sums over ranks but for those over shards."""
    passes: list[int] = []
    trainer.model.module.register_forward_pre_hook(lambda module, arguments: passes.append(1))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        trainer.train_step(make_samples(16), GRPOLoss())
    sums = [event for event in found.profiler.kineto_results.events() if event.name() == "c10d::allreduce_"]
    return len(passes), len(sums)


def be_one_of_four(root: Path) -> None:
    """Write bytes.json (most_of_a_step), norms.json (norms_after_a_mistake) and sums.json (sums_of_a_step)."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    found = {
        f"{name}, {case}": most_of_a_step(folder, **changes)
        for name, folder in make_models(root).items()
        for case, changes in OF_FOUR.items()
    }
    (root / "bytes.json").write_text(json.dumps(found))
    small = make_model(root / "small", tied=False)
    (root / "norms.json").write_text(json.dumps(norms_after_a_mistake(small)))
    replicas = [
        dataclasses.replace(SETTINGS, data_parallel_replicate_degree=2, max_tokens_per_micro_batch=size)
        for size in (16384, 80)
    ]
    (root / "sums.json").write_text(json.dumps([sums_of_a_step(TitanTrainer(small, each)) for each in replicas]))
    torch.distributed.destroy_process_group()
