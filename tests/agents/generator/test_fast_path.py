"""The engine's fast path changes nothing but time: beside vLLM's own scheduler, step by step, whatever happens.

A whole engine with it and without it is in tests/system/test_engine_and_trainer.py.
"""

from __future__ import annotations

import os
import random
import zlib
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.generator.fast_path import install
from agents.generator.requests import completion_of, vllm_sampling
from forge_env.core.types import Sampling
from forge_env.rollout.lockstep import Request

BLOCK, LONGEST, STEPS, SEEDS = 4, 40, 250, int(os.environ.get("SEEDS", "3"))
WAYS: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"ahead": True},
    "gpu runner": {"ahead": True, "runner": 2},
    "uncached": {"cache": False},
    "little memory": {"blocks": 24},
    "little memory, async": {"blocks": 24, "ahead": True, "runner": 2},
}


class Side:
    """A scheduler and an output processor of vLLM, and a model that is a function of the request and the place."""

    def __init__(self, config: Any, *, fast: bool, blocks: int, runner: int = 1) -> None:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.engine.output_processor import OutputProcessor
        from vllm.v1.metrics.stats import PrefixCacheStats
        from vllm.v1.structured_output import StructuredOutputManager

        kind = AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler
        self.scheduler: Any = kind(config, cache_of(blocks), StructuredOutputManager(config), BLOCK, BLOCK)
        self.scheduler.use_v2_model_runner = runner == 2
        self.scheduler.kv_cache_manager.log_stats = True
        self.scheduler.kv_cache_manager.prefix_cache_stats = PrefixCacheStats()
        self.depth = 2 if config.scheduler_config.async_scheduling else 1
        self.queue: deque[Any] = deque()
        self.version = "0"
        self.output_processor = OutputProcessor(None, log_stats=False)
        self.engine_core = SimpleNamespace(engine_core=self)
        self.fast_tokens = 0
        if fast:
            install.speed_up(self)
            assert hasattr(self.scheduler, "plain")
            self._count(self.scheduler)

    def _count(self, scheduler: Any) -> None:
        add = scheduler._add_tokens

        def counted(scheduled: Any, output: Any) -> Any:
            others = add(scheduled, output)
            self.fast_tokens += len(scheduled) - len(others)
            return others

        scheduler._add_tokens = counted

    def get_weight_version(self) -> str:
        return self.version

    def step(self) -> tuple[Any, list[Any]]:
        """One step of vLLM's engine core: what was scheduled, and which requests have ended."""
        scheduled = None
        if self.scheduler.has_requests():
            scheduled = self.scheduler.schedule()
            self.queue.appendleft((scheduled, self.sampled(scheduled)))
            if len(self.queue) < self.depth and scheduled.total_num_scheduled_tokens:
                return scheduled, []
        if not self.queue:
            return scheduled, []
        outputs = self.scheduler.update_from_output(*self.queue.pop())
        found = outputs[0].outputs if 0 in outputs else []
        return scheduled, self.output_processor.process_outputs(found, weight_version=self.version).request_outputs

    def sampled(self, scheduled: Any) -> Any:
        from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

        names, requests = list(scheduled.num_scheduled_tokens), self.scheduler.requests
        numbers = [zlib.crc32(f"{name} {requests[name].num_computed_tokens}".encode()) for name in names]
        tokens = [
            [] if requests[name].is_prefill_chunk else [number % 40]
            for name, number in zip(names, numbers, strict=True)
        ]
        logprobs = -np.array(numbers, np.float32).reshape(-1, 1) / 2**31
        lists = LogprobsLists(np.array(numbers).reshape(-1, 1) % 40, logprobs, np.ones(len(names), np.int32))
        index = {name: row for row, name in enumerate(names)}
        return ModelRunnerOutput(names, index, tokens, logprobs=lists, prompt_logprobs_dict={}, pooler_output=[])

    def state(self) -> Any:
        """All that decides about later steps."""
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        return (
            [(request.request_id, request.status) for request in (*scheduler.running, *scheduler.waiting)],
            {name: manager.get_block_ids(name) for name in scheduler.requests},
            {name: _counts(request) for name, request in scheduler.requests.items()},
            [block.block_id for block in manager.block_pool.free_block_queue.get_all_free_blocks()],
            [(block.block_id, block.ref_cnt, block.block_hash) for block in manager.block_pool.blocks],
            repr(manager.prefix_cache_stats),
        )


