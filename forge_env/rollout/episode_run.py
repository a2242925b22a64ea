"""The state of one episode while it runs, and its turns one after another."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from forge_env.core.env import Env
from forge_env.core.episode import Turn
from forge_env.core.errors import EnvError, ForgeError, PolicyError, TemplateError, TurnRefused, first_error
from forge_env.core.plain_value import own_action, own_task
from forge_env.core.protocols import (
    ANSWER_SECONDS,
    Agent,
    ContextFull,
    Conversation,
    EndpointFull,
    NextTurn,
)
from forge_env.core.types import CONTEXT, Action, EpisodeLimits, Outcome, Task, ToolSpec
from forge_env.core.user_code import NOT_CAUGHT, describe, error_text, guard
from forge_env.rollout.compaction import make_room
from forge_env.rollout.conversations import Conversations
from forge_env.rollout.env_calls import (
    EnvTimeout,
    StepResult,
    call_env,
    is_default,
    read_on_limit,
    read_reset,
    read_step,
)
from forge_env.utils.deadlines import Deadline
from forge_env.utils.threads import call_alone, invoke

T = TypeVar("T")
End = tuple[Outcome, str]
"""Outcome of an episode, and what ended it, see `Episode.ended_by`."""
MAX_FULL_PROMPTS = 1000
"""Ends an episode if its environment keeps asking prompts that leave no room for an answer, or auxiliary ones."""


class LimitReached(Exception):
    """The environment has used up a time limit, "episode_seconds" or "step_seconds", in `part`."""

    def __init__(self, limit: str, part: str = "step") -> None:
        self.limit = limit
        self.part = part


class EpisodeRun:
    """The state of one episode while it runs."""

    __slots__ = (
        *("agent", "conversations", "info", "last_turn", "limits", "reward", "rewards", "seconds_left"),
        *("since", "waits_for"),
    )

    def __init__(self, agent: Agent, conversations: Conversations, limits: EpisodeLimits) -> None:
        self.agent = agent
        self.conversations = conversations
        self.limits = limits
        self.rewards: dict[str, float] = {}
        self.reward = 0.0
        """Reward that was given before the first turn; any other reward belongs to a turn."""
        self.last_turn: Turn | None = None
        self.info: dict[str, Any] = {}
        self.waits_for, self.since = "construct", time.monotonic()
        """What is under way, "act" of the agent or a method of the environment, and since when."""
        self.seconds_left = limits.episode_seconds
        """What is left of the episode's time, which runs only in the environment, not while the agent answers."""

    async def play(self, env: Env, task: Task, seed: int) -> End:
        await self.reset(env, task, seed)
        turns = full_prompts = 0
        while turns < self.limits.max_turns:
            if self.seconds_left <= 0:  # the environment blocked the event loop, so that no deadline could end it
                raise LimitReached("episode_seconds")
            start_time = time.perf_counter()
            try:
                turn, action = await self.act(self.conversations.current, env.tools)
            except ContextFull as full:
                if (reason := await make_room(self, env.tools, str(full))) is None:
                    continue
                full_prompts += 1
                if full_prompts > MAX_FULL_PROMPTS:
                    return Outcome.TRUNCATED, self.full_limit(self.conversations.current)
                end = await self._handle_full_prompt(env, reason)
                if end is not None:
                    return end
                continue
            turns += 1
            end = await self._step(env, turn, action, time.perf_counter() - start_time)
            if end is not None:
                return end
        await self.notify_limit(env, "max_turns")
        return Outcome.TRUNCATED, "max_turns"

    async def reset(self, env: Env, task: Task, seed: int) -> None:
        options = {"task": own_task(task), "limits": self.limits}
        reset = await self.call_env("reset", read_reset, env.reset, seed=seed, options=options)
        self.conversations.observe(reset.observation, reset.next_turn)
        self.info |= reset.info

    async def notify_limit(self, env: Env, limit: str) -> None:
        """Tell an environment which limit has ended the episode. An error there does not change the episode."""
        if is_default(env, "on_limit"):
            return
        try:
            with guard("on_limit"):
                await Deadline(self.limits.step_seconds).run(invoke(env.on_limit, limit))
        except ForgeError as error:
            self.info["on_limit_error"] = error_text(error)

    async def _handle_full_prompt(self, env: Env, reason: str) -> End | None:
        """End the episode, as the next prompt leaves no room to answer, unless its environment continues.

        Returns:
            The end of the episode; None if it continues.
        """
        step = await self.call_env("on_limit", read_on_limit, env.on_limit, "max_tokens", reason)
        if step is None:
            return Outcome.TRUNCATED, self.full_limit(self.conversations.current)
        self.note_full_prompt()
        if self.last_turn is None:
            self.reward += step.reward
        else:
            self.last_turn.reward += step.reward
        return self.apply(step)

    def note_full_prompt(self) -> None:
        """Record that a prompt left no room for an answer, after this number of turns."""
        self.info.setdefault("full_contexts", []).append(len(self.conversations.turns))

    def full_limit(self, conversation: Conversation) -> str:
        """Return the limit that leaves no more room in a conversation: an agent lowers `max_tokens` to its context."""
        if conversation.endpoint_is_full:
            return CONTEXT
        if conversation.max_tokens == self.limits.max_tokens:
            return "max_tokens"
        self.info["context_tokens"] = conversation.max_tokens
        return CONTEXT

    def time_limit_outcome(self, env: Env, name: str, end: LimitReached) -> tuple[Outcome, str, str]:
        """Return the outcome of an episode that used up a time limit, what ended it, and why it has no reward."""
        limit = end.limit
        has_acted = bool(self.conversations.turns)  # before its first turn the model cannot be to blame
        if has_acted and env.time_spent_by == "model":
            return Outcome.TRUNCATED, limit, ""
        if limit == "step_seconds":
            return Outcome.ENV_FAULT, "", f"{end.part} took longer than {self.limits.step_seconds:g} s"
        seconds = f"{self.limits.episode_seconds:g} s of episode_seconds"
        return Outcome.TIMEOUT, limit, f"{name} and the services that it calls used up the {seconds}"

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        """Await the agent's answer. The episode's time does not run; the agent has a deadline of its own, if any."""
        if conversation.next_turn is not None:
            self._check_agent(conversation.next_turn)
        self.waits_for, self.since = "act", time.monotonic()
        deadline: Deadline | None = None
        try:
            seconds = getattr(self.agent, "answer_seconds", ANSWER_SECONDS)
            deadline = Deadline(math.inf if seconds is None else seconds)
            with deadline:
                answer = await call_alone(self.agent.act, conversation, tools)
            return _read_answer(self.agent, answer)
        except NOT_CAUGHT as error:
            task = asyncio.current_task()
            if isinstance(error, GeneratorExit) or task is None or task.cancelling():
                raise
            # The episode was not cancelled: a task or future that the agent awaits was.
            raise PolicyError(describe("agent", error)) from error
        except BaseException as error:
            if deadline is not None and deadline.has_expired and isinstance(error, TimeoutError):
                raise PolicyError(f"{type(self.agent).__name__} did not answer within {seconds:g} s") from None
            cause = first_error(error)  # an agent with a TaskGroup raises an exception group
            if isinstance(cause, TemplateError) and conversation.next_turn is not None:
                raise EnvError(str(cause)) from cause  # these messages are the environment's; others may be fine
            conversation.endpoint_is_full = isinstance(cause, EndpointFull)
            if isinstance(cause, (ForgeError, ContextFull)):
                raise cause from None
            raise PolicyError(describe("agent", cause if cause.__traceback__ else error)) from error

    def _check_agent(self, next_turn: NextTurn) -> None:
        agent, name = self.agent, type(self.agent).__name__
        if next_turn.prompt is not None and not getattr(agent, "completes", False):
            raise EnvError(
                f"a plain prompt was to be completed, and {name} answers messages only: use an "
                "agent that samples tokens, vllm: or checkpoint:, or ask for a chat completion"
            )
        if next_turn.constraint is not None:
            if not getattr(agent, "constrains", False):
                raise TurnRefused(f"{name} does not hold its answers to a form: ask without one, or use another agent")
            self.info.setdefault("constraints", {})[next_turn.constraint.label] = next_turn.constraint.record

    async def _step(self, env: Env, turn: Turn, action: Action, policy_seconds: float) -> End | None:
        """Take one step; returns the end of the episode, or None."""
        start_time = time.perf_counter()
        conversation = self.conversations.current
        self.record(conversation, turn)
        cut_by = self.cutting_limit(conversation, turn, action)  # the step sets what is asked of the next turn
        step = await self.call_env("step", read_step, env.step, own_action(action))
        turn.reward, turn.tool_uses = step.reward, step.tool_uses
        turn.policy_seconds, turn.env_seconds = policy_seconds, time.perf_counter() - start_time
        end = self.apply(step)
        return (cut_end(step, cut_by) or end) if cut_by else end

    def record(self, conversation: Conversation, turn: Turn) -> None:
        """Record a turn, before the environment takes it: the answer is kept even if the environment fails on it."""
        turn.auxiliary = conversation.auxiliary
        conversation.turns.append(turn)
        conversation.observation = conversation.shorter = ()
        if not turn.is_summary:
            self.last_turn = turn

    def apply(self, step: StepResult) -> End | None:
        """Record the result of a step; returns the end of the episode, or None."""
        self.conversations.observe(step.observation, step.next_turn)
        if step.rewards:
            self.rewards |= step.rewards
        if step.info:
            self.info |= step.info
        if step.outcome is not None:
            return step.outcome, self._claimed_limit(step.ended_by) if step.outcome.is_attempt else ""
        if step.truncated:
            return Outcome.TRUNCATED, self._claimed_limit(step.ended_by)
        return (Outcome.SCORED, self._claimed_limit(step.ended_by)) if step.terminated else None

    def _claimed_limit(self, limit: str) -> str:
        """Return what ended an episode by the environment's word, which does not know the agent's context."""
        return self.full_limit(self.conversations.current) if limit == "max_tokens" else limit

    def cutting_limit(self, conversation: Conversation, turn: Turn, action: Action) -> str:
        """Return the limit that cut off an answer; "" for a whole answer."""
        if action.finish_reason != "length":
            return ""
        usage = action.usage or {}
        sampled = len(turn.token_ids) or usage.get("completion_tokens", 0)
        if not 0 < sampled < conversation.max_turn_tokens:
            return "max_turn_tokens"
        token_limit = None if conversation.next_turn is None else conversation.next_turn.max_tokens
        if token_limit is not None and sampled >= token_limit:
            return "environment"
        context_tokens = usage.get("prompt_tokens", conversation.max_tokens) + sampled
        if turn.kind == "text" and context_tokens < conversation.max_tokens:  # an endpoint has a limit of its own
            self.info["context_tokens"] = context_tokens
            return CONTEXT
        return self.full_limit(conversation)

    async def call_env(
        self, part: str, read: Callable[[Any], T], method: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> T:
        """Call the environment within the limits of the step and the episode, and check its result.

        Args:
            method: to call, with the other arguments; the code is inside of the gate of its instance.
        """
        self.waits_for, self.since = part, time.monotonic()
        step_seconds, seconds_left = self.limits.step_seconds, self.seconds_left
        limit = "step_seconds" if step_seconds < seconds_left else "episode_seconds"
        deadline = Deadline(step_seconds if step_seconds < seconds_left else seconds_left)
        try:
            result = await call_env(part, invoke(method, *args, **kwargs), deadline)
        except EnvTimeout:
            if not deadline.has_expired:
                raise
            raise LimitReached(limit, part) from None
        finally:
            self.seconds_left -= deadline.seconds_used
        with _reading(part):
            return read(result)


@cache
def _reading(part: str) -> guard:
    return guard(f"{part} returned what cannot be read")


def cut_end(step: StepResult, cut_by: str) -> End | None:
    """Return the end of an episode that ended with an answer that a limit had cut off; None for any other."""
    is_end = step.outcome is None and step.terminated and not step.truncated
    return (Outcome.TRUNCATED, cut_by) if cut_by and is_end else None


def _read_answer(agent: Agent, answer: Any) -> tuple[Turn, Action]:
    if isinstance(answer, tuple) and len(answer) == 2:
        turn, action = answer
        if isinstance(turn, Turn) and isinstance(action, Action):
            return turn, action
    raise PolicyError(f"{type(agent).__name__}.act returned {answer!r:.80}; it must return a Turn and an Action")
