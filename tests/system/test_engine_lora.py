"""A trained adapter in an engine that has the frozen model: vLLM reads the folder, and agrees with the trainer."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from agents.generator.adapter_folder import CONFIG, WEIGHTS, open_adapter
from agents.generator.engine import VLLMEngine
from agents.generator.lora_slot import PUBLISHED
from agents.generator.policy import Scored
from agents.generator.requests import completion_of, vllm_sampling
from agents.generator.settings import EngineSettings
from agents.generator.start import load_engine
from forge_env.core.episode import Row, read_jsonl
from forge_env.core.errors import PolicyError, ServiceError
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from forge_env.evaluation.api import evaluate_async
from tests.helpers.engine_rows import mean_difference, samples_of
from trainers.batching.batch import Sample
from trainers.lora import Lora, adapter_config
from trainers.losses import SFTLoss
from trainers.run.delivery import Delivery
from trainers.titan.trainer import TitanSettings, TitanTrainer

pytestmark = pytest.mark.asyncio(loop_scope="module")
LORA = Lora(rank=8, alpha=16.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_model: Path) -> AsyncIterator[VLLMEngine]:
    """Its trainers come after it: they share its process group."""
    settings = EngineSettings(max_model_len=256, max_requests=16, lora_rank=LORA.rank, named_adapters=2)
    engine = VLLMEngine(str(tiny_model), settings)
    await engine.start()
    yield engine
    await engine.close()


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


def id_of_published(worker: Any) -> int:
    """Which of vLLM's objects the adapter in the slot of unnamed requests is."""
    return id(worker.model_runner.lora_manager._adapter_manager.get_adapter(PUBLISHED))


@pytest.mark.slow  # vLLM's own reader of the folder; the quick tests load it by ours
async def test_an_engine_with_the_adapter_agrees_with_the_trainer(tiny_model: Path, tmp_path: Path) -> None:
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
    samples = samples_of(completions)
    assert mean_difference(completions, trainer.logprobs(samples)) <= 1e-5
    assert mean_difference(completions, trainer.reference_logprobs(samples)) > 0.05, "the adapter matters"
    trainer.close()