def _counts(request: Any) -> Any:
    names = "num_computed_tokens num_output_placeholders num_in_flight_tokens num_stale_output_tokens is_prefill_chunk"
    numbers = [getattr(request, name) for name in f"{names} num_preemptions stop_reason".split()]
    return numbers, list(request.all_token_ids), list(request.output_token_ids), list(request.block_hashes)


def cache_of(blocks: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])


def config_of(model: Path, *, blocks: int, ahead: bool = False, cache: bool = True, **others: Any) -> Any:
    from vllm import EngineArgs

    args: dict[str, Any] = {"max_model_len": LONGEST, "max_num_seqs": 8, "max_num_batched_tokens": 64} | others
    made = EngineArgs(str(model), dtype="float32", skip_tokenizer_init=True, enable_chunked_prefill=True, **args)
    config = made.create_engine_config()
    config.scheduler_config.async_scheduling, config.cache_config.num_gpu_blocks = ahead, blocks
    config.cache_config.enable_prefix_caching, config.scheduler_config.max_num_batched_tokens = cache, 24
    config.scheduler_config.max_num_scheduled_tokens = 24  # so that prompts are cut
    return config


class Pair:
    """A scheduler with the fast path beside one without. Each event happens to both."""

    def __init__(self, model: Path, *, blocks: int = 200, runner: int = 1, **config: Any) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        made = [config_of(model, blocks=blocks, **config) for _ in range(2)]
        self.own, self.fast = (
            Side(each, fast=bool(number), blocks=blocks, runner=runner) for number, each in enumerate(made)
        )
        self.ended = 0
        self.prompts: dict[str, list[int]] = {}

    def add(self, name: str, prompt: list[int], params: Any) -> None:
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.request import Request

        self.prompts[name] = prompt
        for side in (self.own, self.fast):
            request = EngineCoreRequest(name, prompt, None, params, None, 0.0, None, None, None, external_req_id=name)
            side.output_processor.add_request(request, None)
            side.scheduler.add_request(Request.from_engine_core_request(request, self.hasher))

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        for side in (self.own, self.fast):
            names = side.output_processor.abort_requests([name], internal=False)
            side.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def drain(self) -> None:
        from vllm.v1.core.sched.interface import PauseState

        for state in (PauseState.PAUSED_ALL, PauseState.UNPAUSED):
            for side in (self.own, self.fast):
                side.scheduler.set_pause_state(state)
            while state is PauseState.PAUSED_ALL and self.own.queue:
                self.step()

    def swap(self) -> None:
        """New weights, after the steps that are under way."""
        self.drain()
        install.hand_over(self.fast)
        for side in (self.own, self.fast):
            side.version = str(int(side.version) + 1)

    def recompute(self) -> None:
        self.drain()
        for side in (self.own, self.fast):
            side.scheduler.reset_prefix_cache(reset_running_requests=True)

    def step(self) -> None:
        (own, ended), (fast, fast_ended) = self.own.step(), self.fast.step()
        assert own == fast
        assert self.own.state() == self.fast.state()
        assert [said(output) for output in ended] == [said(output) for output in fast_ended]
        self.ended += len(ended)

    def finish(self) -> None:
        while self.own.scheduler.has_requests() or self.own.queue:
            self.step()
        assert not self.fast.scheduler.plain and not self.fast.output_processor.request_states


def said(output: Any) -> Any:
    completion = completion_of(output)
    arrays = [completion.token_ids.tolist(), completion.logprobs.tobytes(), completion.versions]
    return output.request_id, output.num_cached_tokens, arrays, completion.finish_reason, output.outputs[0].stop_reason


