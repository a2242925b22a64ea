"""The check of leaks: no episode leaves resources behind, however it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from forge_env.check.context import LIMITS, CheckContext, CheckFailed
from forge_env.check.direct_calls import cancel
from forge_env.check.resources import Resources, private_temp_folder
from forge_env.check.strategies import Strategy, StrategyAgent, actions_in_order, tool_calls, try_every_tool
from forge_env.core.episode import Turn
from forge_env.core.errors import PolicyError
from forge_env.core.protocols import Agent, Conversation
from forge_env.core.types import Action, ToolSpec
from forge_env.rollout.rollout import run_episode

SETTLE_SECONDS = 1.0  # how long threads and processes that were told to end may take
POLL_SECONDS = 0.1
CANCEL_SECONDS = 5.0  # how long a cancelled episode may take to close its environment


async def leaks(context: CheckContext) -> str:
    """Episodes that end, fault or are cancelled leave nothing behind once the factory is closed.

    What is opened once and kept for the whole process is no leak, so only what grows in two rounds fails the check.
    """
    with private_temp_folder() as folder:
        if await _leaked(context, folder) and (leaked := await _leaked(context, folder)):
            raise CheckFailed(f"after all episodes and the environment are closed there are {'; '.join(leaked)}")
    return "nothing is left after episodes that ended, faulted or were cancelled"


async def _leaked(context: CheckContext, folder: Path) -> list[str]:
    """Play one round of episodes; returns what there is more of than before, one phrase for each kind."""
    before = Resources.now(folder)
    async with context.factory:
        await _play_round(context)
    deadline = time.monotonic() + SETTLE_SECONDS
    while (leaked := Resources.now(folder).more_than(before)) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    return leaked


async def _play_round(context: CheckContext) -> None:
    """Play episodes that end in each possible way."""
    for task in context.tasks[:2]:
        for strategy in context.strategies:
            await context.episode(task, strategy)
    await context.episode(context.tasks[0], actions_in_order(tool_calls(("no_such_tool", None))))
    await _run_episode(context, FailingAgent())
    for when, agent in (
        ("at its start", None),
        ("in a turn", HangingAgent(try_every_tool, turns=0)),
        ("in a step", HangingAgent(try_every_tool, turns=1)),
    ):
        await _cancel_episode(context, when, agent)


class FailingAgent:
    """An agent with a policy that fails after one turn: for the environment, the episode just ends."""

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if conversation.turns:
            raise PolicyError("the policy is gone")
        return await StrategyAgent(try_every_tool).act(conversation, tools)


class HangingAgent:
    """An agent that takes some turns and then never answers.

    Attributes:
        reached: set when its last turn is about to reach the environment.
    """

    def __init__(self, strategy: Strategy, *, turns: int) -> None:
        self._agent = StrategyAgent(strategy)
        self._turns = turns
        self.reached = asyncio.Event()

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        taken = len(conversation.turns)
        if taken + 1 >= self._turns:
            self.reached.set()
        if taken >= self._turns:
            await asyncio.Event().wait()
        return await self._agent.act(conversation, tools)


async def _cancel_episode(context: CheckContext, when: str, agent: HangingAgent | None) -> None:
    """Cancel an episode when its agent has reached its last turn; without an agent, at the first await."""
    running = asyncio.create_task(_run_episode(context, agent or StrategyAgent(try_every_tool)))
    if agent is None:
        await asyncio.sleep(0)
    else:
        reached = asyncio.create_task(agent.reached.wait())
        await asyncio.wait({running, reached}, return_when=asyncio.FIRST_COMPLETED)
        await cancel(reached)
    if not await cancel(running, CANCEL_SECONDS):
        raise CheckFailed(
            f"an episode that is cancelled {when} does not end: let asyncio.CancelledError pass, and set a time limit "
            "for what close() waits for"
        )


async def _run_episode(context: CheckContext, agent: Agent) -> None:
    await run_episode(
        context.factory, agent, context.tasks[0], seed=context.seed, episode_id="check/broken", limits=LIMITS
    )
