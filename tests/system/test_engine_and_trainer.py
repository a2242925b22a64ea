"""The real engine and the real trainer on the same weights: they agree, and a weight sync proves itself.

One process, three engine starts; the engine is the one that PolicyActor drives. The last two tests end their engines.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from agents.generator.engine import VLLMEngine
from agents.generator.policy import Scored
from agents.generator.settings import EngineSettings
from agents.generator.start import CPU_BLOCK_TOKENS, _register_architecture
from forge_env.core.errors import PolicyError, ServiceError
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from forge_env.rollout.lockstep import Request
from tests.agents.generator.test_fast_path import bits, mixed_requests, undress
from tests.helpers.engine_rows import differences, samples_of
from trainers.run.delivery import Delivery

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = EngineSettings(max_model_len=256, max_requests=64, sleep=True)
STALL_S = 1.0


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with larger weights, so that its distribution is not flat and logprobs mean something."""
    folder = tmp_path_factory.mktemp("models") / "sharp"
    _copy_with(tiny_model, folder, {k: v * 3 if v.dim() > 1 else v for k, v in _weights(tiny_model).items()})
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[VLLMEngine]:
    engine = VLLMEngine(str(model), SETTINGS)
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fresh(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VLLMEngine]:
    """An engine that starts with the new weights, and computes its caches again after an update."""
    folder = tmp_path_factory.mktemp("models") / "new"
    _copy_with(model, folder, _new_weights(model))
    engine = VLLMEngine(str(folder), replace(SETTINGS, cache_on_update="recompute"))
    await engine.start()
    yield engine
    await engine.close()


async def test_logprobs_agree(engine: VLLMEngine, model: Path) -> None:
    """Over 2,000 sampled tokens, fp32: mean difference at most 1e-5, at two temperatures."""
    from trainers.titan.trainer import TitanSettings, TitanTrainer

    trainer = TitanTrainer(str(model), TitanSettings())
    try:
        for temperature in (1.0, 0.7):
            completions = await _sample(engine, count=32, tokens=32, temperature=temperature)
            each = differences(completions, trainer.logprobs(samples_of(completions), temperature))
            assert len(each) == 32 * 32
            assert sum(each) / len(each) <= 1e-5 and max(each) <= 1e-3
    finally:
        trainer.close()


