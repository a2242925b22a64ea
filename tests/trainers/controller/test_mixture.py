"""Which environment the next prompt is of: shares by groups and by tokens, and none that starves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.controller.ledger import Ledger, Prompt
from trainers.controller.mixture import Mixture


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(1, 300))
def test_each_environment_has_its_share_at_any_time(weights: list[float], count: int) -> None:
    mixture = Mixture(weights={str(i): weight for i, weight in enumerate(weights)})
    begun = [mixture.begin() for _ in range(count)]
    for env, weight in mixture.weights.items():
        indices = [index for name, index in begun if name == env]
        assert indices == list(range(len(indices)))
        # The divisor method of Jefferson, with at most one seat less than the share, and one more per rival.
        assert abs(len(indices) - count * weight / sum(weights)) <= len(weights)


def test_an_environment_without_weight_is_never_trained_on() -> None:
    mixture = Mixture(weights={"a": 1.0, "b": 0.0})
    assert {mixture.begin()[0] for _ in range(9)} == {"a"}


def test_shares_by_tokens_are_of_what_was_sampled() -> None:
    mixture, rng = Mixture(weights={"long": 1.0, "short": 1.0}, by="tokens"), random.Random(0)
    for _ in range(2000):
        env, _ = mixture.begin()
        mixture.finish(env, rng.randrange(300, 500) if env == "long" else rng.randrange(30, 50))
    assert mixture.metrics["share/long"] == pytest.approx(0.5, abs=0.02)
    assert mixture.counts["begun"]["short"] == pytest.approx(10 * mixture.counts["begun"]["long"], rel=0.1)


@pytest.mark.parametrize("by", ["groups", "tokens"])
def test_an_environment_of_which_nothing_comes_back_gets_its_share_and_no_more(by: str) -> None:
    mixture = Mixture(weights={"broken": 1.0, "sound": 1.0}, by=by)  # type: ignore[arg-type]
    for _ in range(200):
        env, _ = mixture.begin()
        if env == "sound":
            mixture.finish(env, 50)
    assert abs(mixture.counts["begun"]["broken"] - mixture.counts["begun"]["sound"]) <= 2
    assert mixture.metrics == {"share/broken": 0.0, "share/sound": 1.0}


def test_the_only_environment_has_no_metrics_and_the_numbers_of_its_prompts() -> None:
    ledger = Ledger()
    prompts = ledger.prompts()
    assert [ledger.prompt(next(prompts)) for _ in range(3)] == [Prompt("", i, i) for i in range(3)]
    assert ledger.mixture.metrics == {} == ledger.metrics
