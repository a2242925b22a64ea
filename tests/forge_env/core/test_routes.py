"""Routes: packed, cut, written and read back; and what turns and rows make of them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode, read_jsonl, write_jsonl
from forge_env.core.routes import Routes
from forge_env.core.turn import Turn, digest
from forge_env.core.types import Task


def experts(tokens: int, kind: str = "uint8", seed: int = 0) -> np.ndarray:
    most = np.iinfo(kind).max
    return np.random.default_rng(seed).integers(0, most, (tokens, 3, 2), endpoint=True).astype(kind)


@given(
    start=st.integers(0, 50), tokens=st.integers(0, 40), kind=st.sampled_from(["uint8", "uint16"]), seed=st.integers(0)
)
def test_what_was_packed_comes_back(start: int, tokens: int, kind: str, seed: int) -> None:
    array = experts(tokens, kind, seed)
    routes = Routes.of(start, array)
    assert (routes.start, routes.tokens, routes.end) == (start, tokens, start + tokens)
    assert routes.experts.dtype == array.dtype and (routes.experts == array).all()
    assert Routes.of_text(routes.text) == routes == pickle.loads(pickle.dumps(routes))


@given(start=st.integers(0, 20), tokens=st.integers(0, 20), first=st.integers(0, 50), length=st.integers(0, 50))
def test_a_part_has_the_tokens_of_both(start: int, tokens: int, first: int, length: int) -> None:
    routes = Routes.of(start, experts(tokens))
    part = routes.within(first, first + length)
    wanted = [at for at in range(start, start + tokens) if first <= at < first + length]
    assert part.tokens == len(wanted)
    if wanted:
        assert list(range(part.start, part.end)) == wanted
        assert (part.experts == routes.experts[wanted[0] - start : wanted[-1] - start + 1]).all()


@pytest.fixture
def episode() -> Episode:
    """Two turns in a row of nine tokens; the second has the last token of the first, too."""
    first = Turn(
        kind="sampled", observation=(), message={"role": "assistant", "content": "a"}, prompt_ids=(1, 2, 3),
        token_ids=(4, 5), logprobs=(-0.5, -0.25), versions=((0, 2),), starts_row=True, context_digest=digest((1, 2, 3)),
        routes=(Routes.of(0, experts(4)),),
    )  # fmt: skip
    second = replace(
        first, prompt_ids=(6, 7), token_ids=(8, 9), starts_row=False, context_digest=digest((1, 2, 3, 4, 5, 6, 7)),
        routes=(Routes.of(4, experts(4, seed=1)),),
    )  # fmt: skip
    return Episode(task=Task(prompt=(), id="t"), turns=(first, second), reward=1.0, id="e")


def test_a_row_has_the_routes_of_its_turns(episode: Episode) -> None:
    (row,) = episode.rows
    assert row.routes == (*episode.turns[0].routes, *episode.turns[1].routes)
    travelled = pickle.loads(pickle.dumps((row, episode)))
    assert travelled[0].routes == row.routes == travelled[1].rows[0].routes and travelled[0] == row


def test_an_episode_is_written_with_its_routes_or_without(episode: Episode, tmp_path: Path) -> None:
    assert Episode.from_json(episode.to_json()) == episode
    for routes in (True, False):
        write_jsonl(tmp_path / "episodes.jsonl", [episode], routes=routes)
    whole, lean = read_jsonl(tmp_path / "episodes.jsonl")
    assert whole == episode and not any(turn.routes for turn in lean.turns)
    assert lean == replace(episode, turns=tuple(replace(turn, routes=()) for turn in episode.turns))


def test_an_episode_without_routes_says_nothing_of_them(episode: Episode) -> None:
    plain = replace(episode, turns=tuple(replace(turn, routes=()) for turn in episode.turns))
    assert "routes" not in plain.to_json() and Episode.from_json(plain.to_json()) == plain
