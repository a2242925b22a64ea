"""One rank of several that load models, stream their weights and export them, for test_hf_weights.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from tests.trainers.titan.weights import fused_projections, weights_of
from trainers.titan.export import export_hf
from trainers.titan.parallel import init_process_group
from trainers.titan.trainer import TitanSettings, TitanTrainer


def be_a_rank(root: Path, cases: dict[str, dict[str, Any]]) -> None:
    """Load each model of `cases`, {model: settings}, from its folder below `root`, and write a checkpoint into that.

    Into RANK.json it writes, by case, whether the weights that it was given were those of the file, and the bytes of
    its part of a checkpoint's weights; and, where there is a model "large", the bytes by which its memory grew at most
    while that was loaded and exported.
    """
    init_process_group()
    said: dict[str, Any] = {"same": {}, "state": {}}
    for name, case in cases.items():
        trainer = make_trainer(root / name, **case)
        said["same"][name] = has_the_weights(trainer)
        said["state"][name] = sum(local(value).nbytes for value in trainer.model.module.state_dict().values())
        trainer.save(root / name / "checkpoint", 1, {})
    if (root / "large").is_dir():
        with growth(said, "load"):
            trainer = TitanTrainer(root / "large", TitanSettings(dtype="float32", data_parallel_shard_degree=2))
        with growth(said, "export"):
            export_hf(trainer.model, root / "out")
    (root / f"{os.environ['RANK']}.json").write_text(json.dumps(said))
    torch.distributed.destroy_process_group()


def make_trainer(folder: Path, *, fused: bool = False, **changes: Any) -> TitanTrainer:
    with fused_projections(fused):
        return TitanTrainer(folder, TitanSettings(**{"dtype": "float32", **changes}))


def local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def has_the_weights(trainer: TitanTrainer) -> bool:
    """Whether a rank is given all weights of the file, bit by bit; and no rank hangs where the first one fails."""
    with suppress(ZeroDivisionError), trainer.model.weights.stream(torch.float32) as tensors:
        if torch.distributed.get_rank() == 0:
            next(tensors)
            raise ZeroDivisionError
    expected = load_file(trainer.model.folder / "model.safetensors")
    streamed = [(weights_of(trainer, dtype), dtype) for dtype in (torch.float32, torch.bfloat16)]
    return all(
        given.keys() == expected.keys() and all(torch.equal(given[name], expected[name].to(dtype)) for name in given)
        for given, dtype in streamed
    )


@contextmanager
def growth(said: dict[str, Any], name: str) -> Iterator[None]:
    """Note by how many bytes the memory of this process grows at most: the kernel keeps the peak."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    yield
    said[name] = memory("VmHWM") - before


def memory(what: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024
