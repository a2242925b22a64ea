"""Delivery: what is found, and that nothing is found where rounding, small steps or no steps at all look like it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from agents.generator.policy import Scored
from forge_env.core.errors import ServiceError
from tests.helpers.plans import plan_of
from trainers.run.delivery import PROMPT, Delivery, make_delivery

TOKENS = len(PROMPT) - 1
GPUS = "--trainer.with_gpus --generator.with_gpus"
ADAPTERS = "--model=Qwen/Qwen3-0.6B --lora.rank=8"
Engine = Callable[[list[np.ndarray]], np.ndarray]
"""What an engine says, of what the trainer's weights say exactly after each update, from the start on."""


def walk(updates: int, size: float, seed: int = 0) -> list[np.ndarray]:
    """Exact answers at the start and after each update; successive updates are alike, as with Adam."""
    rng = np.random.default_rng(seed)
    direction, answers = rng.normal(size=TOKENS), [rng.normal(-9.0, 2.0, TOKENS)]
    for _ in range(updates):
        direction = 0.7 * direction + 0.7 * rng.normal(size=TOKENS)
        answers.append(answers[-1] + size * direction)
    return answers


def stops_at(
    engine: Engine,
    answers: list[np.ndarray],
    *,
    noise: float = 0.0,
    bias: float = 0.0,
    delivery: Delivery | None = None,
) -> int:
    """The update at which a run stops, from 1; 0 if none does. Each answer of either side is off by some noise."""
    delivery, rng = delivery or Delivery(), np.random.default_rng(7)
    rounds = np.random.default_rng(3).normal(size=TOKENS) * bias
    rounded = [answer + rng.normal(size=TOKENS) * noise for answer in answers]
    delivery.note_update(-1, rounded[0])
    delivery.note_start(Scored("generator", tuple(answers[0] + rounds + rng.normal(size=TOKENS) * noise)))
    for update in range(1, len(answers)):
        delivery.note_update(update, rounded[update])
        said = engine(answers[: update + 1]) + rounds + rng.normal(size=TOKENS) * noise
        delivery.check(update, [Scored("generator", tuple(said))])
        try:
            delivery.refuse()
        except ServiceError:
            return update
    return 0


@pytest.mark.parametrize("size", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize(
    "engine",
    [
        lambda answers: answers[0],  # never delivered
        lambda answers: answers[-2],  # one version late
        lambda answers: answers[-1] + 50.0,  # garbage
        lambda answers: np.full(TOKENS, np.nan),
        lambda answers: answers[0] + 0.5 * (answers[-1] - answers[0]),  # half of the tensors
    ],
    ids=["base", "late", "garbage", "nan", "half"],
)
def test_what_did_not_arrive_stops_a_run_at_the_second_update(engine: Engine, size: float) -> None:
    assert stops_at(engine, walk(8, size), noise=1e-7) == 2


def test_what_stops_arriving_later_stops_a_run_two_updates_later() -> None:
    assert stops_at(lambda answers: answers[min(len(answers) - 1, 20)], walk(40, 0.05), noise=1e-6) == 22


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-6, 1e-4, 1e-2, 0.3])
@pytest.mark.parametrize(("precision", "noise"), [("float32", 1e-6), ("bfloat16", 0.02), ("bfloat16", 0.05)])
def test_what_arrives_never_stops_a_run_however_small_its_steps(precision: str, noise: float, size: float) -> None:
    for seed in range(3):
        delivery = Delivery(precision=precision)
        assert stops_at(lambda answers: answers[-1], walk(150, size, seed), noise=noise, delivery=delivery) == 0


def test_noise_that_grows_with_the_training_stops_no_run() -> None:
    rng = np.random.default_rng(0)

    def peaked(answers: list[np.ndarray]) -> np.ndarray:
        noise: np.ndarray = rng.normal(size=TOKENS) * 0.1 * len(answers) / 150
        return answers[-1] + noise

    for seed in range(6):
        delivery = Delivery(precision="bfloat16")
        assert stops_at(peaked, walk(150, 0.02, seed), noise=0.01, delivery=delivery) == 0


