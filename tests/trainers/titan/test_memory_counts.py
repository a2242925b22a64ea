"""The plan's formulas of memory against the bytes of a real trainer: what is held must be exact.

What one of several ranks holds is measured in a process whose collectives do nothing (torch's "fake" backend), because
gloo's need memory of their own; test_combinations.py has ranks that exchange.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from tests.helpers.forks import run_ranks
from tests.trainers.setup.test_memory import plan_with
from tests.trainers.titan import measured_bytes
from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.test_trainer import SETTINGS, make_samples
from trainers.families.table import read_shape
from trainers.lora import Lora
from trainers.losses import GRPOLoss
from trainers.setup.memory import FLOAT32, activation_bytes, state_bytes, trainer_memory
from trainers.titan.trainer import TitanTrainer

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "head_dim": 32}
LONG: dict[str, Any] = SIZES | {"max_position_embeddings": 1024, "num_hidden_layers": 6}


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("qwen3", False),
        ("qwen3", True),
        ("llama-3", False),
        ("qwen2.5", True),
        ("qwen3-moe", False),
    ],
)
def test_bytes_of_weights_gradients_moments_and_published_tensors(tmp_path: Path, family: str, tied: bool) -> None:
    sizes = SIZES if family.startswith("qwen3") else {name: size for name, size in SIZES.items() if name != "head_dim"}
    check_bytes(make_folder(tmp_path / family, family, tied=tied, **sizes))


def check_bytes(folder: Path) -> None:
    """Of weights, gradients, moments and published tensors of a model."""
    shape, trainer = read_shape(folder), TitanTrainer(folder, SETTINGS)
    trainer.train_step(make_samples(), GRPOLoss())
    weights = list(trainer.model.module.parameters())
    states = [state for optimizer in trainer._optimizer for state in optimizer.state.values()]
    moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
    assert len(moments) == 2 * len(weights)
    assert bytes_of(*weights, *weights, *moments) == state_bytes(shape), "a gradient is as large as its weight"
    for dtype in (torch.float32, torch.bfloat16):
        layout = trainer.model.weights.layout(dtype).items()
        published = [tensor for name, tensor in layout if not name.endswith("correction_bias")]  # no parameter
        assert bytes_of(*published) == dtype.itemsize * shape.parameters
        largest = max(math.prod(parameter.shape) for parameter in weights)
        assert shape.largest_matrix == largest
    trainer.close()


@pytest.mark.parametrize(("family", "compute"), [("qwen3", "bfloat16"), ("llama-3", "float32")])
def test_frozen_weights_and_adapters(tmp_path: Path, family: str, compute: str) -> None:
    """What a trainer of adapters holds, and what only they have a part in."""
    sizes = SIZES if family == "qwen3" else {name: size for name, size in SIZES.items() if name != "head_dim"}
    folder, lora = make_folder(tmp_path / family, family, tied=False, **sizes), Lora(rank=4, alpha=8.0)
    shape = read_shape(folder)
    trainer = TitanTrainer(folder, dataclasses.replace(SETTINGS, lora=lora, dtype=compute))
    trainer.train_step(make_samples(), GRPOLoss())
    weights = list(trainer.model.module.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    states = [state for optimizer in trainer._optimizer for state in optimizer.state.values()]
    moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
    assert sum(weight.numel() for weight in trained) == lora.parameters(shape)
    held = bytes_of(*weights, *trained, *moments)  # a gradient is as large as its weight
    plan = plan_with(shape, "--lora.rank=4", "--lora.alpha=8", f"--training.dtype={compute}")
    assert trainer_memory(plan).always == {"state": held}
    trainer.close()


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
@pytest.mark.parametrize(("mode", "most"), [("none", 1.3), ("full", 1.05)])
def test_activations_kept_for_the_backward_pass(tmp_path: Path, family: str, mode: str, most: float) -> None:
    """A CPU keeps some of it twice, by other kernels than those that the formula counts; never less."""
    check_activations(make_folder(tmp_path / "model", family, tied=False, **LONG), mode, most)


def check_activations(folder: Path, mode: str, most: float) -> None:
    """Of a model of `LONG`'s sizes."""
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
    shape = read_shape(folder)
    expected, _ = activation_bytes(plan_with(shape, f"--training.activation_checkpoint={mode}"), 1024)
    expected += 3 * 4 * 1024 * shape.hidden_size  # the last norm, in and out, and what the output layer reads
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert expected <= found <= most * expected
    trainer.close()


