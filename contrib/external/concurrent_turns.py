"""Plays the turns of an episode at once, where its environment asks for several, see `ConcurrentEnv`.

One task listens to the environment. Each turn has a task of its own: it awaits the agent's answer, records it, and
gives it to the environment. The tasks are a group: an exception of one cancels the others, and nothing outlives the
episode.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from contrib.external.sampled import ProgramTurn, TokenLogprob, length_of_prompt, renderer_of, token_logprobs
from forge_env.core.env import Env, StepResult
from forge_env.core.episode import Turn
from forge_env.core.errors import EnvError, TurnRefused, first_error
from forge_env.core.plain_value import own_action
from forge_env.core.protocols import ContextFull, Conversation
from forge_env.core.types import Action, Outcome, Task, ToolSpec
from forge_env.rollout.env_calls import StepResult as ReadStep
from forge_env.rollout.env_calls import read_step
from forge_env.rollout.episode_run import MAX_FULL_PROMPTS, End, EpisodeRun, LimitReached, cut_end


async def play_concurrently(run: EpisodeRun, env: ConcurrentEnv, task: Task, seed: int) -> End:
    await run.reset(env, task, seed)
    turns = _ConcurrentTurns(run, env)
    try:
        return await turns.play()
    except BaseExceptionGroup as errors:
        error = first_error(errors)
        if isinstance(error, _TooManyOthers):
            return Outcome.TRUNCATED, run.full_limit(run.conversations.current)
        raise error from None


class ConcurrentEnv(Env):
    """An environment with turns that run at once, each in a conversation of its own, see `NextTurn.context`.

    The rollout calls `reset`, which gives the first turn, and then `listen` for each further one, while the agent
    answers those before. It calls `answer`, `no_room`, `refused` or `counted` when the agent is done with a turn, also
    while `listen` runs. It never calls `step`: that is for callers who play one turn at a time.

    `max_turns` limits all turns together; a turn that exceeds it waits until the others are answered, and then ends the
    episode. The end of the episode cancels the turns that run; so does an exception of any of these methods.
    """

    _episode_player: ClassVar = staticmethod(play_concurrently)

    async def listen(self) -> StepResult:
        """Wait for the next turn or for the end of the episode; returns what `step` returns.

        A turn needs info["next"] with a conversation that is not being answered. A reward is given to the last turn of
        the Episode. The clocks of the episode run, so an environment that only waits for the agent does so within
        `forge_env.utils.deadlines.queued()`.
        """
        raise NotImplementedError(f"{type(self).__name__} has turns at once: define the coroutine method listen()")

    async def answer(self, context: int, action: Action, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Take the agent's answer to the turn that runs in a conversation, and the logprobs that a `ProgramTurn` asks
        for."""
        raise NotImplementedError(f"{type(self).__name__} has turns at once: define the coroutine method answer()")

    async def no_room(self, context: int, reason: str) -> None:
        """Note that the prompt of the turn in a conversation leaves no room for an answer; it is not a turn then."""
        raise NotImplementedError(f"{type(self).__name__} has turns at once: define the coroutine method no_room()")

    async def refused(self, context: int, reason: str) -> None:
        """Note that the agent cannot do what `NextTurn` asked of the turn in a conversation; it is not a turn then.

        By default the episode fails.
        """
        raise EnvError(reason)

    async def counted(self, context: int, tokens: int) -> None:
        """Take the number of tokens of a prompt, for `ProgramTurn.count`; it is not a turn."""
        raise NotImplementedError(f"{type(self).__name__} asks for counts: define the coroutine method counted()")


class _TooManyOthers(Exception):
    """The environment keeps asking for turns that the agent cannot give, or for auxiliary ones."""


