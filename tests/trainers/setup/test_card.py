"""What a GPU holds in each phase, from the memory of its processes."""

from __future__ import annotations

from trainers.setup.card import GIB, Memory, cards
from trainers.setup.placement import Process

ENGINE, TRAINER = Process(service="generator", gpu=0), Process(service="trainer", gpu=0)
OTHER = Process(service="trainer", rank=1, gpu=1)
STEPS = Memory(
    always={"state": 16 * GIB}, phases=({"activations": 8 * GIB}, {"published": 4 * GIB}), resting=12.0 * GIB
)
AWAKE = Memory(always={"weights": 6 * GIB, "cache": 20 * GIB})
SLEEPS = Memory(always={"weights": 6 * GIB, "cache": 20 * GIB}, resting=1.0 * GIB)


def test_processes_that_take_turns_need_the_larger_phase() -> None:
    shared, apart = cards([(ENGINE, SLEEPS), (TRAINER, STEPS), (OTHER, STEPS)])
    assert shared.phases == {
        "rollouts": {"generator": 26.0 * GIB, "trainer": 12.0 * GIB},
        "training": {"generator": 1.0 * GIB, "trainer": 24.0 * GIB},
    }
    assert (shared.worst, apart.worst) == (38.0 * GIB, 24.0 * GIB)
    assert str(shared) == (
        "GPU 0: rollouts 38.0 = generator 26.0 + trainer 12.0; training 25.0 = generator 1.00 + trainer 24.0"
    )
    assert str(apart) == "GPU 1: 24.0 = trainer 24.0"


def test_an_engine_that_keeps_its_cache_is_added_to_the_rest() -> None:
    (card,) = cards([(ENGINE, AWAKE), (TRAINER, STEPS)])
    assert card.worst == 50.0 * GIB and list(card.phases) == ["all"]


def test_memory_that_is_not_returned_counts_in_both_phases() -> None:
    reference = Process(service="ref_model", gpu=0), Memory(always={"weights": 3 * GIB})
    (card,) = cards([(ENGINE, SLEEPS), (TRAINER, STEPS), reference])
    assert [phase["ref_model"] for phase in card.phases.values()] == [3.0 * GIB] * 2


def test_unknown_processes_and_those_on_a_cpu_are_no_cards() -> None:
    assert cards([(ENGINE, None), (TRAINER, None), (Process(service="envs"), Memory())]) == []
