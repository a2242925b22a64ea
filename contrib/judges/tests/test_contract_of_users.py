"""The contract of episodes for what a user does: its methods never overlap, and its edits are its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contrib.judges.users import ScriptedUser, UserTurn
from contrib.judges.users.conversation import ConversationEnv
from forge_env.core.tools import reward
from forge_env.core.types import Message, Task
from tests.forge_env.rollout.test_overlap import Recorded, close_waits
from tests.forge_env.rollout.test_own_copies import TASK, edits_reach_one_episode, play


class Asked(Recorded, ConversationEnv):
    """Its user is itself, and blocks."""

    def make_user(self, task: Task) -> Any:
        return self

    def reply(self, messages: list[Message]) -> UserTurn:
        self.meet("user")
        return UserTurn(text="Well?", done=len(messages) > 4)


class AskedInThread(Asked):
    async def reply(self, messages: list[Message]) -> UserTurn:  # type: ignore[override]
        return await asyncio.to_thread(super().reply, messages)


class AskedOverlapping(Asked):
    allows_overlap = True


@pytest.mark.parametrize("kind", [Asked, AskedInThread, AskedOverlapping])
async def test_close_waits_for_the_user_whose_episode_was_cancelled(kind: type[Asked]) -> None:
    await close_waits(kind, "user")


def user_edits(messages: list[Message], task: Task) -> str | None:
    for message in messages:
        message["content"] += "*"
    task.metadata["deck"].pop()
    return None if len(messages) > 3 else f"{task.metadata['deck']}"


class UserEdits(ConversationEnv):
    user = ScriptedUser(user_edits)

    @reward
    def right(self) -> float:
        return float(all("*" not in message["content"] for message in self.messages))


def test_what_a_user_edits_in_place_is_of_one_episode() -> None:
    edits_reach_one_episode(UserEdits, "Hi")


def test_a_user_is_given_copies_of_the_messages() -> None:
    class Shouts:
        async def reply(self, messages: list[Message]) -> UserTurn:
            messages[0]["content"] = messages[0]["content"].upper()
            return UserTurn(text="bye", done=True)

    class Shop(ConversationEnv):
        user = Shouts()

    episode = play(Shop, TASK)[0]
    assert episode.messages[0]["content"] == "Hi" and not episode.error