async def test_named_adapters_and_the_model_do_not_disturb_each_other(
    engine: VLLMEngine, tiny_model: Path, tmp_path: Path
) -> None:
    """Interleaved in one engine each has the logprobs of a trainer that has it alone, also when one is replaced."""
    folders = {name: write_adapter(tmp_path / name, tiny_model, LORA, seed=ord(name)) for name in "ab"}
    tensors = {name: open_adapter(folder, tiny_model).tensors() for name, folder in folders.items()}
    alone = {"": TitanTrainer(tiny_model, TitanSettings(dtype="float32"))}
    for name, folder in folders.items():
        lora = dataclasses.replace(LORA, adapter=str(folder))
        alone[name] = TitanTrainer(tiny_model, TitanSettings(dtype="float32", lora=lora))

    async def check(expected: dict[str, tuple[str, int]]) -> None:
        """Requests with the same prompts, each name's in turn; name -> whose logprobs it has, and its version."""
        asked = [(name, number) for number in range(4) for name in expected]
        calls = (
            engine.generate([number, *range(40, 80)], Sampling(max_tokens=12, seed=number), f"{name}/{number}", name)
            for name, number in asked
        )
        completions = list(await asyncio.gather(*calls))
        for name, (like, version) in expected.items():
            mine = [completion for completion, (whose, _) in zip(completions, asked, strict=True) if whose == name]
            assert {span for completion in mine for span in completion.versions} == {(version, 12)}
            samples = samples_of(mine)
            differences = {who: mean_difference(mine, trainer.logprobs(samples)) for who, trainer in alone.items()}
            assert differences[like] <= 1e-5 and min(differences[who] for who in alone if who != like) > 0.05

    try:
        await check({"": ("", 0)})
        await engine.load_adapter("a", 3, tensors["a"])
        await engine.load_adapter("b", 5, tensors["b"])
        await check({"a": ("a", 3), "": ("", 0), "b": ("b", 5)})
        await engine.load_adapter("a", 4, tensors["b"])
        await check({"b": ("b", 5), "a": ("b", 4), "": ("", 0)})
        sampling = Sampling(max_tokens=200, seed=1)
        # While a request runs, the cache is kept: nothing in it may be found by other tensors of the same version.
        busy = asyncio.create_task(engine.generate([9, 9, 9], sampling, "busy"))
        await asyncio.sleep(0)  # it is the first in the engine's queue
        await engine.load_adapter("a", 4, tensors["a"])
        await check({"b": ("b", 5), "a": ("a", 4), "": ("", 0)})
        await busy

        under_way = [asyncio.create_task(engine.generate([9, 9, 9], sampling, f"{n} goes on", n)) for n in ("a", "")]
        await asyncio.sleep(0)  # they are the first in the engine's queue
        await engine.generate([9, 9], Sampling(max_tokens=4, seed=1), "beside", "b")  # by then they run
        await engine.load_adapter("a", 6, tensors["b"])
        with pytest.raises(PolicyError, match="adapter a has 1 requests in flight: let them end before it is dropped"):
            await engine.drop_adapter("a")
        of_a, of_model = [(await task).versions for task in under_way]
        assert [version for version, _ in of_a] == [4, 6] and sum(count for _, count in of_a) == 200
        assert of_model == ((0, 200),)

        with pytest.raises(
            PolicyError, match="there is no slot for adapter c: the engine has 2 of them, taken by a, b"
        ):
            await engine.load_adapter("c", 1, tensors["a"])
        await engine.drop_adapter("a")
        for refused in (engine.drop_adapter("a"), engine.generate([9], sampling, "late", "a")):
            with pytest.raises(PolicyError, match="there is no adapter 'a' in the engine; it has b"):
                await refused
        large = write_adapter(tmp_path / "large", tiny_model, dataclasses.replace(LORA, rank=9))
        with pytest.raises(PolicyError, match="adapter c has rank 9, and the engine's slots have 8"):
            await engine.load_adapter("c", 1, open_adapter(large, tiny_model).tensors())
        for name, halves, match in (("x y", tensors["a"], "is named 'x y'"), ("c", {}, "has no tensors")):
            with pytest.raises(PolicyError, match=match):
                await engine.load_adapter(name, 1, halves)
        with pytest.raises(PolicyError, match="keeps its frozen weights"):
            await engine.update_weights(1, load_file(tiny_model / "model.safetensors"))
        await engine.load_adapter("c", 1, tensors["a"])
        await engine.update_weights(2, tensors["b"])  # the published adapter, which requests without a name have
        await check({"c": ("a", 1), "": ("b", 2), "b": ("b", 5)})
    finally:
        for trainer in alone.values():
            trainer.close()


async def test_an_adapter_is_replaced_between_two_steps(engine: VLLMEngine, tiny_model: Path) -> None:
    """Each version in the slot agrees with the trainer.

    A request that is under way goes on, and its tokens have the versions that sampled them.
    """
    lora = dataclasses.replace(LORA, publish="adapter", rank=6, targets=("q_proj", "v_proj", "down_proj"))
    trainer = TitanTrainer(tiny_model, TitanSettings(learning_rate=1e-2, dtype="float32", lora=lora))
    delivery = Delivery(context=256)

    async def check(version: int) -> dict[str, float]:
        delivery.note_update(version, trainer.score(delivery.prompt))
        return delivery.check(version, [Scored("engine", await engine.score(delivery.prompt, f"proof {version}"))])

    try:
        before: list[Completion] = []
        registered: list[int] = []
        first = engine.version + 1
        for version in range(first, first + 3):
            for _ in range(4):
                train(trainer)
            with trainer.model.published_weights.stream(torch.float32) as tensors:
                await engine.update_weights(version, {name: tensor.clone() for name, tensor in tensors})
            registered += await engine._command(lambda: engine._thread.engine.collective_rpc(id_of_published))
            prompts = [[version + 1, number, *range(40, 60)] for number in range(8)]
            calls = [
                engine.generate(prompt, Sampling(max_tokens=24, seed=number), f"{version}/{number}")
                for number, prompt in enumerate(prompts)
            ]
            completions = list(await asyncio.gather(*calls))
            assert {span for completion in completions for span in completion.versions} == {(version, 24)}
            assert mean_difference(completions, trainer.logprobs(samples_of(completions))) <= 1e-5
            assert (await check(version))["delivery/difference"] < 1e-5
            if before:
                assert mean_difference(before, trainer.logprobs(samples_of(before))) > 0.01, "the versions differ"
            before = completions
        delivery.note_start(Scored("engine", await engine.score(delivery.prompt, "an engine that has this adapter")))
        delivery.note_update(-1, trainer.score(delivery.prompt))
        assert not np.allclose(
            trainer.score(delivery.prompt), trainer.score(delivery.prompt, of_folder=True), atol=0.01
        )
        for version in (first + 3, first + 4):  # trained, and never delivered
            train(trainer)
            assert (await check(version))["delivery/missing"] == pytest.approx(1.0, abs=0.01)
        with pytest.raises(ServiceError, match="the engine engine does not generate from the trainer's weights"):
            delivery.refuse()
        assert registered[1] == registered[2], "the third one was copied to the places of the second"
        under_way = asyncio.create_task(engine.generate([9, 9, 9], Sampling(max_tokens=200, seed=1), "under way"))
        await asyncio.sleep(0)  # it is the first in the engine's queue
        await engine.generate([9, 9], Sampling(max_tokens=4, seed=1), "beside")  # by then it runs
        with trainer.model.published_weights.stream(torch.float32) as tensors:
            await engine.update_weights(first + 3, {name: tensor.clone() for name, tensor in tensors})
        spans = (await under_way).versions
        assert [version for version, _ in spans] == [first + 2, first + 3]
        assert sum(count for _, count in spans) == 200
    finally:
        trainer.close()


