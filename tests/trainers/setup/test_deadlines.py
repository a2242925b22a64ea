"""Deadlines of a run: by the bytes at stake, and never below what is legal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.config import RunConfig, TrainingConfig
from trainers.settings.services import DeadlinesConfig
from trainers.settings.tasks import EnvConfig
from trainers.setup.plan import make_plan
from trainers.sft.config import SFT

BILLION = 10**9


def test_the_last_checkpoint_of_a_large_model_has_time_for_its_bytes() -> None:
    """The weights and moments of 8.19 billion parameters, 98 GB, over 100 MB a second take 983 s."""
    large = DeadlinesConfig().of(8_190_000_000)
    assert large.checkpoint > 983
    assert large.base < large.weights < large.checkpoint


@given(st.integers(0, 10**12), st.floats(1, 1e4), st.floats(1, 1e5))
def test_deadlines_grow_with_the_bytes(parameters: int, base: float, mib: float) -> None:
    settings = DeadlinesConfig(base_seconds=base, least_mib_per_second=mib)
    small, large = settings.of(parameters), settings.of(parameters + BILLION)
    assert base == small.base <= small.weights <= small.checkpoint
    assert large.weights - small.weights == pytest.approx(4 * BILLION / mib / 2**20, rel=1e-3)


seconds = st.floats(0.1, 1e5)


@given(seconds, seconds, seconds, seconds)
def test_patience_is_never_below_what_an_episode_or_a_hung_engine_may_take(
    step: float, scoring: float, stall: float, wanted: float
) -> None:
    config = RunConfig(
        env=EnvConfig(step_seconds=step, scoring_seconds=scoring),
        training=TrainingConfig(step_seconds=wanted),
        deadlines=DeadlinesConfig(stall_seconds=stall),
    )
    patience = make_plan(config, SFT).patience
    assert patience >= wanted
    assert patience > max(2 * step + scoring, stall)
