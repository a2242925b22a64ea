"""An engine of a model with experts takes new weights between two steps, and agrees with the trainer each time."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from agents.generator.engine import VLLMEngine
from agents.generator.settings import EngineSettings
from agents.token_agent import TokenAgent
from envs.math import Math
from forge_env.core.env import Env
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.turn import Completion
from forge_env.core.types import EpisodeLimits, Message, Sampling, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.lockstep import Request
from forge_env.rollout.rollout import run_episode
from tests.helpers.engine_rows import mean_difference, samples_of
from tests.system.test_engine_lora import train
from tests.trainers.titan.weights import weights_of
from trainers.model.sizes import MODEL_SIZES
from trainers.model.tiny_model import make_tiny_model
from trainers.titan.trainer import TitanSettings, TitanTrainer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
SETTINGS = EngineSettings(max_model_len=256, max_requests=16, return_routes=True)
Said = list[tuple[object, object]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts") / "model"
    chat: list[Message] = [{"role": "user", "content": "What is 12 times 30?"}, {"role": "assistant", "content": "360"}]
    make_tiny_model(folder, [(chat, Math().tools)], seed=0, size=MODEL_SIZES["tiny-moe"])
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[VLLMEngine]:
    engine = VLLMEngine(str(model), SETTINGS)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
def trainer(engine: VLLMEngine, model: Path) -> Iterator[TitanTrainer]:
    """One that has the engine's process group."""
    trainer = TitanTrainer(model, TitanSettings(learning_rate=1e-2, dtype="float32"))
    yield trainer
    trainer.close()


async def complete(engine: VLLMEngine) -> list[Completion]:
    """Completions of a batch, which have the same bits whatever the engine did before."""
    prompts = [(number, *range(40, 60)) for number in range(8)]
    batch = [Request(prompt, Sampling(max_tokens=24, seed=prompt[0]), str(prompt[0])) for prompt in prompts]
    answers = await engine.generate_batch(batch)
    completions = [answer for answer in answers if isinstance(answer, Completion)]
    assert len(completions) == len(prompts)
    return completions


def bits(completions: list[Completion]) -> Said:
    return [(completion.token_ids.tolist(), completion.logprobs.tolist()) for completion in completions]


async def test_new_weights_arrive_bit_by_bit_over_several_swaps(engine: VLLMEngine, trainer: TitanTrainer) -> None:
    """Each version agrees with the trainer, and with itself when it comes again."""
    versions: list[tuple[dict[str, Tensor], Said]] = []
    for number in range(3):
        if number:  # the engine began with the first
            for _ in range(4):
                train(trainer)
            await engine.update_weights(engine.version + 1, weights_of(trainer))
        completions = await complete(engine)
        assert mean_difference(completions, trainer.logprobs(samples_of(completions))) <= 1e-5
        versions.append((weights_of(trainer), bits(completions)))
    assert versions[0][1] != versions[1][1] != versions[2][1], "the weights must speak differently"
    for weights, said in (versions[0], versions[2], versions[1], versions[1]):
        await engine.update_weights(engine.version + 1, weights)
        assert bits(await complete(engine)) == said


def check_routes(model: Path, completion: Completion) -> int:
    """All tokens but the last have the experts that transformers chooses; returns how many tokens and layers that are.

    Choices between scores that are nearly equal are left out.
    """
    (routes,) = completion.routes
    ids = (*completion.prompt_ids, *completion.token_ids)[:-1]
    assert routes.start == 0 and routes.tokens == len(ids)
    with torch.no_grad():
        reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        logits = reference(torch.tensor([ids]), output_router_logits=True).router_logits
    checked = 0
    for layer, scores in enumerate(logits):
        best, chosen = scores.softmax(-1).sort(descending=True)
        for token in range(len(ids)):
            if best[token, routes.active - 1] - best[token, routes.active] > 1e-4:
                expected = set(chosen[token, : routes.active].tolist())
                assert set(routes.experts[token, layer].tolist()) == expected, (layer, token)
                checked += 1
    return checked


async def test_completions_have_the_experts_of_every_token(engine: VLLMEngine, model: Path) -> None:
    """Of requests of many lengths at once, and of those that find their beginning in the cache."""
    await engine.update_weights(engine.version + 1, load_file(model / "model.safetensors"))
    before = engine.stats.prefix_found
    completions = await complete(engine) + await complete(engine)
    prompts = [[7, 3, *range(5, 5 + 17 * number)] for number in range(1, 9)]
    shared = list(range(20, 120))
    for begin in ([], shared):  # the siblings' beginning is in the cache when the second round comes
        for _ in range(2):
            calls = [
                engine.generate([*begin, *prompt], Sampling(max_tokens=6 + i, seed=i), f"{len(begin)}/{i}")
                for i, prompt in enumerate(prompts)
            ]
            completions += await asyncio.gather(*calls)
    found = engine.stats.prefix_found - before
    assert found >= 8 * 96, found
    assert sum(check_routes(model, completion) for completion in completions) > 4000


class Asks(Env):
    """Asks three times."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.turns = 0
        return [{"role": "user", "content": "What is 12 times 30?"}], {}

    async def step(self, action: Any) -> Any:
        self.turns += 1
        return [{"role": "user", "content": "And what is 30 more?"}], 0.0, self.turns == 3, False, {}


async def test_the_row_of_an_episode_has_routes_of_every_input(engine: VLLMEngine, model: Path) -> None:
    """Each turn holds what the ones before it do not have; they stay when they travel, and are written where asked."""

    class Through:
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
        ) -> Completion:
            return await engine.generate(prompt_ids, sampling, request_id)

    agent = TokenAgent(str(model), Through())
    limits = EpisodeLimits(max_turns=3, max_turn_tokens=12, max_tokens=256)
    task = Task(prompt=({"role": "user", "content": "?"},))
    async with EnvFactory(Asks) as factory:
        episode = await run_episode(factory, agent, task, seed=0, episode_id="rows", limits=limits)
    (row,) = episode.rows
    assert len(episode.turns) == 3, episode.error
    covered = [position for routes in row.routes for position in range(routes.start, routes.end)]
    assert covered == list(range(len(row.token_ids) - 1))
    again = pickle.loads(pickle.dumps(episode))
    assert again.rows[0].routes == row.routes == Episode.from_json(episode.to_json()).rows[0].routes


async def test_a_part_of_the_experts_is_refused_and_changes_nothing(engine: VLLMEngine, trainer: TitanTrainer) -> None:
    version, before = engine.version, bits(await complete(engine))
    train(trainer)
    missing = "model.layers.1.mlp.experts.3.up_proj.weight"
    part = {name: value for name, value in weights_of(trainer).items() if name != missing}
    with pytest.raises(UserError, match=f"must be complete, and {missing} is missing"):
        await engine.update_weights(version + 1, part)
    assert engine.version == version and bits(await complete(engine)) == before


async def test_weights_in_bfloat16_are_cast(engine: VLLMEngine, trainer: TitanTrainer) -> None:
    weights = weights_of(trainer, torch.bfloat16)
    await engine.update_weights(engine.version + 1, weights)
    said = bits(await complete(engine))
    await engine.update_weights(engine.version + 1, {name: value.float() for name, value in weights.items()})
    assert bits(await complete(engine)) == said