def play(pair: Pair, dice: random.Random, steps: int = STEPS) -> None:
    """Groups of requests come, some are aborted, weights change."""
    for number in range(steps):
        if len(pair.own.scheduler.requests) < 12 and dice.random() < 0.3:
            prompt = [dice.randrange(3) for _ in range(dice.choice((1, 5, 8, 17, 30)))]
            sampling = Sampling(max_tokens=dice.choice((1, 2, 9, 30)), stop_token_ids=(7,) * dice.randrange(2))
            for member in range(dice.randrange(1, 5)):
                params = vllm_sampling(sampling)
                params.detokenize = dice.random() < 0.05  # such a request is not plain
                pair.add(f"{number}/{member}", prompt, params)
        if dice.random() < 0.05 and pair.own.scheduler.requests:
            pair.abort(dice.choice(list(pair.own.scheduler.requests)))
        if dice.random() < 0.03:
            pair.swap()
        if dice.random() < 0.02:
            pair.recompute()
        pair.step()
    pair.finish()


@pytest.mark.parametrize("way", WAYS)
def test_every_step_block_token_and_logprob_is_as_without_it(tiny_model: Path, way: str) -> None:
    for seed in range(SEEDS):
        pair = Pair(tiny_model, **WAYS[way])
        play(pair, random.Random(seed))
        assert pair.ended > 50 and pair.fast.fast_tokens > 150
        preempted = pair.fast.scheduler.kv_cache_manager.prefix_cache_stats.preempted_requests
        assert preempted > 0 if "memory" in way else True


@pytest.mark.parametrize("name", ["use_pp", "connector", "log_stats", "num_spec_tokens"])
def test_a_scheduler_that_does_more_stays_as_it_is(tiny_model: Path, name: str) -> None:
    side = Side(config_of(tiny_model, blocks=9), fast=False, blocks=9)
    setattr(side.scheduler, name, 1)
    install.speed_up(side)
    assert not hasattr(side.scheduler, "plain")


def test_another_vllm_is_left_alone(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    side = Side(config_of(tiny_model, blocks=9), fast=False, blocks=9)
    before = type(side.scheduler), type(side.output_processor)
    monkeypatch.setattr("vllm.__version__", "0.33.0")
    install.speed_up(side)
    assert (type(side.scheduler), type(side.output_processor)) == before
    assert "its fast path is for vLLM 0.32.0, not 0.33.0" in caplog.text
    install.hand_over(side)


def mixed_requests(context: int) -> list[Request]:
    """A group with a seed each, greedy ones, some that stop at a token or a text, one that needs all of the context,
    and one that is too long."""
    asked = [([5, 6, 7] * 5, Sampling(max_tokens=40, seed=seed)) for seed in range(8)]
    asked += [([5, 6, number], Sampling(max_tokens=9 + number, temperature=0.0)) for number in range(4)]
    asked += [([5, 6], Sampling(max_tokens=60, seed=seed, stop_token_ids=tuple(range(0, 90, 9)))) for seed in range(6)]
    asked += [([5, 6], Sampling(max_tokens=30, seed=seed, stop=("1", "2", "a"))) for seed in range(3)]
    asked += [([9] * (context - 34), Sampling(max_tokens=500, seed=1)), ([9] * context, Sampling(seed=1))]
    return [Request(prompt, sampling, f"r{number}") for number, (prompt, sampling) in enumerate(asked)]


def bits(answer: Any) -> Any:
    if isinstance(answer, Exception):
        return str(answer)
    return answer.token_ids.tolist(), answer.logprobs.tobytes(), answer.finish_reason, answer.versions


def undress(engine: Any) -> None:
    scheduler = engine.engine_core.engine_core.scheduler
    for part in (engine, engine.output_processor, scheduler, scheduler.kv_cache_manager):
        part.__class__ = next(kind for kind in type(part).__mro__ if kind.__module__.startswith("vllm."))
