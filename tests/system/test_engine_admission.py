"""Admission in front of the real engine, whose cache holds a third of the conversations: prefixes are found again,
nothing is preempted, and a group's prompt is computed once per version of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from agents.generator.admission import Admission
from agents.generator.engine import VLLMEngine
from agents.generator.start import EngineSettings
from agents.generator.stats import EngineStats
from forge_env.core.types import Sampling

pytestmark = pytest.mark.asyncio(loop_scope="module")
BLOCK, BLOCKS = 128, 17
CONVERSATIONS, TURNS, PROMPT, SAMPLED = 12, 3, 300, 40
SETTINGS = EngineSettings(
    max_model_len=512,
    max_requests=16,
    engine_args={"block_size": BLOCK, "num_gpu_blocks_override": BLOCKS},
    admission=True,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_model: Path) -> AsyncIterator[VLLMEngine]:
    engine = VLLMEngine(str(tiny_model), SETTINGS)
    await engine.start()
    yield engine
    await engine.close()


def admission(engine: VLLMEngine) -> Admission:
    assert engine._thread.admission is not None
    return engine._thread.admission


async def test_a_group_computes_its_prompt_once_per_version(engine: VLLMEngine, tiny_model: Path) -> None:
    assert admission(engine).capacity == (BLOCKS - 1) * BLOCK
    weights: dict[str, torch.Tensor] = load_file(tiny_model / "model.safetensors")
    for version in (1, 2):
        await engine.update_weights(version, weights)
        before = engine.stats
        await asyncio.gather(*(ask(engine, f"{version}/{i}", [7] * PROMPT, 0) for i in range(8)))
        assert engine.stats.prefix_asked - before.prefix_asked == 8 * PROMPT
        assert engine.stats.prefix_found - before.prefix_found == 7 * (PROMPT // BLOCK * BLOCK), "all but the first"
        for i in range(8):
            engine.end_conversation(f"{version}/{i}")
    assert admission(engine).used == 0


async def test_conversations_beyond_the_cache_find_their_prefixes(engine: VLLMEngine) -> None:
    found, preemptions = await play_all(engine, "with")
    longest = PROMPT + SAMPLED  # of the prompt of the second turn
    assert preemptions == 0
    assert found >= 0.8 * CONVERSATIONS * (TURNS - 1) * (longest // BLOCK * BLOCK)
    assert admission(engine).used == admission(engine).waiting == 0
    mine, engine._thread.admission = admission(engine), None
    try:
        found_without, _ = await play_all(engine, "without")
    finally:
        engine._thread.admission = mine
    assert found_without < found / 2


async def test_cancelled_turns_leave_no_place(engine: VLLMEngine) -> None:
    turns = [asyncio.ensure_future(ask(engine, f"cancelled/{i}", [i] * PROMPT, i)) for i in range(CONVERSATIONS)]
    await asyncio.sleep(0)  # every turn has arrived
    assert admission(engine).running and admission(engine).waiting
    for turn in turns[::-1]:
        turn.cancel()
    await asyncio.gather(*turns, return_exceptions=True)
    assert admission(engine).used == admission(engine).waiting == admission(engine).running == 0


async def test_new_weights_drop_the_prefixes_of_conversations(engine: VLLMEngine, tiny_model: Path) -> None:
    await ask(engine, "a", [9] * PROMPT, 0)
    assert admission(engine).used > 0
    await engine.update_weights(3, load_file(tiny_model / "model.safetensors"))
    assert admission(engine).used == 0
    engine.end_conversation("a")


async def play_all(engine: VLLMEngine, name: str) -> tuple[int, int]:
    """Play all conversations at once; returns prompt tokens that were found in the cache, and preemptions."""
    before = engine.stats

    async def play(i: int) -> None:
        prompt = [100 + i] * PROMPT
        for turn in range(TURNS):
            prompt += await ask(engine, f"{name}/{i}", prompt, turn)
        engine.end_conversation(f"{name}/{i}")

    await asyncio.gather(*(play(i) for i in range(CONVERSATIONS)))
    after: EngineStats = engine.stats
    return after.prefix_found - before.prefix_found, after.preemptions - before.preemptions


async def ask(engine: VLLMEngine, conversation: str, prompt: list[int], turn: int) -> list[int]:
    sampling = Sampling(max_tokens=SAMPLED, seed=turn)
    completion = await engine.generate(prompt, sampling, f"{conversation}/{turn}", conversation)
    return list(completion.token_ids)
