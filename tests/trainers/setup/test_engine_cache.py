"""The size of an engine's cache and its sleep, decided from sizes in GiB."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.rows import rows
from trainers.grpo import GRPO, Config
from trainers.model.find import find_shape
from trainers.setup.card import GIB
from trainers.setup.memory import engine_memory
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan
from trainers.setup.sizing.engine import plan_engine

CACHE = 1.1 * 256 / 4
"""GiB that all requests of the run take at their longest."""


def plan_with(*options: str) -> RunPlan:
    """A run whose requests take a quarter of a GiB each: keys and values of 2 x 32 numbers of 2 bytes in each layer."""
    arguments = ["--generator.with_gpus", "--trainer.with_gpus", "--launcher.gpus_per_host=1", *options]
    plan, shape = make_plan(read_config(Config, arguments), GRPO), find_shape("").shape
    assert shape is not None
    return replace(plan, model=replace(plan.model, shape=replace(shape, num_hidden_layers=GIB // 4 // 512 // 256)))


def decide(
    *options: str, room: float | None = CACHE, others: float = 0.0, at_rest: float = 0.0
) -> tuple[float, bool, str]:
    """The cache in GiB, whether the engine sleeps, and why; `room` GiB are for the cache and for other processes."""
    plan, sizes = plan_with(*options), {"others": others * GIB, "at_rest": at_rest * GIB}
    engine, _ = plan_engine(plan, **sizes)
    held = engine_memory(plan, replace(engine, kv_cache_gib=0.0)).total
    card = None if room is None else (room * GIB + held) / plan.config.services.generator.gpu_memory_utilization
    engine, why = plan_engine(replace(plan, card=card), **sizes)
    return round(engine.kv_cache_gib, 6), engine.sleep, why


@pytest.mark.parametrize(
    ("options", "room", "others", "at_rest", "cache", "sleeps", "words"), rows(__file__, "engine_cache.tsv")
)
def test_the_decision_and_its_reason(
    options: str, room: str, others: str, at_rest: str, cache: str, sleeps: str, words: str
) -> None:
    """GiB of the room, of other processes and of these at rest. An empty room is that of a GPU of unknown size."""
    sizes = {"room": float(room) if room else None, "others": float(others), "at_rest": float(at_rest)}
    found, does_sleep, reason = decide(*options.split(), **sizes)
    assert words in reason
    if cache:
        assert (found, does_sleep) == (float(cache), bool(sleeps))