@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
def test_a_coarse_engine_may_lose_a_part_of_small_updates_and_not_all(share: float) -> None:
    def coarse(answers: list[np.ndarray]) -> np.ndarray:
        return answers[0] + share * (answers[-1] - answers[0])

    answers = walk(60, 0.1)
    for noise, bias in ((0.02, 0.0), (0.02, 0.3)):
        lossy = Delivery(precision="bfloat16", is_exact=False)
        assert stops_at(coarse, answers, noise=noise, bias=bias, delivery=lossy) == 0
    for noise, bias in ((0.02, 0.0), (0.02, 0.1)):
        lossy = Delivery(precision="bfloat16", is_exact=False)
        assert stops_at(lambda answers: answers[0], answers, noise=noise, bias=bias, delivery=lossy) > 0


def test_moves_below_the_noise_add_up_until_they_can_be_judged() -> None:
    """A step moves the answers as far as noise does; an engine without them is found all the same."""
    update = stops_at(lambda a: a[0], walk(100, 0.02, seed=2), noise=0.02, delivery=Delivery(precision="bfloat16"))
    assert 2 < update <= 100


def test_the_same_bits_are_found_at_the_second_update_below_the_noise() -> None:
    """An idle engine with the same weights says the same bits; with others it would not."""
    answers, rng = walk(8, 1e-3), np.random.default_rng(0)
    first = tuple(answers[0] + 0.02 * rng.normal(size=TOKENS))
    for is_exact, stop in ((True, 2), (False, 0)):
        delivery, stopped = Delivery(precision="bfloat16", is_exact=is_exact), 0
        delivery.note_update(-1, answers[0])
        delivery.note_start(Scored("generator", first))
        for update in range(1, 9):
            delivery.note_update(update, answers[update] + 0.02 * rng.normal(size=TOKENS))
            delivery.check(update, [Scored("generator", first)])
            try:
                delivery.refuse()
            except ServiceError:
                stopped = stopped or update
        assert stopped == stop


def test_a_trainer_without_steps_or_with_broken_weights_judges_nothing() -> None:
    still = [walk(0, 0.0)[0]] * 10
    assert stops_at(lambda answers: answers[0], still) == 0
    broken = [still[0], *[np.full(TOKENS, np.nan)] * 9]
    assert stops_at(lambda answers: answers[0], broken) == 0


@pytest.mark.parametrize(
    ("options", "is_exact"),
    [
        ("", True),
        (ADAPTERS, True),
        ("--training.dtype=bfloat16", False),
        ("--generator.with_gpus", False),
        (GPUS, True),
        (f"{GPUS} {ADAPTERS}", True),
        (f"{GPUS} {ADAPTERS} --lora.publish=merged", False),
        (f"{GPUS} --training.fp32_head", False),
        (f"{GPUS} --generator.engine.quantization=fp8_per_tensor", False),
        ("--model.size=tiny-moe", False),
    ],
)
def test_which_runs_are_exact(options: str, is_exact: bool) -> None:
    assert make_delivery(plan_of(options))._is_exact is is_exact


def test_an_engine_with_a_short_context_is_asked_a_shorter_prompt() -> None:
    assert Delivery(context=8).prompt == PROMPT[:7] and Delivery().prompt == PROMPT
    assert len(set(PROMPT)) == len(PROMPT) and max(PROMPT) < 64


def test_a_version_that_two_updates_have_replaced_meanwhile_is_not_judged() -> None:
    """A new engine may take so long to take a version over: the run goes on, and the engine takes the newest next."""
    delivery, answers = Delivery(), walk(3, 1e-3)
    for version, answer in zip((-1, 0, 1, 2), answers, strict=True):
        delivery.note_update(version, answer)
    assert delivery.check(0, [Scored("generator", tuple(answers[1]))]) == {}