@pytest.mark.parametrize("export", ["adapter", pytest.param("merged", marks=pytest.mark.slow)])
async def test_an_export_is_evaluated_as_the_model_that_was_trained(
    tiny_model: Path, tmp_path: Path, export: str
) -> None:
    """The adapter's folder beside the base, or the merged folder, has the logprobs of a trainer that starts from it."""
    random_one = write_adapter(tmp_path / "random", tiny_model, LORA, seed=3)
    settings = TitanSettings(dtype="float32", lora=dataclasses.replace(LORA, adapter=str(random_one)))
    trainer = TitanTrainer(tiny_model, settings)
    trainer.export_hf(tmp_path / "merged")
    trainer.export_adapter(tmp_path / "adapter")
    trainer.close()
    model, adapter = (tiny_model, str(tmp_path / "adapter")) if export == "adapter" else (tmp_path / "merged", "")
    limits = {"max_turns": 2, "max_turn_tokens": 12, "max_tokens": 1024}
    evaluation = evaluate_async("math", f"vllm:{model}", adapter=adapter, tasks=2, out=tmp_path / "out", **limits)
    result = (await evaluation).figures
    assert result["episodes"] == result["greedy"]["episodes"] == 2 and result.get("adapter", "") == adapter
    written = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert ("adapter/adapter_model.safetensors" in written["depends_on"]["agent"]) == bool(adapter)
    samples = [Sample(rows=episode.rows) for episode in read_jsonl(tmp_path / "out" / "episodes.jsonl")]
    trainer = TitanTrainer(tiny_model, settings)
    start = TitanTrainer(tiny_model, TitanSettings(dtype="float32"))
    try:
        assert row_difference(samples, trainer.logprobs(samples)) <= 1e-5
        assert row_difference(samples, start.logprobs(samples)) > 0.05, "the adapter matters"
    finally:
        trainer.close()
        start.close()


def write_adapter(folder: Path, model: Path, lora: Lora, seed: int = 0) -> Path:
    """A random adapter of a model in PEFT's format."""
    generator, halves = torch.Generator().manual_seed(seed), {}
    for name, weight in load_file(model / "model.safetensors").items():
        if name.removesuffix(".weight").rpartition(".")[2] in lora.targets:
            layer = f"base_model.model.{name.removesuffix('.weight')}"
            for half, shape in (("A", (lora.rank, weight.shape[1])), ("B", (weight.shape[0], lora.rank))):
                halves[f"{layer}.lora_{half}.weight"] = 0.1 * torch.randn(shape, generator=generator)
    folder.mkdir()
    save_file(halves, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(adapter_config(lora, str(model))))
    return folder


def row_difference(samples: list[Sample], logprobs: list[Any]) -> float:
    """The mean |difference| of the trainer's logprobs and the engine's, over all sampled tokens."""
    pairs = []
    for sample, values in zip(samples, logprobs, strict=True):
        sampled = [
            logprob
            for row in sample.rows
            for logprob, is_sampled in zip(row.generator_logprobs, row.loss_mask, strict=True)
            if is_sampled
        ]
        pairs += [abs(a - b) for a, b in zip(sampled, values, strict=True)]
    return float(sum(pairs) / len(pairs))
