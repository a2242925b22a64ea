"""The plan's formulas of memory against the bytes of a real trainer: what is held must be exact."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan")
from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.test_trainer import SETTINGS, make_samples
from trainers.losses import GRPOLoss
from trainers.model.shape import read_shape
from trainers.setup.memory import activation_bytes, state_bytes
from trainers.titan.trainer import TitanTrainer

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "head_dim": 32}


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(("family", "tied"), [("qwen3", False), ("qwen3", True), ("llama-3", False), ("qwen2.5", True)])
def test_weights_gradients_moments_and_what_is_published(tmp_path: Path, family: str, tied: bool) -> None:
    sizes = SIZES if family == "qwen3" else {name: size for name, size in SIZES.items() if name != "head_dim"}
    folder = make_folder(tmp_path / family, family, tied=tied, **sizes)
    shape, trainer = read_shape(folder / "config.json"), TitanTrainer(folder, SETTINGS)
    trainer.train_step(make_samples(), GRPOLoss())
    weights = list(trainer.model.module.parameters())
    states = [state for optimizer in trainer._optimizer for state in optimizer.state.values()]
    moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
    assert len(moments) == 2 * len(weights)
    assert bytes_of(*weights, *weights, *moments) == state_bytes(shape), "a gradient is as large as its weight"
    for dtype in (torch.float32, torch.bfloat16):
        published = trainer.model.weights.layout(dtype).values()
        assert (
            sum(math.prod(tensor.shape) * dtype.itemsize for tensor in published) == dtype.itemsize * shape.parameters
        )
        largest = max(math.prod(parameter.shape) for parameter in weights)
        assert shape.largest_matrix == largest
    trainer.close()


@pytest.mark.parametrize(("mode", "most"), [("none", 1.3), ("full", 1.05)])
def test_what_is_kept_for_the_backward_pass(tmp_path: Path, mode: str, most: float) -> None:
    """A CPU keeps some of it twice, by other kernels than those that the formula counts; never less."""
    sizes = SIZES | {"max_position_embeddings": 1024, "num_hidden_layers": 6}
    folder = make_folder(tmp_path / "model", "qwen3", tied=False, **sizes)
    trainer = TitanTrainer(folder, dataclasses.replace(SETTINGS, activation_checkpoint=mode))
    module, kept = trainer.model.module, {}
    held = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            kept[storage.data_ptr()] = tensor  # alive, so that no other one gets its place
        return tensor

    tokens = torch.arange(1024).remainder(90)[None]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.model.logprobs(tokens, None, torch.arange(1023), tokens[0, 1:], 1.0)
    shape = read_shape(folder / "config.json")
    expected = activation_bytes(shape, 1024, compute=4, checkpointing=mode)
    if mode == "full":  # the block that is computed again is not there yet
        expected -= activation_bytes(shape, 1024, compute=4, checkpointing="none") / shape.num_hidden_layers
    expected += 3 * 4 * 1024 * shape.hidden_size  # the last norm, in and out, and what the output layer reads
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert expected <= found <= most * expected
    trainer.close()
