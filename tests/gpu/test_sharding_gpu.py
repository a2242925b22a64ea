"""The trainer on one GPU: weights on the host, moments in fewer bits, an output layer in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan")
from safetensors.torch import load_file

from tests.trainers.titan.test_trainer import SETTINGS, make_model, make_samples
from trainers.losses import GRPOLoss
from trainers.titan.trainer import TitanTrainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no GPU")]
Make = Callable[..., TitanTrainer]


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), tied=request.param)


@pytest.fixture
def make(model: Path) -> Iterator[Make]:
    made: list[TitanTrainer] = []

    def make(**changes: Any) -> TitanTrainer:
        made.append(TitanTrainer(model, dataclasses.replace(SETTINGS, dtype="bfloat16", **changes)))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def steps(trainer: TitanTrainer, seeds: range) -> list[dict[str, float]]:
    return [trainer.train_step(make_samples(seed=seed), GRPOLoss()) for seed in seeds]


def parameters(trainer: TitanTrainer) -> dict[str, torch.Tensor]:
    state = trainer.model.module.state_dict()
    return {name: (value.to_local() if hasattr(value, "to_local") else value).clone() for name, value in state.items()}


def assert_near(ours: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=0.02)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.05)


def test_offloaded_weights_take_the_steps_of_those_on_the_gpu(make: Make, tmp_path: Path) -> None:
    plain, trainer = make(), make(cpu_offload=True)
    on_gpu = torch.cuda.memory_allocated()
    assert_near(steps(trainer, range(3)), steps(plain, range(3)))
    for name, value in parameters(trainer).items():
        assert value.device.type == "cpu", name
    moments = [state["exp_avg"] for optimizer in trainer._optimizer for state in optimizer.state.values()]
    assert {moment.to_local().device.type for moment in moments} == {"cpu"}
    for one, other in zip(trainer.logprobs(make_samples()), plain.logprobs(make_samples()), strict=True):
        assert one == pytest.approx(other, abs=0.05)
    print(f"allocated before and after: {on_gpu}, {torch.cuda.memory_allocated()}")

    saved = parameters(trainer)
    trainer.save(tmp_path / "checkpoint", 3, {"n": 3}, asynchronous=True)
    later = steps(trainer, range(3, 5))  # while the checkpoint is written
    trainer.export_hf(tmp_path / "export")
    exported = load_file(tmp_path / "export" / "model.safetensors")
    assert all(value.isfinite().all() for value in exported.values())
    trainer.close()  # waits for the checkpoint
    resumed = make(cpu_offload=True)
    assert resumed.load(tmp_path / "checkpoint") == {"n": 3}
    assert all(torch.equal(value, saved[name]) for name, value in parameters(resumed).items())
    assert_near(steps(resumed, range(3, 5)), later)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer_state": "bfloat16"},
        {"optimizer_state": "8bit"},
        {"optimizer_state": "8bit", "cpu_offload": True},
    ],
    ids=["bfloat16", "8bit", "8bit offloaded"],
)
def test_smaller_moments_take_nearly_the_same_steps_and_resume(
    make: Make, changes: dict[str, Any], tmp_path: Path
) -> None:
    if changes["optimizer_state"] == "8bit" and find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    trainer = make(**changes)
    assert_near(steps(trainer, range(4)), steps(make(), range(4)))
    trainer.save(tmp_path / "checkpoint", 4, {})
    resumed = make(**changes)
    resumed.load(tmp_path / "checkpoint")
    assert all(torch.equal(value, parameters(trainer)[name]) for name, value in parameters(resumed).items())
    for ours, expected in zip(moments(resumed), moments(trainer), strict=True):
        assert type(ours) is type(expected) and ours.dtype == expected.dtype
        wide = [moment.dequantize() if hasattr(moment, "dequantize") else moment for moment in (ours, expected)]
        assert torch.equal(*wide)
    if changes["optimizer_state"] == "bfloat16":
        assert {moment.dtype for moment in moments(resumed)} == {torch.bfloat16}
    assert_near(steps(resumed, range(4, 6)), steps(trainer, range(4, 6)))


def moments(trainer: TitanTrainer) -> list[torch.Tensor]:
    results = [
        state[name] for optimizer in trainer._optimizer for state in optimizer.state.values() for name in MOMENTS
    ]
    return [moment.to_local() if hasattr(moment, "to_local") else moment for moment in results]


MOMENTS = ("exp_avg", "exp_avg_sq")


@pytest.mark.parametrize("cpu_offload", [False, True])
def test_an_fp32_head_is_nearer_to_the_float32_model(make: Make, model: Path, cpu_offload: bool) -> None:
    samples = make_samples()
    exact = TitanTrainer(model, dataclasses.replace(SETTINGS, dtype="float32"))
    wanted = exact.logprobs(samples)
    exact.close()
    plain, wide = make(), make(fp32_head=True, cpu_offload=cpu_offload)

    def error(trainer: TitanTrainer) -> float:
        pairs = [
            pair for both in zip(trainer.logprobs(samples), wanted, strict=True) for pair in zip(*both, strict=True)
        ]
        return sum(abs(ours - theirs) for ours, theirs in pairs) / len(pairs)

    assert error(wide) < 1.1 * error(plain)  # of so small a model, most of the rounding is in the blocks
    assert (
        wide.model.logits(torch.arange(8, device="cuda")[None], None, torch.arange(8, device="cuda")).dtype
        == torch.float32
    )
    assert_near(steps(wide, range(2)), steps(plain, range(2)))