async def test_updates_that_the_engine_does_not_load_stop_a_run(
    engine: VLLMEngine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine scores the fixed prompt as the trainer does, at its start and after updates, beside other requests."""
    from trainers.titan.trainer import TitanSettings, TitanTrainer

    async def scored() -> list[Scored]:
        return [Scored("generator", await engine.score(delivery.prompt, f"score {engine.version}"))]

    delivery, answers = Delivery(context=SETTINGS.max_model_len), []
    folders = [model, *(tmp_path / str(size) for size in range(1, 4))]
    for size, folder in enumerate(folders[1:], 1):
        _copy_with(model, folder, {k: v * (1 + 0.01 * size) for k, v in _weights(model).items()})
    for folder in folders:
        trainer = TitanTrainer(str(folder), TitanSettings())
        answers.append(trainer.score(delivery.prompt))
        trainer.close()
    delivery.note_update(-1, answers[0])
    delivery.note_start(*await scored())
    try:
        running = asyncio.ensure_future(engine.generate([5, 2], Sampling(max_tokens=200, seed=1), "long"))
        for version in (1, 2):
            await engine.update_weights(engine.version + 1, _weights(folders[version]))
            delivery.note_update(version, answers[version])
            found = delivery.check(version, await scored())
            assert found["delivery/difference"] < 1e-5 and found["delivery/missing"] < 0.01
            delivery.refuse()
        monkeypatch.setattr("agents.generator.engine_thread.load_weights", lambda worker, weights: None)
        for version in (3, 4):
            await engine.update_weights(engine.version + 1, _weights(folders[3]))
            delivery.note_update(version, answers[3])
            found = delivery.check(version, await scored())
            assert found["delivery/missing"] == pytest.approx(1.0, abs=0.01)
        with pytest.raises(ServiceError, match=r"generator does not generate from .* since update 2, .* as before"):
            delivery.refuse()
        monkeypatch.undo()
        await running
    finally:
        await engine.update_weights(engine.version + 1, _weights(model))


async def test_what_the_engine_returns_is_what_it_saw(engine: VLLMEngine) -> None:
    prompt = [5, 9, 200, 31]
    completion = await engine.generate(prompt, Sampling(max_tokens=8, seed=1), "echo")
    assert tuple(completion.prompt_ids) == tuple(prompt)
    assert len(completion.logprobs) == len(completion.token_ids) == 8
    assert completion.finish_reason == "length"
    assert completion.versions == ((engine.version, 8),)


async def test_a_stop_token_ends_the_answer_and_is_part_of_it(engine: VLLMEngine) -> None:
    free = await engine.generate([5, 9, 200], Sampling(max_tokens=16, seed=3), "free")
    stop = free.token_ids[5]
    stopped = await engine.generate([5, 9, 200], Sampling(max_tokens=16, seed=3, stop_token_ids=(stop,)), "stopped")
    assert tuple(stopped.token_ids) == tuple(free.token_ids[: free.token_ids.tolist().index(stop) + 1])
    assert stopped.finish_reason == "stop"


async def test_of_next_to_no_probability_only_the_likeliest_token_is_left(engine: VLLMEngine) -> None:
    """The settings of evaluations: top_p near 0 is greedy whatever the temperature, and 1 is not."""
    greedy = await engine.generate([5, 9, 200], Sampling(max_tokens=8, temperature=0.0), "greedy")
    cut = await engine.generate([5, 9, 200], Sampling(max_tokens=8, seed=3, top_p=1e-6), "cut")
    free = await engine.generate([5, 9, 200], Sampling(max_tokens=8, seed=3), "free")
    assert tuple(cut.token_ids) == tuple(greedy.token_ids) != tuple(free.token_ids)


async def test_same_seed_same_answer_alone_and_among_others(engine: VLLMEngine) -> None:
    alone = await engine.generate([7, 7, 7], Sampling(max_tokens=24, seed=11), "alone")
    crowd = [
        engine.generate([i + 1, 7, 7], Sampling(max_tokens=24, seed=11 if i == 6 else i), f"crowd/{i}")
        for i in range(24)
    ]
    together = await asyncio.gather(*crowd)
    assert tuple(together[6].token_ids) == tuple(alone.token_ids)


async def test_a_batch_gives_the_same_bits_whatever_the_engine_did_before(engine: VLLMEngine) -> None:
    """Siblings share a prompt, so the first batch leaves prefixes in the cache that a second would hit."""
    prompt = tuple(range(2, 50))

    def batch(name: str) -> list[Request]:
        return [Request((*prompt, i // 4), Sampling(max_tokens=12, seed=i), f"{name}/{i}") for i in range(20)]

    first = await engine.generate_batch(batch("one"))
    busy = asyncio.gather(*(engine.generate([i, 3], Sampling(max_tokens=30, seed=i), f"busy/{i}") for i in range(9)))
    await engine.generate([1], Sampling(max_tokens=1), "marker")
    again = await engine.generate_batch(batch("two"))  # begins when the others are done
    assert again == first
    await busy


async def test_a_batch_begins_when_what_came_before_it_has_ended(engine: VLLMEngine) -> None:
    ended: list[str] = []
    before = asyncio.ensure_future(engine.generate([1, 2, 3], Sampling(max_tokens=20, seed=1), "before"))
    batch = asyncio.ensure_future(engine.generate_batch([([4], Sampling(max_tokens=1, seed=2), "of the batch")]))
    before.add_done_callback(lambda _: ended.append("before"))
    batch.add_done_callback(lambda _: ended.append("batch"))
    await asyncio.gather(before, batch)
    assert ended == ["before", "batch"]


async def test_a_prompt_that_is_too_long_is_refused_alone_and_the_engine_lives_on(engine: VLLMEngine) -> None:
    good, bad = Request((3, 4), Sampling(max_tokens=2), "good"), Request((3,) * 1000, Sampling(), "bad")
    answers = await engine.generate_batch([bad, good])
    assert isinstance(answers[0], PolicyError) and isinstance(answers[1], Completion)
    with pytest.raises(PolicyError, match="refused"):
        await engine.generate(bad.prompt_ids, Sampling(max_tokens=8), "too-long")
    assert len((await engine.generate([3], Sampling(max_tokens=2), "next")).token_ids) == 2


@pytest.mark.parametrize("token", [-1, 10**6])
async def test_a_token_of_no_vocabulary_is_refused_and_the_engine_lives_on(engine: VLLMEngine, token: int) -> None:
    """Inside a step it would raise, and break the engine for all requests."""
    good = engine.generate([4, 5], Sampling(max_tokens=30, seed=1), "good")
    with pytest.raises(PolicyError, match=rf"refused a request: token {token} of the prompt is not in the vocabulary"):
        await engine.generate([3, token, 4], Sampling(max_tokens=8), "bad")
    assert len((await good).token_ids) == 30
    assert not engine.why_broken


async def test_a_second_request_of_an_id_takes_the_place_of_the_first(engine: VLLMEngine) -> None:
    """The process that waited for the first has died, and its group is run again."""
    sampling = Sampling(max_tokens=40, seed=5)
    alone = await engine.generate([6, 7], sampling, "alone")
    old = asyncio.create_task(engine.generate([6, 7], Sampling(max_tokens=250, seed=9), "same"))
    new = asyncio.create_task(engine.generate([6, 7], sampling, "same"))
    beside = asyncio.create_task(engine.generate([8, 9], sampling, "beside"))
    with pytest.raises(PolicyError, match="another request came with the same id 'same'"):
        await old
    assert tuple((await new).token_ids) == tuple(alone.token_ids)
    assert len((await beside).token_ids) == 40


async def test_the_class_of_a_model_is_looked_at_in_the_engine_s_own_process(
    engine: VLLMEngine, tmp_path: Path
) -> None:
    """vLLM does it in another process otherwise, which imports everything once more; of others it finds out itself."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

    assert ModelRegistry.models["Qwen3ForCausalLM"].model_cls is Qwen3ForCausalLM
    before = dict(ModelRegistry.models)
    for unknown in ("nobody/has-this", "not a name", str(tmp_path / "missing")):
        _register_architecture(unknown)
    for config in ('{"architectures": ["NobodysModel"]}', '{"architectures": null}', "{}", "[]", "no JSON"):
        (tmp_path / "config.json").write_text(config)
        _register_architecture(str(tmp_path))
    assert ModelRegistry.models == before


@pytest.mark.parametrize("in_batch", [False, True])
async def test_a_cancelled_call_ends_its_requests(engine: VLLMEngine, in_batch: bool) -> None:
    requests = [Request((4, i), Sampling(max_tokens=200, seed=i), f"unwanted/{i}") for i in range(5)]
    first = requests[0]
    if in_batch:
        call = asyncio.ensure_future(engine.generate_batch(requests))
    else:
        call = asyncio.ensure_future(engine.generate(first.prompt_ids, first.sampling, first.request_id))
    while not await engine._command(lambda: engine._thread.engine.has_unfinished_requests()):
        await asyncio.sleep(0)
    assert not call.done()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert await engine._command(lambda: engine._thread.engine.has_unfinished_requests()) is False


async def test_weights_change_while_requests_run(engine: VLLMEngine, model: Path) -> None:
    """Requests in flight carry on over a swap; each span of tokens names the weights that sampled it."""
    weights = _weights(model)
    running = [
        asyncio.ensure_future(engine.generate([i + 1, 2], Sampling(max_tokens=200, seed=i), f"long/{i}"))
        for i in range(16)
    ]
    started = asyncio.ensure_future(engine.generate([1], Sampling(max_tokens=1), "marker"))
    await started  # the engine steps all requests together, so the long ones have begun
    old = engine.version
    await engine.update_weights(old + 1, weights)
    for completion in await asyncio.gather(*running):
        assert [version for version, _ in completion.versions] == [old, old + 1]
        assert sum(n for _, n in completion.versions) == 200
    after = await engine.generate([1], Sampling(max_tokens=3), "after")
    assert after.versions == ((old + 1, 3),)


async def test_a_group_computes_its_prompt_once_per_version(engine: VLLMEngine, model: Path) -> None:
    """Its members come at once: all but the first find the whole blocks of the prompt in the prefix cache."""
    weights, count, tokens = _weights(model), 8, 200
    for _ in range(2):
        await engine.update_weights(engine.version + 1, weights)
        before, sampling = engine.stats, Sampling(max_tokens=8)
        await asyncio.gather(*(engine.generate([7] * tokens, sampling, f"member/{i}") for i in range(count)))
        assert engine.stats.prefix_asked - before.prefix_asked == count * tokens
        whole_blocks = tokens // CPU_BLOCK_TOKENS * CPU_BLOCK_TOKENS
        assert engine.stats.prefix_found - before.prefix_found == (count - 1) * whole_blocks


async def test_after_a_swap_greedy_output_is_that_of_a_fresh_engine(
    engine: VLLMEngine, fresh: VLLMEngine, model: Path
) -> None:
    weights = _weights(model)
    before = await _greedy(engine)
    await engine.update_weights(engine.version + 1, _new_weights(model))
    try:
        swapped = await _greedy(engine)
        assert swapped != before, "the new weights must speak differently, or this test shows nothing"
        # The same prompts were cached under the old weights; a stale prefix cache would show here.
        assert await _greedy(fresh) == swapped
        completion = await _over_a_swap(fresh, _new_weights(model), weights)
    finally:
        await engine.update_weights(engine.version + 1, weights)
    assert await _greedy(engine) == before
    # What came after the swap is what the weights say to the whole text before it, and not to the old weights' cache.
    (_, first), (_, rest) = completion.versions
    so_far = (*completion.prompt_ids, *completion.token_ids[:first])
    again = await engine.generate(so_far, Sampling(max_tokens=rest, temperature=0.0), "again")
    assert tuple(again.token_ids) == tuple(completion.token_ids[first:])
    assert max(abs(a - b) for a, b in zip(again.logprobs, completion.logprobs[first:], strict=True)) < 1e-4


async def test_a_sleeping_engine_computes_nothing_and_wakes_by_weights(engine: VLLMEngine, model: Path) -> None:
    """Requests wait meanwhile; those that ran go on where they were, and their tokens name the weights of each span."""
    before, old = await _greedy(engine), engine.version
    running = asyncio.ensure_future(engine.generate([1, 2], Sampling(max_tokens=200, temperature=0.0), "running"))
    await asyncio.sleep(0)  # one turn of the loop: it is sent before the next one
    await engine.generate([1], Sampling(max_tokens=1), "marker")  # by then the other one runs
    await engine.sleep()
    await engine.sleep()
    assert engine.is_asleep and not running.done()
    waiting = asyncio.ensure_future(_greedy(engine))
    batches = [
        asyncio.ensure_future(engine.generate_batch([Request((3, 4), Sampling(max_tokens=2), f"batch {n}")]))
        for n in range(2)
    ]
    steps = engine.stats.steps
    await engine._command(lambda: None)  # by then the requests have come
    assert engine.stats.steps == steps and not any(task.done() for task in (waiting, *batches))
    await engine.update_weights(old + 1, _weights(model))
    assert not engine.is_asleep and await waiting == before, "the same weights"
    completion = await running
    assert [version for version, _ in completion.versions] == [old, old + 1]
    assert sum(count for _, count in completion.versions) == len(completion.token_ids) == 200
    for (of_batch,) in await asyncio.gather(*batches):
        assert isinstance(of_batch, Completion) and of_batch.versions == ((old + 1, 2),)
    alone = await engine.generate([1, 2], Sampling(max_tokens=200, temperature=0.0), "alone")
    assert tuple(alone.token_ids) == tuple(completion.token_ids)
    assert max(abs(a - b) for a, b in zip(alone.logprobs, completion.logprobs, strict=True)) < 1e-4


async def test_an_engine_without_sleep_mode_says_so() -> None:
    with pytest.raises(PolicyError, match="cannot sleep: it was started without EngineSettings.sleep"):
        await VLLMEngine("any", EngineSettings()).sleep()


async def _over_a_swap(
    engine: VLLMEngine, weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]
) -> Completion:
    """A greedy completion that begins with weights and ends with others; the engine has those at the end.

    On a busy machine it may end before the others come; then it is asked for again.
    """
    for _ in range(20):
        await engine.update_weights(engine.version + 1, weights)
        running = asyncio.ensure_future(engine.generate([5, 2], Sampling(max_tokens=200, temperature=0.0), "long"))
        await engine.generate([1], Sampling(max_tokens=3), "begun")
        await engine.update_weights(engine.version + 1, others)
        completion = await running
        if len(completion.versions) == 2:
            return completion
    raise AssertionError("all completions ended before the new weights came")


