"""The size of an engine's cache and its sleep, decided from sizes in GiB."""

from __future__ import annotations

from typing import Any

import pytest

from trainers.settings.services import GeneratorConfig
from trainers.setup.memory import GIB
from trainers.setup.sizing.engine import SharedGpu, size_cache

IN_FLIGHT = "episodes are in flight"


def decide(**values: Any) -> tuple[float, bool, str]:
    """The cache in GiB, whether the engine sleeps, and why; an engine of 20 GiB on a card of 100."""
    sizes = {name: values.pop(name, size) * GIB for name, size in {"needed": 30.0, "least": 5.0}.items()}
    generator = GeneratorConfig(sleep=values.pop("wanted", "auto"))
    values = {"card": 100.0} | values
    gpu: dict[str, Any] = {name: size * GIB if isinstance(size, float) else size for name, size in values.items()}
    cache, sleeps, why = size_cache(generator, SharedGpu(**gpu), **sizes, engine=20.0 * GIB)
    return round(cache / GIB, 6), sleeps, why


@pytest.mark.parametrize(
    ("values", "cache", "sleeps"),
    [
        # alone: all that requests need, or what nine tenths leave, and never less than the least
        ({}, 30.0, False),
        ({"needed": 300.0}, 70.0, False),
        ({"needed": 300.0, "least": 75.0}, 75.0, False),
        ({"needed": 300.0, "least": 300.0}, 300.0, False),
        ({"wanted": "yes"}, 30.0, False),
        # beside others: the cache is kept where there is room for all of it
        ({"others": 40.0, "others_at_rest": 10.0}, 30.0, False),
        ({"others": 40.1, "others_at_rest": 10.0}, 30.0, True),
        ({"others": 80.0, "others_at_rest": 50.0}, 20.0, True),
        ({"others": 80.0, "others_at_rest": 80.0}, 5.0, True),
        # as it is told, or as it must
        ({"others": 40.0, "others_at_rest": 10.0, "wanted": "yes"}, 30.0, True),
        ({"others": 60.0, "others_at_rest": 10.0, "wanted": "no"}, 10.0, False),
        ({"others": 60.0, "others_at_rest": 10.0, "no_sleep": IN_FLIGHT}, 10.0, False),
        ({"others": 68.0, "others_at_rest": 10.0, "no_sleep": IN_FLIGHT}, 5.0, False),
        # a GPU whose size is not known
        ({"card": None, "needed": 300.0, "others": 60.0}, 300.0, False),
        ({"card": None, "wanted": "yes", "others": 60.0}, 30.0, True),
    ],
)
def test_the_decision(values: dict[str, Any], cache: float, sleeps: bool) -> None:
    assert decide(**values)[:2] == (cache, sleeps)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "no other process of the run is on its GPU"),
        (
            {"others": 40.0},
            "keeps a cache of 30.0 GiB while the trainer steps: there is room for it beside the 40.0 GiB",
        ),
        ({"others": 60.0}, "sleeps while the trainer steps: beside the 60.0 GiB of the other processes on its GPU"),
        ({"others": 60.0, "wanted": "yes"}, "as --services.generator.sleep says"),
        ({"others": 60.0, "wanted": "no"}, "it does not sleep: --services.generator.sleep is no"),
        ({"others": 60.0, "no_sleep": IN_FLIGHT}, f"it does not sleep: {IN_FLIGHT}"),
        ({"card": None}, "--launcher.gpu_memory_gib says"),
    ],
)
def test_the_reason_is_a_sentence(values: dict[str, Any], words: str) -> None:
    assert words in decide(**values)[2]