class _ConcurrentTurns:
    """The turns of one episode that the agent is answering."""

    def __init__(self, run: EpisodeRun, env: ConcurrentEnv) -> None:
        self._run = run
        self._env = env
        self._running: set[asyncio.Task[None]] = set()
        self._answering: set[int] = set()
        """Numbers of the conversations that wait for the agent."""
        self._turns = 0
        """Turns of the work that were answered or are running."""
        self._others = 0
        """Requests that were not turns of the work: refused, or auxiliary."""
        self._reward = 0.0
        self._num_begins = 0
        self._last: tuple[int, str] | None = None
        """The number of the latest turn, whatever the order of the answers, and the limit that cut its answer off."""
        self._answer: tuple[float, Turn] | None = None
        """When the environment took the last answer, and its turn."""

    async def play(self) -> End:
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    return await self._listen(tasks)
                finally:
                    for task in self._running:
                        task.cancel()
        finally:
            # To the turn that comes last in the record: which answer came last depends on time.
            if turns := self._run.conversations.turns:
                turns[-1].reward += self._reward
            else:
                self._run.reward += self._reward

    async def _listen(self, tasks: asyncio.TaskGroup) -> End:
        """Begin the turn that the environment has asked for, and wait for the next one, again and again."""
        run, env = self._run, self._env
        while True:
            is_work = not run.conversations.current.auxiliary
            if is_work and self._turns >= run.limits.max_turns and self._running:
                await asyncio.wait(self._running)  # one of them may have no room, and is not a turn then
            if is_work and self._turns >= run.limits.max_turns:
                await run.notify_limit(env, "max_turns")
                return Outcome.TRUNCATED, "max_turns"
            if run.seconds_left <= 0:  # the environment blocked the event loop, so that no deadline could end it
                raise LimitReached("episode_seconds")
            self._begin(tasks)
            start = time.perf_counter()
            step = await run.call_env("step", read_step, env.listen)
            end = self._apply(step, start)
            if end is not None:
                return end

    def _begin(self, tasks: asyncio.TaskGroup) -> None:
        run = self._run
        conversation = run.conversations.current
        number = 0 if conversation.next_turn is None else conversation.next_turn.context
        if number in self._answering:
            raise EnvError(
                f"{type(self._env).__name__} asked for a turn of context {number}, whose last turn is being answered: "
                "turns that run at once have different contexts"
            )
        self._turns += not conversation.auxiliary
        self._num_begins += 1
        self._answering.add(number)
        if len(self._answering) > 1:
            run.info["turns_at_once"] = max(len(self._answering), run.info.get("turns_at_once", 0))
        # The environment sets its tools for each turn that it asks for.
        task = tasks.create_task(self._take_turn(self._num_begins, number, conversation, self._env.tools))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _take_turn(self, order: int, number: int, conversation: Conversation, tools: Sequence[ToolSpec]) -> None:
        run, start = self._run, time.perf_counter()
        asked = conversation.next_turn if isinstance(conversation.next_turn, ProgramTurn) else ProgramTurn()
        try:
            renderer = renderer_of(run.agent, asked) if asked.count or asked.logprobs else None
            if renderer is not None and asked.count:
                tokens = length_of_prompt(renderer, conversation, tools)
                self._answering.remove(number)
                self._turns -= not conversation.auxiliary
                conversation.observation = ()
                await run.call_env("counted", _nothing, self._env.counted, number, tokens)
                return
            turn, action = await run.act(conversation, tools)
        except ContextFull as reason:
            self._no_turn(number, conversation)
            run.note_full_prompt()
            await run.call_env("on_limit", _nothing, self._env.no_room, number, str(reason))
            return
        except TurnRefused as reason:
            self._no_turn(number, conversation)
            await run.call_env("refused", _nothing, self._env.refused, number, str(reason))
            return
        end = time.perf_counter()
        self._answering.remove(number)  # the environment may ask for the next one before `answer` has returned
        turn.policy_seconds = end - start
        run.record(conversation, turn)
        if turn.auxiliary:
            self._note_other()
        elif self._last is None or order > self._last[0]:
            self._last = order, run.cutting_limit(conversation, turn, action)
        logprobs = () if renderer is None else (token_logprobs(turn, renderer),)
        await run.call_env("step", _nothing, self._env.answer, number, own_action(action), *logprobs)
        self._answer = time.perf_counter(), turn
        turn.env_seconds += self._answer[0] - end

    def _no_turn(self, number: int, conversation: Conversation) -> None:
        """Take a turn back that the agent has not answered, though the episode goes on."""
        self._answering.remove(number)
        self._turns -= not conversation.auxiliary
        self._note_other()
        conversation.observation = ()

    def _note_other(self) -> None:
        self._others += 1
        if self._others > MAX_FULL_PROMPTS:
            raise _TooManyOthers from None

    def _apply(self, step: ReadStep, start: float) -> End | None:
        """Record what the environment says; returns the end of the episode, or None."""
        if self._answer is not None and self._answer[0] > start:
            # It has worked since that answer. Before, it may have waited for it.
            self._answer[1].env_seconds += time.perf_counter() - self._answer[0]
        self._reward += step.reward
        end = self._run.apply(step)
        return (self._last and cut_end(step, self._last[1])) or end


def _nothing(result: Any) -> None:
    """Read the result of a method that returns none."""