async def test_an_engine_says_the_same_with_and_without_its_fast_path(fresh: VLLMEngine) -> None:
    """Whose steps test_fast_path.py compares; the engine is without it from now on."""
    asked = mixed_requests(SETTINGS.max_model_len)
    fast = await fresh.generate_batch(asked)
    assert len(fresh._thread.engine.templates) >= 3
    await fresh._command(lambda: undress(fresh._thread.engine))
    own = await fresh.generate_batch(asked)
    assert list(map(bits, fast)) == list(map(bits, own))
    assert [len(each.token_ids) for each in fast[:8]] == [40] * 8 and isinstance(fast[-1], PolicyError)
    stats = fresh.stats
    assert 0 < stats.worker_seconds < stats.step_seconds and stats.admission_seconds > 0


async def test_a_closed_engine_refuses_and_leaves_the_group_to_the_others(
    fresh: VLLMEngine, engine: VLLMEngine
) -> None:
    pending = asyncio.ensure_future(fresh.generate([1], Sampling(max_tokens=200), "pending"))
    await asyncio.sleep(0)  # let it reach the inbox
    await fresh.close()
    with pytest.raises(PolicyError):
        await pending
    with pytest.raises(PolicyError):
        await fresh.generate([1], Sampling(max_tokens=1), "late")
    assert torch.distributed.is_initialized()
    assert len((await engine.generate([1], Sampling(max_tokens=1), "other")).token_ids) == 1


