"""The reference model against transformers: logprobs, weights that it is given, a frozen model, several processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torchtitan")
pytest.importorskip("monarch")
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from forge_env.core.errors import UserError
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.service import Service, ServiceOptions
from tests.trainers.episodes import episode, turn
from tests.trainers.titan.weights import weights_of
from trainers.batching.batch import Sample
from trainers.run.trainer import ask_frozen
from trainers.run.trainer_actor import TrainerActor
from trainers.titan.trainer import TitanSettings, TitanTrainer

EPISODES = [
    episode(turn(5, 6, 7, prompt=3), turn(9, 8, prompt=2), turn(11, 12, prompt=4, starts_row=True)),
    episode(turn(3, prompt=9)),
    episode(turn(4, 4, prompt=0), turn(2, 2, 2, prompt=1)),
    episode(turn(4, prompt=0)),  # without a target
]
SAMPLES = [Sample(rows=e.rows) for e in EPISODES]


@pytest.fixture
def reference(tiny_model: Path) -> Iterator[TitanTrainer]:
    made = TitanTrainer(tiny_model, TitanSettings(max_tokens_per_micro_batch=24), is_frozen=True)  # several batches
    yield made
    made.close()


def expected(folder: Path, temperature: float, changes: dict[str, torch.Tensor] | None = None) -> list[list[float]]:
    """The same by transformers, row by row."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(changes or {}, strict=False)
    found = []
    for sample in SAMPLES:
        values: list[float] = []
        for row in sample.rows:
            with torch.no_grad():
                logits = model(torch.tensor([row.token_ids])).logits[0]
            logprobs = (logits / temperature).log_softmax(-1)
            values += [
                logprobs[i - 1, row.token_ids[i]].item() for i in range(1, len(row.token_ids)) if row.loss_mask[i]
            ]
        found.append(values)
    return found


def listed(found: list[np.ndarray]) -> list[list[float]]:
    assert all(values.dtype == np.float32 for values in found)
    return [values.tolist() for values in found]


def assert_same(found: list[np.ndarray], wanted: list[list[float]]) -> None:
    assert [len(values) for values in found] == [7, 1, 4, 0] == [len(values) for values in wanted]
    for some, others in zip(found, wanted, strict=True):
        assert some == pytest.approx(others, abs=2e-5)


def test_reference_logprobs_equal_transformers(reference: TitanTrainer, tiny_model: Path) -> None:
    for temperature in (1.0, 0.7):
        assert_same(reference.logprobs(SAMPLES, temperature), expected(tiny_model, temperature))


def test_a_reference_loads_the_weights_that_a_trainer_wrote(
    reference: TitanTrainer, tiny_model: Path, tmp_path: Path
) -> None:
    start = listed(reference.logprobs(SAMPLES))
    changed = {name: value * 1.5 for name, value in load_file(tiny_model / "model.safetensors").items()}
    shutil.copy(tiny_model / "config.json", tmp_path)
    save_file(changed, tmp_path / "model.safetensors")
    trainer = TitanTrainer(tmp_path)
    try:
        trainer.write_weights(tmp_path / "reference.safetensors")
    finally:
        trainer.close()
    names = ["config.json", "model.safetensors", "reference.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    reference.read_weights(tmp_path / "reference.safetensors")
    assert_same(reference.logprobs(SAMPLES), expected(tiny_model, 1.0, changed))
    assert listed(reference.logprobs(SAMPLES)) != start
    reference.read_weights(tiny_model / "model.safetensors")  # a second time, after the passes of the first
    assert listed(reference.logprobs(SAMPLES)) == start
    with pytest.raises(UserError, match=r"none\.safetensors is missing"):
        reference.read_weights(tmp_path / "none.safetensors")


def test_nothing_in_it_is_trained(reference: TitanTrainer) -> None:
    before = weights_of(reference)
    reference.logprobs(SAMPLES)
    assert all(not p.requires_grad and p.grad is None for p in reference.model.module.parameters())
    assert all(torch.equal(before[name], value) for name, value in weights_of(reference).items())


def test_nothing_to_compute_and_a_temperature_of_nought(reference: TitanTrainer) -> None:
    assert reference.logprobs([]) == []
    with pytest.raises(UserError, match="temperature"):
        reference.logprobs(SAMPLES, 0.0)


def test_a_folder_without_a_model_leaves_no_process_group(tmp_path: Path) -> None:
    before = torch.distributed.is_initialized()  # an engine of an earlier test may still live
    with pytest.raises(UserError, match=r"config\.json"):
        TitanTrainer(tmp_path, is_frozen=True)
    assert torch.distributed.is_initialized() == before


def as_trainer(folder: Path, **settings: Any) -> list[list[float]]:
    """The logprobs of a trainer that has taken no step."""
    trainer = TitanTrainer(folder, TitanSettings(**settings))
    try:
        return listed(trainer.logprobs(SAMPLES, 0.7))
    finally:
        trainer.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32", "pack_length": 24, "max_tokens_per_micro_batch": 24},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "fp32_head": True},
    ],
    ids=["packed", "bfloat16", "fp32 head"],
)
def test_it_computes_as_the_trainer_does_with_weights_of_its_dtype(tiny_model: Path, settings: dict[str, Any]) -> None:
    reference = TitanTrainer(tiny_model, TitanSettings(**settings), is_frozen=True)
    try:
        found = listed(reference.logprobs(SAMPLES, 0.7))
        dtypes = {name: parameter.dtype for name, parameter in reference.model.module.named_parameters()}
        head = "tok_embeddings.weight" if reference.model.config.enable_weight_tying else "lm_head.weight"
    finally:
        reference.close()
    assert found == as_trainer(tiny_model, **settings)
    for name, dtype in dtypes.items():
        is_wide = name == head and settings.get("fp32_head")
        assert dtype == (torch.float32 if is_wide else getattr(torch, settings["dtype"])), name


@pytest.mark.asyncio
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_replicas_share_a_step(tiny_model: Path, tmp_path: Path, count: int) -> None:
    """Samples split into two shares are the logprobs of one process, in order; also with the weights over two."""
    weights = {name: value * 1.5 for name, value in load_file(tiny_model / "model.safetensors").items()}
    save_file(weights, tmp_path / "kept.safetensors")
    async with Launcher(tmp_path / "logs") as launcher:
        service = Service(
            actor_class=TrainerActor,
            arguments={"model": str(tiny_model), "settings": TitanSettings(threads=1), "is_frozen": True},
            name="reference",
            options=ServiceOptions(procs=count, num_replicas=count, environ=lambda replica: {"OMP_NUM_THREADS": "1"}),
            launcher=launcher,
        )
        await service.start()
        wanted = expected(tiny_model, 0.7)
        assert_same(await ask_frozen(service, SAMPLES, 0.7, replicas=2), wanted)
        assert_same(await ask_frozen(service, SAMPLES, 0.7, replicas=1), wanted)
        assert await ask_frozen(service, [], 0.7, replicas=2) == []
        await service.fanout(TrainerActor.read_weights, str(tmp_path / "kept.safetensors"))
        assert_same(await ask_frozen(service, SAMPLES, 0.7, replicas=2), expected(tiny_model, 0.7, weights))
