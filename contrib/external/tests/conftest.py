"""Set-up of the tests of programs: an endpoint for the agent that asks one, and a program that the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from contrib.chat.tests.conftest import _chat_server, chat_server  # noqa: F401
from contrib.external.tests.external_playing import Check, Play, Playing, opened, playing, says
from contrib.records.audit import audit, open_decoder
from forge_env.core.episode import Episode, write_jsonl
from forge_env.rollout.factory import EnvFactory


@pytest.fixture
async def factory(tmp_path: Path) -> AsyncIterator[EnvFactory]:
    """An open environment, whose programs wait for what the test does in their place."""
    async with opened(folder=tmp_path) as env_factory:
        yield env_factory


@pytest.fixture
def play(factory: EnvFactory, tiny_model: Path, tmp_path: Path) -> Play:
    """Starts an episode whose program the test plays; its model says these messages, unless there is another agent."""

    def start(*messages: Any, agent: Any = None, **options: Any) -> AbstractAsyncContextManager[Playing]:
        return playing(factory, agent or says(tiny_model, *messages), tmp_path, **options)

    return start


@pytest.fixture
def check(tiny_model: Path, tmp_path: Path) -> Check:
    """Checks all that can be checked of a record: its rules, its digests, and that its tokens say its messages."""

    def check(episode: Episode) -> None:
        file = tmp_path / "episodes.jsonl"
        write_jsonl(file, [episode])
        found = audit(file, open_decoder(tiny_model))
        assert (found.problems, found.episodes, found.decoded_turns) == ([], 1, len(episode.turns))
        assert Episode.from_json(episode.to_json()) == episode

    return check