class AsItBreaks(list[int]):
    """A prompt whose tokens can be read only once the engine's thread has ended."""

    def __init__(self, engine: VLLMEngine, gate: threading.Event) -> None:
        super().__init__([1, 2])
        self._engine, self._gate = engine, gate

    def __iter__(self) -> Iterator[int]:
        self._gate.set()
        self._engine._thread.join(60.0)
        return super().__iter__()


async def test_a_request_that_comes_as_the_engine_breaks_is_answered(engine: VLLMEngine) -> None:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    gate = threading.Event()

    def add() -> None:
        gate.wait(60.0)
        prompt = TokensPrompt(prompt_token_ids=[10**6])  # past the check: the next step raises
        engine._thread.engine.add_request("bad", prompt, SamplingParams(max_tokens=2, detokenize=False))

    others = [
        asyncio.ensure_future(engine.generate([3], Sampling(max_tokens=200), "running")),
        asyncio.ensure_future(engine._command(add)),
    ]
    await asyncio.sleep(0)  # let them reach the inbox
    with pytest.raises(PolicyError, match="the engine broke"):
        await asyncio.wait_for(engine.generate(AsItBreaks(engine, gate), Sampling(max_tokens=2), "queued"), 60.0)
    running, _ = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(running, PolicyError)
    assert engine.why_broken.startswith("the engine broke")


