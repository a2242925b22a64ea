"""An episode with a remote client as its agent: `run_episode` plays it here, and waits for the client's messages.

So it has the limits, the faults and the record of any other episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import ForgeError, PolicyError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Action, EpisodeLimits, Message, Task, ToolSpec
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode

END_SECONDS = 10.0
"""How long a step may still run after its client has gone, before it is cancelled."""


class EpisodeOver(Exception):
    """A message came after the end of the episode."""


class EpisodeFault(Exception):
    """The episode has ended without a reward.

    Args:
        reason: why, in one sentence.
        is_env: whether its environment is to blame, and not the machinery.
    """

    def __init__(self, reason: str, *, is_env: bool) -> None:
        super().__init__(reason)
        self.is_env = is_env


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the environment answers to a message of the client, or shows at the beginning."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    reward: float
    """Of this step; of the last one whatever the earlier ones have not given of the episode's reward."""
    is_error: bool
    """Whether a tool call of this step has failed."""
    episode: Episode | None
    """The record, once the episode is over."""


class Client:
    """The agent: hands the conversation to whoever waits for it, and waits for an answer."""

    def __init__(self, answer_seconds: float) -> None:
        self.answer_seconds = answer_seconds
        self.observation: tuple[Message, ...] = ()
        self.tools: Sequence[ToolSpec] = ()
        self.turn: Turn | None = None
        """The last one."""
        self.request = asyncio.Event()
        """Set while an answer is awaited."""
        self._answer: asyncio.Future[Action]
        self._leave_reason = ""

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        """Wait for the client's next message."""
        if self._leave_reason:
            raise PolicyError(self._leave_reason)
        self.observation, self.tools = conversation.observation, tools
        self._answer = asyncio.get_running_loop().create_future()
        self.request.set()
        try:
            action = await self._answer
        finally:
            self.request.clear()
        self.turn = Turn(
            kind="text", observation=conversation.observation, message=action.message, tool_calls=action.tool_calls
        )
        return self.turn, action

    def answer(self, action: Action) -> None:
        self.request.clear()
        self._answer.set_result(action)

    def leave(self, why: str) -> None:
        """Give no further answer, which ends the episode as a fault."""
        self._leave_reason = why
        if self.request.is_set():
            self.request.clear()
            self._answer.set_exception(PolicyError(why))


class ClientEpisode:
    """One episode; its messages are taken one after another.

    Args:
        factory: of the environment, open.
        task: of the episode.
        seed: of the episode.
        episode_id: of the episode.
        limits: of the episode.
        idle_seconds: how long the client may take for a message.
        on_end: called with the record, however the episode ends.
    """

    def __init__(
        self,
        factory: EnvFactory,
        task: Task,
        *,
        seed: int,
        episode_id: str,
        limits: EpisodeLimits,
        idle_seconds: float,
        on_end: Callable[[Episode], None],
    ) -> None:
        self.id, self.task, self.seed = episode_id, task, seed
        self.steps = 0
        self._client = Client(idle_seconds)
        self._reward_so_far = 0.0
        self._lock = asyncio.Lock()
        self._on_end = on_end
        self._running = asyncio.create_task(self._play(factory, limits), name=f"episode {episode_id}")

    @property
    def has_ended(self) -> bool:
        """Whether it is over, as a fault or otherwise."""
        return self._running.done()

    async def begin(self) -> Shown:
        """Return what the environment shows first."""
        async with self._lock:
            return await self._next_step()

    async def answer(self, action: Action) -> Shown:
        """Take a message of the client, and return what the environment answers."""
        async with self._lock:
            await self._settle()  # a step may still run after its client has given up waiting
            if self.has_ended:
                raise EpisodeOver(f"the episode {self.id} is over, and takes no further message")
            self.steps += 1
            self._client.answer(action)
            return await self._next_step()

    async def end(self, why: str) -> None:
        """End it as a fault, unless it is over."""
        if not self._running.done():
            self._client.leave(why)
            await asyncio.wait({self._running}, timeout=END_SECONDS)
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _play(self, factory: EnvFactory, limits: EpisodeLimits) -> Episode:
        episode = await run_episode(
            factory, self._client, self.task, seed=self.seed, episode_id=self.id, group_id=self.task.id, limits=limits
        )
        self._on_end(episode)
        return episode

    async def _settle(self) -> None:
        """Wait until the next message is awaited, or the episode is over."""
        request = asyncio.create_task(self._client.request.wait())
        try:
            await asyncio.wait({request, self._running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            request.cancel()

    async def _next_step(self) -> Shown:
        await self._settle()
        turn = self._client.turn
        has_error = turn is not None and any(use.error for use in turn.tool_uses)
        if not self._running.done():
            reward = 0.0 if turn is None else turn.reward
            self._reward_so_far += reward
            messages, tools = self._client.observation, self._client.tools
            return Shown(messages=messages, tools=tools, reward=reward, is_error=has_error, episode=None)
        episode = self._episode()
        assert episode.reward is not None
        reward = episode.reward - self._reward_so_far
        return Shown(
            messages=episode.tail, tools=self._client.tools, reward=reward, is_error=has_error, episode=episode
        )

    def _episode(self) -> Episode:
        if self._running.cancelled():
            raise EpisodeFault("the server has ended this session", is_env=False)
        if (error := self._running.exception()) is not None:
            if not isinstance(error, ForgeError):
                raise error
            raise EpisodeFault(str(error), is_env=False)
        episode = self._running.result()
        if not episode.outcome.is_valid:
            raise EpisodeFault(f"{episode.outcome}: {episode.error}", is_env=episode.outcome != "infra_fault")
        return episode
