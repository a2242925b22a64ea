"""Bodies that agents send: whatever JSON they hold, they are read or refused in one sentence."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contrib.common.http_server import RequestRefused
from contrib.external.gateway import parse_json
from contrib.external.scoring import Scorer
from contrib.external.served.requests import Wish, read_finish, read_wait, read_wish
from contrib.external.served.visit import Work
from forge_env.core.episode import Episode
from forge_env.core.types import EpisodeLimits, Task

LIMITS = EpisodeLimits()
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
LOWERED: Any = st.dictionaries(
    st.sampled_from(["max_turns", "max_tokens", "step_seconds", "episode_seconds"]), st.integers(-1, 9) | st.floats()
)
PROMPTS: Any = st.text(max_size=8) | st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]), "content": st.text(max_size=8)}),
    max_size=2,
)
WISHES = st.fixed_dictionaries(
    {},
    optional={
        "prompt": PROMPTS | VALUES,
        "target": VALUES,
        "metadata": VALUES,
        "id": st.text(max_size=8) | VALUES,
        "seed": st.integers(-1, 2**31) | VALUES,
        "limits": LOWERED | VALUES,
        "wait_seconds": st.integers(-1, 61) | VALUES,
    },
)
FINISHES = st.fixed_dictionaries({}, optional={"answer": VALUES, "reward": st.floats() | VALUES, "error": VALUES})


def sent(body: Any) -> Any:
    """A body as it arrives."""
    return parse_json(json.dumps(body).encode(), {})


def check(refusal: RequestRefused) -> None:
    assert refusal.status in (400, 413) and "\n" not in str(refusal) and str(refusal).isprintable()


@given(WISHES | st.dictionaries(st.text(max_size=8), VALUES, max_size=2))
def test_a_wish_is_read_or_refused(body: Any) -> None:
    try:
        wish = read_wish(sent(body), LIMITS)
    except RequestRefused as refusal:
        check(refusal)
        return
    assert isinstance(wish, Wish)
    for name in ("max_turns", "max_tokens", "step_seconds", "episode_seconds"):
        assert 0 < getattr(wish.limits, name) <= getattr(LIMITS, name)
        assert type(getattr(wish.limits, name)) is type(getattr(LIMITS, name))
    task = Task(prompt=wish.prompt or (), target=wish.target, metadata=wish.metadata, id=wish.id)
    episode = Episode(task=task, reward=1.0, id=f"{task.id}/0", seed=wish.seed or 0)
    assert Episode.from_json(episode.to_json()).task == task


@given(FINISHES | st.dictionaries(st.text(max_size=8), VALUES, max_size=2))
def test_a_finish_is_read_or_refused(body: Any) -> None:
    try:
        work = read_finish(sent(body), Scorer(reward_range=(0.0, 10.0)))
    except RequestRefused as refusal:
        check(refusal)
        return
    if isinstance(work, Work):
        assert work.reward is not None and 0 <= work.reward <= 10
    else:
        assert work.strip()


@given(st.fixed_dictionaries({}, optional={"wait_seconds": st.floats() | st.integers() | VALUES}))
def test_a_wait_is_bounded(body: Any) -> None:
    try:
        assert 0 <= read_wait(sent(body)) <= 60
    except RequestRefused as refusal:
        check(refusal)