@pytest.mark.parametrize("has_copy", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_an_output_layer_that_is_the_embedding_takes_new_weights_over(
    model: Path, tmp_path: Path, has_copy: bool
) -> None:
    """On a CPU such a layer has a packed copy of the weight, which an update has to make anew. A file may have one.

    Then the engine stands still. A trainer's process group outlives it, and it is garbage while that works.
    """
    from trainers.titan.trainer import TitanSettings, TitanTrainer

    old = {name: weight for name, weight in _weights(model).items() if name != "lm_head.weight"}
    copy = {"lm_head.weight": old["model.embed_tokens.weight"].clone()} if has_copy else {}
    _copy_with(model, tmp_path / "tied", old | copy)
    config = tmp_path / "tied" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": True}))
    new = {name: weight.roll(1, 0) if "embed" in name else weight for name, weight in old.items()}
    _copy_with(tmp_path / "tied", tmp_path / "new", new)
    tied = VLLMEngine(str(tmp_path / "tied"), replace(SETTINGS, max_model_len=1024, stall_seconds=STALL_S))
    await tied.start()
    try:
        await tied.update_weights(1, new)
        completions = await _sample(tied, count=4, tokens=16, temperature=1.0)
        await _decodes_and_is_found_when_it_stands_still(tied)
    finally:
        await tied.close()
    assert not torch.distributed.is_initialized(), "the last engine has ended what vLLM began"
    trainer = TitanTrainer(str(tmp_path / "new"), TitanSettings())
    core = weakref.ref(tied._thread.engine.engine_core)
    del tied
    gc.collect()
    assert core() is None and torch.distributed.is_initialized()
    expected = trainer.logprobs(samples_of(completions))
    trainer.close()
    assert max(differences(completions, expected)) < 1e-4


async def _decodes_and_is_found_when_it_stands_still(engine: VLLMEngine) -> None:
    """Completions that take longer than the engine may stand still are not cut; then its scheduler is paused."""
    from vllm.v1.core.sched.interface import PauseState

    started = time.perf_counter()
    long = [engine.generate([i + 1], Sampling(max_tokens=600, seed=i), f"long/{i}") for i in range(32)]
    assert [len(completion.token_ids) for completion in await asyncio.gather(*long)] == [600] * 32
    assert time.perf_counter() - started > STALL_S, "they were too quick to show anything"
    scheduler = engine._thread.engine.engine_core.engine_core.scheduler
    await engine._command(lambda: scheduler.set_pause_state(PauseState.PAUSED_ALL))
    with pytest.raises(PolicyError, match=r"the engine hangs: it has 2 requests, and made no step for 1 s"):
        await asyncio.gather(*(engine.generate([i + 1], Sampling(max_tokens=9), f"stuck/{i}") for i in range(2)))
    assert engine.why_broken.startswith("the engine hangs")
    with pytest.raises(PolicyError, match="is not running: the engine hangs"):
        await engine.generate([1], Sampling(max_tokens=1), "late")


async def _sample(engine: VLLMEngine, *, count: int, tokens: int, temperature: float) -> list[Completion]:
    rng = random.Random(0)
    prompts = [[rng.randrange(300) for _ in range(rng.randint(3, 90))] for _ in range(count)]
    sampling = [Sampling(max_tokens=tokens, temperature=temperature, seed=i) for i in range(count)]
    calls = [
        engine.generate(p, s, f"{temperature}/{i}") for i, (p, s) in enumerate(zip(prompts, sampling, strict=True))
    ]
    return list(await asyncio.gather(*calls))


async def _greedy(engine: VLLMEngine) -> list[Sequence[int]]:
    prompts = [[i + 1, 50, 60, *range(70, 90)] for i in range(8)]
    calls = [
        engine.generate(p, Sampling(max_tokens=24, temperature=0.0), f"greedy/{engine.version}/{random.random()}")
        for p in prompts
    ]
    return [tuple(completion.token_ids) for completion in await asyncio.gather(*calls)]


def _new_weights(model: Path) -> dict[str, torch.Tensor]:
    """The model's weights after a large step in a random direction."""
    generator = torch.Generator().manual_seed(5)
    return {k: v + 0.05 * torch.randn(v.shape, generator=generator) for k, v in _weights(model).items()}


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _copy_with(source: Path, target: Path, weights: dict[str, torch.Tensor]) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (target / path.name).write_bytes(path.read_bytes())
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
