"""A trained adapter in an engine that has the frozen model: vLLM reads the folder, and agrees with the trainer."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.generator.engine import VLLMEngine
from agents.generator.requests import completion_of, vllm_sampling
from agents.generator.start import EngineSettings, load_engine
from forge_env.core.episode import Row
from forge_env.core.types import Completion, Sampling
from trainers.batching.batch import Sample
from trainers.lora import Lora
from trainers.losses import SFTLoss
from trainers.titan.trainer import TitanSettings, TitanTrainer

LORA = Lora(rank=8, alpha=16.0)


def sample(engine: Any, folder: Path, count: int, tokens: int) -> list[Completion]:
    """Completions of random prompts, sampled with the adapter of a folder."""
    from vllm.inputs import TokensPrompt
    from vllm.lora.request import LoRARequest

    rng, adapter = random.Random(0), LoRARequest("adapter", 1, str(folder))
    for number in range(count):
        prompt = TokensPrompt(prompt_token_ids=[rng.randrange(300) for _ in range(rng.randint(3, 60))])
        engine.add_request(
            str(number), prompt, vllm_sampling(Sampling(max_tokens=tokens, seed=number)), lora_request=adapter
        )
    steps = (engine.step() for _ in itertools.takewhile(lambda _: engine.has_unfinished_requests(), itertools.count()))
    return [completion_of(output) for outputs in steps for output in outputs if output.finished]


def train(trainer: TitanTrainer) -> None:
    """One step on random rows."""
    rng = random.Random(1)
    rows = [
        Row(
            token_ids=tuple(rng.randrange(300) for _ in range(20)),
            loss_mask=(False, *[True] * 19),
            generator_logprobs=(0.0,) * 20,
            versions=(-1, *[0] * 19),
        )
        for _ in range(4)
    ]
    trainer.train_step([Sample(rows=(row,)) for row in rows], SFTLoss())


def mean_difference(completions: list[Completion], logprobs: list[Any]) -> float:
    pairs = [
        abs(a - b)
        for completion, values in zip(completions, logprobs, strict=True)
        for a, b in zip(completion.logprobs, values, strict=True)
    ]
    return sum(pairs) / len(pairs)


def test_an_engine_with_the_adapter_agrees_with_the_trainer(tiny_model: Path, tmp_path: Path) -> None:
    arguments = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}
    engine = load_engine(str(tiny_model), EngineSettings(max_model_len=256, max_requests=16, engine_args=arguments))
    engine.set_weight_version("0")
    # After the engine, whose process group it then shares.
    trainer = TitanTrainer(tiny_model, TitanSettings(learning_rate=1e-2, dtype="float32", lora=LORA))
    for _ in range(8):
        train(trainer)
    trainer.export_adapter(tmp_path / "adapter")
    completions = sample(engine, tmp_path / "adapter", count=16, tokens=24)
    assert len(completions) == 16
    samples = [Sample(rows=(row_of(completion),)) for completion in completions]
    assert mean_difference(completions, trainer.logprobs(samples)) <= 1e-5
    assert mean_difference(completions, trainer.reference_logprobs(samples)) > 0.05, "the adapter matters"
    trainer.close()


@pytest.mark.asyncio
async def test_an_adapter_is_replaced_between_two_steps(tiny_model: Path) -> None:
    """Each version in the slot agrees with the trainer, and so does the frozen model before the first.

    A request that is under way goes on, and its tokens have the versions that sampled them.
    """
    lora = dataclasses.replace(LORA, publish="adapter", rank=6, targets=("q_proj", "v_proj", "down_proj"))
    engine = VLLMEngine(str(tiny_model), EngineSettings(max_model_len=256, max_requests=16, lora_rank=6))
    await engine.start()
    # After the engine, whose process group it then shares.
    trainer = TitanTrainer(tiny_model, TitanSettings(learning_rate=1e-2, dtype="float32", lora=lora))
    try:
        before: list[Completion] = []
        for version in range(3):
            if version:
                for _ in range(4):
                    train(trainer)
                with trainer.model.published.stream(torch.float32) as tensors:
                    await engine.update_weights(version, {name: tensor.clone() for name, tensor in tensors})
            prompts = [[version + 1, number, *range(40, 60)] for number in range(8)]
            calls = [
                engine.generate(prompt, Sampling(max_tokens=24, seed=number), f"{version}/{number}")
                for number, prompt in enumerate(prompts)
            ]
            completions = list(await asyncio.gather(*calls))
            assert {span for completion in completions for span in completion.versions} == {(version, 24)}
            samples = [Sample(rows=(row_of(completion),)) for completion in completions]
            assert mean_difference(completions, trainer.logprobs(samples)) <= 1e-5
            if before:
                old = [Sample(rows=(row_of(completion),)) for completion in before]
                assert mean_difference(before, trainer.logprobs(old)) > 0.01, "the versions differ"
            before = completions
        under_way = asyncio.create_task(engine.generate([9, 9, 9], Sampling(max_tokens=200, seed=1), "under way"))
        await asyncio.sleep(0)  # it is the first in the engine's queue
        await engine.generate([9, 9], Sampling(max_tokens=4, seed=1), "beside")  # by then it runs
        with trainer.model.published.stream(torch.float32) as tensors:
            await engine.update_weights(3, {name: tensor.clone() for name, tensor in tensors})
        spans = (await under_way).versions
        assert [version for version, _ in spans] == [2, 3] and sum(count for _, count in spans) == 200
    finally:
        await engine.close()
        trainer.close()


def row_of(completion: Completion) -> Row:
    prompt, sampled = len(completion.prompt_ids), len(completion.token_ids)
    return Row(
        token_ids=(*completion.prompt_ids, *completion.token_ids),
        loss_mask=(False,) * prompt + (True,) * sampled,
        generator_logprobs=(0.0,) * prompt + completion.logprobs,
        versions=(-1,) * prompt + (0,) * sampled,
    )
