"""The size of an engine's cache and its sleep, decided from sizes in GiB."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainers.grpo import GRPO, Config
from trainers.model.find import find_shape
from trainers.setup.card import GIB
from trainers.setup.memory import engine_memory
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan
from trainers.setup.sizing.engine import plan_engine

IN_FLIGHT = "--training.staleness=1"
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
    ("options", "sizes", "cache", "sleeps"),
    [
        # alone: all that requests need, or what the room leaves, and never less than four requests
        ((), {}, CACHE, False),
        ((), {"room": 50.0}, 50.0, False),
        ((), {"room": -5.0}, 1.0, False),
        (("--generator.kv_cache_gib=300",), {"room": 50.0}, 300.0, False),
        (("--generator.sleep=yes",), {}, CACHE, False),
        # beside others: the cache is kept if there is room for all of it
        ((), {"room": CACHE + 40.0, "others": 39.9, "at_rest": 10.0}, CACHE, False),
        ((), {"room": CACHE + 40.0, "others": 40.1, "at_rest": 10.0}, CACHE, True),
        ((), {"room": 70.0, "others": 80.0, "at_rest": 50.0}, 20.0, True),
        ((), {"room": 70.0, "others": 80.0, "at_rest": 80.0}, 1.0, True),
        # as it is told, or as it must
        (("--generator.sleep=yes",), {"room": 200.0, "others": 40.0, "at_rest": 10.0}, CACHE, True),
        (("--generator.sleep=no",), {"room": 70.0, "others": 60.0, "at_rest": 10.0}, 10.0, False),
        ((IN_FLIGHT,), {"room": 70.0, "others": 60.0, "at_rest": 10.0}, 10.0, False),
        ((IN_FLIGHT,), {"room": 70.0, "others": 69.5, "at_rest": 10.0}, 1.0, False),
        # a GPU of unknown size
        ((), {"room": None, "others": 60.0}, CACHE, False),
        (("--generator.sleep=yes",), {"room": None, "others": 60.0}, CACHE, True),
    ],
)
def test_the_decision(options: tuple[str, ...], sizes: dict[str, Any], cache: float, sleeps: bool) -> None:
    assert decide(*options, **sizes)[:2] == (cache, sleeps)


@pytest.mark.parametrize(
    ("options", "sizes", "words"),
    [
        ((), {}, "keeps a cache of 70.4 GiB while the trainer steps: no other process of the run is on its GPU"),
        (
            (),
            {"room": 200.0, "others": 40.0},
            "keeps a cache of 70.4 GiB while the trainer steps: there is room for it beside the 40.0 GiB",
        ),
        (
            (),
            {"others": 60.0},
            "has a cache of 70.4 GiB, and sleeps while the trainer steps: beside the 60.0 GiB of the other processes "
            "on its GPU, there is no room for all requests at their longest, 70.4 GiB",
        ),
        (("--generator.sleep=yes",), {"others": 60.0}, "steps, as --services.generator.sleep says"),
        (
            ("--generator.sleep=no",),
            {"others": 60.0},
            "keeps a cache of 10.4 GiB while the trainer steps, which is what the 60.0 GiB of the other processes on "
            "its GPU leave; it does not sleep: --services.generator.sleep is no",
        ),
        ((IN_FLIGHT,), {"others": 60.0}, "it does not sleep: episodes are in flight"),
        ((), {"room": None}, "the engine has a cache of 70.4 GiB: the memory of its GPU is not known here"),
    ],
)
def test_the_reason_is_a_sentence(options: tuple[str, ...], sizes: dict[str, Any], words: str) -> None:
    assert words in decide(*options, **sizes)[2]
