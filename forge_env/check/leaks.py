"""The check of what is left behind, however an episode ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from forge_env.check.moves import Move, Player, calls, plays, probe
from forge_env.check.resources import Resources, own_temp_folder
from forge_env.check.subject import LIMITS, Failed, Subject, cancelled
from forge_env.core.episode import Turn
from forge_env.core.errors import PolicyError
from forge_env.core.protocols import Agent, Conversation
from forge_env.core.types import Action, ToolSpec
from forge_env.rollout.rollout import run_episode

SETTLE_SECONDS = 1.0  # for what has been told to end
POLL_SECONDS = 0.1
CANCEL_SECONDS = 5.0  # for a cancelled episode to close its environment


async def leaks(subject: Subject) -> str:
    """Whether episodes that end, fault or are cancelled leave anything behind once all is closed.

    What is opened once and kept for the whole process is no leak, so a finding is what grows a second time.
    """
    with own_temp_folder() as folder:
        if await _left(subject, folder) and (left := await _left(subject, folder)):
            raise Failed(f"after all episodes and the environment are closed there are {'; '.join(left)}")
    return "nothing is left after episodes that ended, faulted or were cancelled"


async def _left(subject: Subject, folder: Path) -> list[str]:
    before = Resources.now(folder)
    async with subject.factory:
        await _episodes(subject)
    give_up = time.monotonic() + SETTLE_SECONDS
    while (left := Resources.now(folder).left(before)) and time.monotonic() < give_up:
        await asyncio.sleep(POLL_SECONDS)
    return left


async def _episodes(subject: Subject) -> None:
    """One of every kind."""
    for task in subject.tasks[:2]:
        for move in subject.moves:
            await subject.episode(task, move)
    await subject.episode(subject.tasks[0], plays(calls(("no_such_tool", None))))
    await _run(subject, _Breaks())
    for when, agent in (
        ("at its start", None),
        ("in a turn", Stops(probe, turns=0)),
        ("in a step", Stops(probe, turns=1)),
    ):
        await _cancel(subject, when, agent)


class _Breaks:
    """An agent whose policy is gone after one turn: to the environment, an episode that just ends."""

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if conversation.turns:
            raise PolicyError("the policy is gone")
        return await Player(probe).act(conversation, tools)


class Stops:
    """An agent that takes some turns, and then says so and never goes on.

    Attributes:
        reached: set when the last of its turns is on its way to the environment.
    """

    def __init__(self, move: Move, *, turns: int) -> None:
        self._player = Player(move)
        self._turns = turns
        self.reached = asyncio.Event()

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        taken = len(conversation.turns)
        if taken + 1 >= self._turns:
            self.reached.set()
        if taken >= self._turns:
            await asyncio.Event().wait()
        return await self._player.act(conversation, tools)


async def _cancel(subject: Subject, when: str, agent: Stops | None) -> None:
    """Cancel an episode, where it first waits for anything when there is no agent that says when."""
    running = asyncio.create_task(_run(subject, agent or Player(probe)))
    if agent is None:
        await asyncio.sleep(0)
    else:
        reached = asyncio.create_task(agent.reached.wait())
        await asyncio.wait({running, reached}, return_when=asyncio.FIRST_COMPLETED)
        await cancelled(reached)
    if not await cancelled(running, CANCEL_SECONDS):
        raise Failed(
            f"an episode that is cancelled {when} does not end: let asyncio.CancelledError pass, and bound what "
            "close() waits for"
        )


async def _run(subject: Subject, agent: Agent) -> None:
    await run_episode(
        subject.factory, agent, subject.tasks[0], seed=subject.seed, episode_id="check/broken", limits=LIMITS
    )
