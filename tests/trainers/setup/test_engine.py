"""The engine's settings of a run: what a GPU's cache of keys and values comes to, and when the engine may sleep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from agents.generator.settings import EngineSettings
from trainers.grpo import GRPO, Config
from trainers.model.find import find_shape
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.sizing.engine import cannot_sleep_reason, plan_engine

GPU = ("--generator.with_gpus", "--trainer.with_gpus", "--launcher.gpus_per_host=1")


def settings(
    *arguments: str, layers: int = 2, card: float | None = None, engine_args: Mapping[str, Any] = MappingProxyType({})
) -> EngineSettings:
    shape = find_shape("").shape
    assert shape is not None
    plan = make_plan(read_config(Config, arguments), GRPO)
    model = replace(plan.model, shape=replace(shape, num_hidden_layers=layers))
    plan = replace(plan, model=model, card=card)
    vars(plan)["engine_args"] = engine_args  # the cached property
    return plan_engine(plan)[0]


def test_on_cpu_the_cache_has_one_size() -> None:
    assert settings().kv_cache_gib == settings(layers=1000).kv_cache_gib == 1.0
    assert not settings().cuda_graphs and settings().dtype == "float32"


def test_on_gpu_it_holds_what_is_in_flight_up_to_a_bound() -> None:
    few, more = settings(*GPU, layers=400), settings(*GPU, "--env.max_tokens", "1024", layers=400)
    # 256 episodes of 512 tokens, each with keys and values of 2 x 32 numbers of 2 bytes in 400 layers, and a tenth
    assert few.kv_cache_gib == 1.1 * 256 * 512 * 2 * 64 * 2 * 400 / 2**30
    assert more.kv_cache_gib == 2 * few.kv_cache_gib
    large = settings(*GPU, "--env.max_tokens", "1024", layers=4000, card=32 * 2**30)
    assert 20.0 < large.kv_cache_gib < 0.9 * 32, "what is left of nine tenths of the card"
    assert settings(*GPU, layers=400, engine_args={"kv_cache_dtype": "fp8"}).kv_cache_gib == few.kv_cache_gib / 2
    assert few.cuda_graphs and few.dtype == "bfloat16"


def test_a_size_that_is_given_counts() -> None:
    assert settings(*GPU, "--generator.kv_cache_gib", "3.5").kv_cache_gib == 3.5
    assert not settings(*GPU, "--generator.cuda_graphs=false").cuda_graphs


def test_a_process_of_the_worker_s_own_is_for_gpus() -> None:
    assert settings(*GPU).fast_path and not settings("--generator.fast_path=false").fast_path
    assert settings(*GPU).worker_process and not settings(*GPU, "--generator.worker_process=false").worker_process
    assert not settings().has_worker_processes and not settings("--generator.worker_process").has_worker_processes


def test_on_gpu_it_takes_as_many_requests_as_there_may_be_episodes_up_to_a_bound() -> None:
    assert settings().max_requests == settings("--training.batch_size", "64").max_requests == 128
    assert settings(*GPU).max_requests == 256  # an evaluation's
    assert settings(*GPU, "--training.batch_size", "40").max_requests == 384  # for 320 episodes
    assert settings(*GPU, "--training.batch_size", "400").max_requests == 512


@pytest.mark.parametrize(
    ("arguments", "engine_args", "why"),
    [
        ((), {}, ""),
        (("--training.staleness=1",), {}, "--training.staleness is 1"),
        (("--training.sync_interval=4",), {}, "--training.staleness is 3"),
        # All groups of a window are there before its first step.
        (("--training.sync_interval=4", "--training.old_logprobs=trainer"), {}, ""),
        (
            ("--training.sync_interval=4", "--training.old_logprobs=trainer", "--training.staleness=4"),
            {},
            "--training.staleness is 4",
        ),
        ((), {"speculative_config": {"method": "ngram"}}, ""),
        ((), {"speculative_config": {"model": "draft"}}, "the weights of its draft model would be lost"),
    ],
)
def test_an_engine_may_sleep_if_nothing_is_in_flight(
    arguments: tuple[str, ...], engine_args: dict[str, Any], why: str
) -> None:
    plan = make_plan(read_config(Config, arguments), GRPO)
    vars(plan)["engine_args"] = engine_args  # the cached property
    reason = cannot_sleep_reason(plan)
    assert why in reason and bool(why) is bool(reason)


def test_on_cpu_an_engine_sleeps_only_where_it_is_told_to() -> None:
    assert not settings().sleep and settings("--services.generator.sleep=yes").sleep
