"""DAPO's length penalty: the paper's numbers, and what it is on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import UserError
from trainers.dapo import OverlongPunishment

PAPER = OverlongPunishment(length=20480, buffer=4096 / 20480)


def test_the_papers_numbers() -> None:
    assert [PAPER(tokens) for tokens in (0, 16384, 18432, 20480, 30000)] == [0.0, 0.0, -0.5, -1.0, -1.0]


def test_a_line_within_the_buffer_and_the_penalty_as_its_unit() -> None:
    punishment = OverlongPunishment(length=100, buffer=0.5, penalty=3.0)
    assert [punishment(tokens) for tokens in (50, 60, 75, 100)] == pytest.approx([0.0, -0.6, -1.5, -3.0])
    assert [OverlongPunishment(length=10, buffer=0.0)(tokens) for tokens in (10, 11)] == [0.0, -1.0]


@given(st.integers(0, 500), st.integers(1, 300), st.floats(0, 1), st.floats(0, 5))
def test_a_longer_episode_never_gets_more(tokens: int, length: int, buffer: float, penalty: float) -> None:
    punishment = OverlongPunishment(length=length, buffer=buffer, penalty=penalty)
    assert -penalty <= punishment(tokens + 1) <= punishment(tokens) <= 0


@pytest.mark.parametrize("settings", [{"length": 0}, {"length": 9, "buffer": 1.5}, {"length": 9, "penalty": -1.0}])
def test_settings_out_of_range(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match="overlong"):
        OverlongPunishment(**settings)  # type: ignore[arg-type]
