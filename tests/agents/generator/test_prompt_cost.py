"""The cost of a prompt's token is the slope of the steps' seconds over their prompt tokens."""

from __future__ import annotations

import random

import pytest

from agents.generator.prompt_cost import PromptCost


def steps(cost: PromptCost, count: int, per_token: float, *, most: int = 16384, seed: int = 0) -> None:
    draw = random.Random(seed)
    for _ in range(count):
        tokens = draw.choice([0, 0, 0, draw.randint(0, most)])
        cost.step(tokens, 0.008 * draw.uniform(0.9, 1.1) + per_token * tokens)


@pytest.mark.parametrize("per_token", [3e-6, 4e-5])
def test_it_is_found_among_steps_that_compute_no_prompt(per_token: float) -> None:
    cost = PromptCost()
    cost.step(100, 30.0)  # compiles
    assert cost.seconds is None
    steps(cost, 2000, per_token)
    assert cost.seconds == pytest.approx(per_token, rel=0.1)


def test_it_follows_the_engine() -> None:
    cost = PromptCost()
    steps(cost, 1000, 3e-6)
    steps(cost, 5000, 4e-5, seed=1)
    assert cost.seconds == pytest.approx(4e-5, rel=0.1)


def test_without_prompts_it_is_not_known() -> None:
    cost = PromptCost()
    for _ in range(1000):
        cost.step(0, 0.01)
    assert cost.seconds is None


def test_what_noise_shows_of_it_is_not_believed() -> None:
    known = 0
    for seed in range(20):
        draw, cost = random.Random(seed), PromptCost()
        for _ in range(2000):
            cost.step(draw.randint(0, 100), draw.uniform(0.005, 0.015))
        known += cost.seconds is not None
    assert known <= 2


def test_times_that_fall_with_the_tokens_are_of_other_work() -> None:
    draw, cost = random.Random(0), PromptCost()
    for _ in range(2000):
        tokens = draw.randint(0, 100)
        cost.step(tokens, 1.0 - tokens / 1000)
    assert cost.seconds is None
