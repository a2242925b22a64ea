"""What a trainer on a GPU needs to publish and to export its weights: one tensor, and the snapshot where it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file

from forge_env.runtime.weights import CudaIpcStore, SharedMemoryStore, TensorLayout, WeightStore, WeightStream
from tests.gpu.test_weights_gpu import WeightsProcess, fingerprints, opened
from trainers.titan.trainer import TitanSettings, TitanTrainer
from trainers.titan.weight_files import WeightFiles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU"),
]
DTYPE = torch.bfloat16


@pytest.fixture(scope="module")
def trainer(qwen3: Path) -> Iterator[TitanTrainer]:
    """Of the shape of Qwen3-0.6B, with fused projections and float32 weights."""
    made = TitanTrainer(qwen3, TitanSettings())
    yield made
    made.close()


@pytest.fixture
def largest(trainer: TitanTrainer) -> int:
    """Bytes of the largest tensor."""
    return max(tensor.nbytes for tensor in trainer.model.weights.layout(DTYPE).values())


def grown(before: int) -> int:
    """Bytes that the allocator gave out at most beyond `before`, since the peak was set back."""
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("kind", [CudaIpcStore, SharedMemoryStore])
async def test_a_publish_needs_one_tensor_and_its_snapshot(
    trainer: TitanTrainer, largest: int, qwen3: Path, kind: type[WeightStore]
) -> None:
    weights = trainer.model.weights
    layout = TensorLayout.of(weights.layout(DTYPE))
    expected = {name: tensor.to(DTYPE) for name, tensor in load_file(qwen3 / "model.safetensors").items()}
    async with opened(kind) as store:
        for version in range(3):
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            with weights.stream(DTYPE) as tensors:
                taken = store.take(version, WeightStream(layout, trainer.device, tensors))
            await store.commit(taken)
            is_made = kind is CudaIpcStore and version == 0
            assert grown(before) <= 3 * largest + (layout.size if is_made else 0)
        reader = WeightsProcess(store, gpu=0)
        try:
            assert (await reader.ask("fetch 2"))["fingerprints"] == fingerprints(expected)
        finally:
            reader.close()


def test_an_export_and_a_load_need_one_tensor(trainer: TitanTrainer, largest: int, tmp_path: Path) -> None:
    def load() -> None:
        trainer.model.weights.load(WeightFiles.of_folder(trainer.model.folder))

    for work in (lambda: trainer.export_hf(tmp_path / "out"), load):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        assert grown(before) <= 3 * largest
    ours, expected = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", trainer.model.folder))
    assert all(torch.equal(ours[name], value) for name, value in expected.items())
