"""AdamW's moments in 8 bits beside those in float32: nearly the same steps, and a run that resumes bitwise."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")

from forge_env.core.errors import UserError
from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.test_trainer import SETTINGS, make_model, make_samples, run_cases, train_three_steps
from trainers.losses import GRPOLoss
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer

needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed")


@pytest.mark.parametrize(
    ("settings", "is_on_gpu", "match"),
    [
        ({"optimizer_state": "bfloat16"}, False, "this one is on the CPU: set it to float32 or 8bit"),
        ({"optimizer_state": "bfloat16", "cpu_offload": True}, True, "the optimizer runs on the CPU"),
    ],
)
def test_a_state_that_cannot_be_had_is_refused(settings: dict[str, Any], is_on_gpu: bool, match: str) -> None:
    with pytest.raises(UserError, match=match):
        TitanSettings(**settings).check_state(is_on_gpu=is_on_gpu)


@pytest.mark.skipif(find_spec("torchao") is not None, reason="torchao is installed")
def test_without_torchao_8_bits_are_refused() -> None:
    with pytest.raises(UserError, match="torchao is not installed: .* by pip install"):
        TitanSettings(optimizer_state="8bit").check_packages()


@needs_torchao
@pytest.mark.slow  # each shape of a weight is compiled
@pytest.mark.timeout(300)
def test_moments_of_8_bits_take_nearly_the_steps_of_float32_and_resume_bitwise(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", tied=False)
    small = dataclasses.replace(SETTINGS, optimizer_state="8bit")
    trainer, exact = TitanTrainer(folder, small), TitanTrainer(folder, SETTINGS)
    for seed in range(4):
        ours, expected = (each.train_step(make_samples(seed=seed), GRPOLoss()) for each in (trainer, exact))
        assert ours["loss"] == pytest.approx(expected["loss"], abs=0.01)
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.1)
        assert ours["learning_rate"] == pytest.approx(expected["learning_rate"])
    pairs = zip(trainer.model.module.parameters(), exact.model.module.parameters(), strict=True)
    # Four steps move a weight by 4 learning rates at most, but for the momentum of those before.
    assert max((ours - expected).abs().max() for ours, expected in pairs) < 8 * SETTINGS.learning_rate
    moments = [state["exp_avg"] for each in trainer._optimizer for state in each.state.values()]
    large = [type(moment).__name__ for moment in moments if moment.numel() >= 4096]
    assert large.count("OptimState8bit") == len(large) - 1  # all but the embedding's

    trainer.save(tmp_path / "checkpoint", 4, {"n": 4}, asynchronous=True)
    resumed = TitanTrainer(folder, small)
    assert resumed.load(tmp_path / "checkpoint") == {"n": 4}
    for seed in range(4, 6):
        expected = trainer.train_step(make_samples(seed=seed), GRPOLoss())
        assert resumed.train_step(make_samples(seed=seed), GRPOLoss()) | {"seconds": 0} == expected | {"seconds": 0}
    parameters = zip(resumed.model.module.parameters(), trainer.model.module.parameters(), strict=True)
    assert all(torch.equal(ours, expected) for ours, expected in parameters)
    with pytest.raises(UserError, match="was saved with optimizer_state='8bit', and it is 'float32' now"):
        exact.load(tmp_path / "checkpoint")
    for each in (resumed, exact, trainer):
        each.close()


LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "cp": {"context_parallel_degree": 2},
    "hsdp": {"data_parallel_replicate_degree": 2},
    "tp": {"tensor_parallel_degree": 2},
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes with moments of 8 bits left behind, a folder for each layout; their shards are quantized."""
    root = tmp_path_factory.mktemp("8bit")
    make_folder(root / "model", "qwen3", tied=False, hidden_size=128, intermediate_size=192)
    cases = {name: ("model", {"optimizer_state": "8bit", **layout}) for name, layout in LAYOUTS.items()}
    return run_cases(root, cases, seconds=840)


@needs_torchao
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_moments_of_8_bits_on_two_ranks_take_nearly_the_steps_of_float32(two_ranks: Path, layout: str) -> None:
    """And one process goes on from their checkpoint, but from that of tensor parallelism."""
    ranks = [json.loads((two_ranks / layout / f"{rank}.json").read_text())["metrics"] for rank in (0, 1)]
    for ours, others in zip(*ranks, strict=True):
        assert ours | {"seconds": 0} == others | {"seconds": 0}
    exact = TitanTrainer(two_ranks / "model", SETTINGS)
    for ours, expected in zip(ranks[0], train_three_steps(exact)["metrics"], strict=True):
        assert ours["loss"] == pytest.approx(expected["loss"], abs=0.01)
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.1)
    alone = TitanTrainer(two_ranks / "model", dataclasses.replace(SETTINGS, optimizer_state="8bit"))
    if layout == "tp":
        with pytest.raises(UserError, match="optimizer_state='8bit' and tp=2, and tp=1 now: .* set tp to 2"):
            alone.load(two_ranks / layout / "checkpoint")
    else:
        assert alone.load(two_ranks / layout / "checkpoint") == {"n": 2}
        resumed = alone.train_step(make_samples(1, seed=2), GRPOLoss(aggregation="token"))
        assert resumed | {"seconds": 0} == pytest.approx(ranks[0][2] | {"seconds": 0}, abs=1e-5, rel=1e-4)
    alone.close()
    exact.close()