# -- whole units of FSDP -----------------------------------------------------------------------------------------

OPTIONS = {
    "data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "reshard_after_forward": "training.reshard_after_forward",
    "activation_checkpoint": "training.activation_checkpoint",
    "tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "fp32_head": "training.fp32_head",
}


def estimate(folder: Path, ranks: int, **changes: Any) -> tuple[float, float]:
    """Bytes of the worst moment of a step beside weights and moments, and of the largest matrix in the head's dtype."""
    shape = read_shape(folder)
    options = [f"--{OPTIONS[name]}={str(value).lower()}" for name, value in changes.items()]
    options += ["--training.dtype=bfloat16", f"--trainer.procs={ranks}"]
    memory = trainer_memory(plan_with(shape, *options, tokens=measured_bytes.TOKENS))
    tensor = changes.get("tensor_parallel_degree", 1)
    shards = ranks // changes.get("data_parallel_replicate_degree", 1)
    largest = (4 if changes.get("fp32_head") else 2) * shape.largest_matrix / tensor
    return sum(memory.phases[0].values()) + FLOAT32 * shape.parameters / shards, largest


OF_FSDP = {"activation_checkpoint": "full"}  # for which a single process needs it


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return measured_bytes.make_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("large blocks", {}),
        ("a large output layer, tied", {}),
        ("a large output layer, tied", {"fp32_head": True}),
        ("large blocks", {**OF_FSDP, "reshard_after_forward": "never"}),
        ("a large output layer, tied", OF_FSDP),
        ("a large output layer, tied", {**OF_FSDP, "fp32_head": True}),
    ],
    ids=str,
)
def test_memory_that_one_process_holds(models: dict[str, Path], model: str, changes: dict[str, Any]) -> None:
    expected, _ = estimate(models[model], 1, **changes)
    assert measured_bytes.most_of_a_step(models[model], **changes) == pytest.approx(expected, rel=0.03)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one rank of four left behind."""
    root = tmp_path_factory.mktemp("of-four")
    run_ranks(measured_bytes.be_one_of_four, root, world=1, seconds=240)
    return root


@pytest.mark.parametrize("case", measured_bytes.OF_FOUR)
@pytest.mark.parametrize("model", measured_bytes.MODELS)
def test_memory_that_fsdp_holds_in_one_of_four_processes(
    of_four: Path, models: dict[str, Path], model: str, case: str
) -> None:
    """On a CPU the gradients of a matrix are copied once more on their way into the buffer; a GPU has a kernel."""
    changes = measured_bytes.OF_FOUR[case]
    expected, copy = estimate(models[model], 4, **changes)
    found = json.loads((of_four / "bytes.json").read_text())[f"{model}, {case}"]
    assert 0.9 * expected <= found <= 1.02 * (expected + copy)


def test_a_loss_that_raises_leaves_no_sums_for_the_replicas_behind(of_four: Path) -> None:
    after, without = json.loads((of_four / "norms.json").read_text())
    assert after == without > 0


def test_replicas_sum_their_gradients_once_in_each_step(of_four: Path) -> None:
    """The sums of a step are as many, whether it has one micro-batch or many."""
    (passes, sums), (more_passes, sums_of_more) = json.loads((of_four / "sums.json").read_text())
    assert passes == 1 < more_passes
    assert sums == sums_of_more > 0
