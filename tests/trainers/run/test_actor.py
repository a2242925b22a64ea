"""The trainer's actor on two ranks, spawned by the launcher: the steps of one process."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from torch import Tensor

pytest.importorskip("torchtitan")
pytest.importorskip("monarch")

from forge_env.core.episode import Row
from forge_env.core.errors import ServiceError
from forge_env.runtime.launcher import Launcher, within
from forge_env.runtime.weights import SharedMemoryStore, WeightStore
from tests.trainers.objective.four_arguments import MyLoss
from tests.trainers.titan.weights import weights_of
from trainers.batching.batch import Sample
from trainers.losses import GRPOLoss
from trainers.run.trainer_actor import spawn_trainer
from trainers.titan.settings import RateSettings
from trainers.titan.trainer import TitanSettings, TitanTrainer

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEADLINE_S = 200.0  # for anything that must happen at all, on a busy machine
# Adam divides by the gradient's size: without a large eps it would blow rounding up where gradients are near 0.
SETTINGS = {"learning_rate": 3e-3, "weight_decay": 0.01, "warmup_steps": 2, "threads": 1, "eps": 1e-3}
VOCABULARY = 64  # tokens that the tests use, of the model's more


@dataclass(frozen=True)
class Team:
    """Two ranks, which share the data, and a store."""

    launcher: Launcher
    trainer: Any
    store: WeightStore
    logs: Path
    start: str
    """A checkpoint of the untrained model."""

    async def ask(self, call: Any) -> Any:
        return await self.launcher.guard(within(DEADLINE_S, call, "the trainer"))

    async def fetch(self, version: int) -> dict[str, Tensor]:
        async with self.store.fetch(version) as state_dict:
            return {name: value.clone() for name, value in state_dict.items()}

    async def restart(self) -> None:
        """The untrained model, and a fresh optimizer."""
        await self.ask(self.trainer.load.call_one(self.start))
        # AdamW that was saved before its first step counts one step already; a new phase counts from 0.
        await self.ask(
            self.trainer.begin.call_one(RateSettings(learning_rate=SETTINGS["learning_rate"], warmup_steps=2))
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def team(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Team]:
    folder = tmp_path_factory.mktemp("team")
    store = SharedMemoryStore()
    await store.open()
    async with Launcher(folder / "logs") as launcher:
        settings = TitanSettings(**SETTINGS | {"max_tokens_per_micro_batch": 64})
        trainer = spawn_trainer(launcher, str(tiny_model), settings, procs=2, store=store)
        await launcher.start("trainer", seconds=DEADLINE_S)
        team = Team(launcher, trainer, store, folder / "logs", str(folder / "start"))
        await team.ask(trainer.save.call_one(team.start, 0, {"n": 7}))
        yield team
    await store.close()


@pytest.fixture
def alone(tiny_model: Path) -> Iterator[TitanTrainer]:
    """The same trainer in this process, in one micro-batch a step."""
    trainer = TitanTrainer(tiny_model, TitanSettings(**SETTINGS))
    yield trainer
    trainer.close()


def make_batch(seed: int) -> list[Sample]:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(8):
        before, length = rng.randint(3, 9), rng.randint(1, 12)
        end = before + length
        sampled, reference = (-4.0 + 0.1 * torch.randn(2, length, generator=generator)).tolist()
        row = Row(
            token_ids=tuple(torch.randint(0, VOCABULARY, (end,), generator=generator).tolist()),
            loss_mask=(False,) * before + (True,) * length,
            generator_logprobs=(*(0.0,) * before, *sampled),
            versions=(-1,) * end,
        )
        advantage = torch.randn((), generator=generator).item()
        samples.append(Sample(rows=(row,), advantage=advantage, reference_logprobs=tuple(reference)))
    return samples


@pytest.mark.parametrize(("loss", "steps"), [(GRPOLoss(), 4), (MyLoss(), 2)], ids=["grpo", "four arguments"])
async def test_steps_equal_those_of_one_process(team: Team, alone: TitanTrainer, loss: Any, steps: int) -> None:
    await team.restart()
    for seed in range(steps):
        samples = make_batch(seed)
        ours = await team.ask(team.trainer.step.call_one(samples, loss))
        expected = alone.train_step(samples, loss)
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1e-5), seed
        assert ours | {"seconds": 0} == pytest.approx(expected | {"seconds": 0}, rel=1e-4, abs=1e-5), seed
    logprobs = await team.ask(team.trainer.logprobs.call_one(samples, 1.0))
    for values, wanted in zip(logprobs, alone.logprobs(samples), strict=True):
        assert values == pytest.approx(wanted, abs=1e-4)


async def test_two_ranks_score_a_row_as_one_does_and_train_on_after_it(team: Team, alone: TitanTrainer) -> None:
    row = tuple(range(3, 19))
    await team.restart()
    scores = []
    for seed in (1, 2):
        samples = make_batch(seed)
        metrics = await team.ask(team.trainer.step.call_one(samples, GRPOLoss()))
        assert metrics["loss"] == pytest.approx(alone.train_step(samples, GRPOLoss())["loss"], abs=1e-6)
        scores.append(await team.ask(team.trainer.score.call_one(row)))
        assert scores[-1] == pytest.approx(alone.score(row), abs=1e-5) and len(scores[-1]) == len(row) - 1
    assert abs(scores[1] - scores[0]).max() > 1e-3, "the weights have changed"


async def test_what_two_ranks_publish_save_and_export_is_whole(team: Team, alone: TitanTrainer, tmp_path: Path) -> None:
    await team.restart()
    assert await team.ask(team.trainer.take.call_one(300)) > 0.0
    await team.ask(team.trainer.step.call_one(make_batch(3), GRPOLoss()))  # changes nothing of what was taken
    assert await team.ask(team.trainer.commit.call_one()) > 0.0
    published = await team.fetch(300)
    assert all(torch.equal(published[name], value) for name, value in weights_of(alone).items())
    assert alone.load(team.start) == await team.ask(team.trainer.load.call_one(team.start)) == {"n": 7}
    await team.ask(
        team.trainer.export_hf.call_one(str(tmp_path / "export"), texts={"chat_template.jinja": "as trained"})
    )
    assert (tmp_path / "export" / "chat_template.jinja").read_text() == "as trained"
    reader = TitanTrainer(tmp_path / "export", TitanSettings(**SETTINGS))
    assert all(torch.equal(published[name], value) for name, value in weights_of(reader).items())
    reader.close()


async def test_a_phase_begins_on_all_ranks(team: Team) -> None:
    await team.ask(team.trainer.begin.call_one(RateSettings(learning_rate=4e-4)))
    metrics = await team.ask(team.trainer.step.call_one(make_batch(6), MyLoss()))
    assert metrics["learning_rate"] == pytest.approx(4e-4)


async def test_a_killed_rank_is_named(team: Team) -> None:
    """The last test of the file, for it ends the trainer."""
    log = team.logs / "trainer-1.log"
    (pid,) = (
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and _is(process / "fd" / "1", log)
    )
    os.kill(pid, signal.SIGSTOP)  # so that the other rank is inside of the step, waiting for this one
    step = asyncio.ensure_future(team.ask(team.trainer.step.call_one(make_batch(6), MyLoss())))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    died = "the trainer process of rank 1 died of SIGKILL \\(signal 9\\)"
    with pytest.raises(ServiceError, match=f"^{died}; the end of its log is in {log}$"):
        await step


def _is(link: Path, target: Path) -> bool:
    try:
        return link.readlink() == target
    except OSError:
        return False
