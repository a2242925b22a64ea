"""The rollout loop: an agent acts in an environment, turn by turn; the result is an Episode.

This is the only place where environments and agents meet. A bad rollout is data: a failure of the environment, the
agent or the machinery becomes the outcome of the episode, and is counted by reason. A bug in this loop still raises.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from forge_env.core.env import Env
from forge_env.core.episode import Episode, Group, Turn
from forge_env.core.errors import EnvError, ForgeError, InfraError, PolicyError, TemplateError, first_error
from forge_env.core.faults import SHRINK, FaultPolicy
from forge_env.core.protocols import ANSWER_SECONDS, Agent, ContextFull, Conversation, NextTurn
from forge_env.core.types import Action, EpisodeLimits, Outcome, Task
from forge_env.core.user_code import NOT_CAUGHT, describe, error_text, fault, guard
from forge_env.rollout.conversations import Conversations
from forge_env.rollout.env_calls import close_env, is_timeout
from forge_env.rollout.env_results import (
    StepResult,
    read_on_limit,
    read_reset,
    read_step,
    read_success,
    recorded_info,
)
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.repeated import repeated_tokens
from forge_env.utils.deadlines import Deadline, Place
from forge_env.utils.threads import invoke, invoker

T = TypeVar("T")
End = tuple[Outcome, str]
"""Outcome of an episode, and what ended it, see `Episode.ended_by`."""
_MAX_FULL_PROMPTS = 1000
"""Ends an episode whose environment keeps asking prompts that leave no room for an answer."""


async def run_group(
    factory: EnvFactory,
    agent: Agent,
    task: Task,
    *,
    count: int,
    seed: int,
    group_id: str,
    limits: EpisodeLimits | None = None,
    on_fault: FaultPolicy = SHRINK,
    env_options: Mapping[str, Any] | None = None,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Group:
    """Run `count` sibling episodes of one task concurrently; sibling i has seed `seed + i`.

    A sibling without a reward is run again with the same seed if `on_fault` refills. Each sibling runs, with its
    repetitions, within its own `around()`.
    """
    replaced: list[Episode] = []

    async def run_sibling(i: int) -> Episode:
        attempts = 0
        while True:
            suffix = f".{attempts}" if attempts else ""
            episode = await run_episode(
                factory,
                agent,
                task,
                seed=seed + i,
                episode_id=f"{group_id}/{i}{suffix}",
                group_id=group_id,
                limits=limits,
                env_options=env_options,
            )
            attempts += 1
            if not on_fault.runs_again(episode.outcome, attempts):
                return episode
            replaced.append(episode)

    async def run_within(i: int) -> Episode:
        with around():
            return await run_sibling(i)

    try:
        async with asyncio.TaskGroup() as task_group:
            siblings = [task_group.create_task(run_within(i)) for i in range(count)]
    except* Exception as errors:
        raise first_error(errors) from None
    episodes = tuple(sibling.result() for sibling in siblings)
    return Group(task=task, episodes=episodes, id=group_id, replaced=tuple(replaced))


async def run_episode(
    factory: EnvFactory,
    agent: Agent,
    task: Task,
    *,
    seed: int,
    episode_id: str,
    limits: EpisodeLimits | None = None,
    group_id: str = "",
    env_options: Mapping[str, Any] | None = None,
) -> Episode:
    """Run one episode to its end; without `limits`, under those that its environment declares.

    Returns:
        An Episode in every case: a fault of the environment or the machinery is an outcome, not an exception.
    """
    limits = limits or factory.episode_limits()
    run = _EpisodeRun(agent, Conversations(episode_id, seed, limits), limits)
    if env_options:
        run.info["env_options"] = recorded_info(env_options)
    env: Env | None = None
    outcome, error, ended_by = Outcome.SCORED, "", ""
    try:
        env = factory.make(**(env_options or {}))
        outcome, ended_by = await run.play(env, task, seed)
    except _LimitReached as end:
        assert env is not None
        outcome, ended_by, error = run.time_limit_outcome(env, factory.name, end)
        await run.notify_limit(env, end.limit)
    except EnvError as env_error:
        outcome, error = Outcome.ENV_FAULT, error_text(env_error)
    except InfraError as infra_error:
        outcome, error = Outcome.INFRA_FAULT, f"{type(infra_error).__name__}: {infra_error}"
    finally:
        await run.end_conversations()
        if env is not None:
            if close_error := await close_env(env, limits.step_seconds):
                run.info["close_error"] = close_error
            _add_final_info(env, run.info)
    turns = run.conversations.turns
    if repeated := repeated_tokens(turns):
        run.info["repeated_tokens"] = repeated
    reward = sum(turn.reward for turn in turns) + run.reward
    if outcome is Outcome.TRUNCATED and env is not None:
        reward += env.truncation_reward
    success = None
    if outcome.is_valid and env is not None:
        try:
            with guard("success"):
                success = read_success(env.success(reward))
        except EnvError as env_error:
            outcome, error, ended_by = Outcome.ENV_FAULT, error_text(env_error), ""
    return Episode(
        task=task,
        turns=turns,
        tail=tuple(run.conversations.current.observation),
        outcome=outcome,
        reward=reward if outcome.is_valid else None,
        rewards=run.rewards,
        id=episode_id,
        group_id=group_id,
        env=factory.name,
        seed=seed,
        error=error,
        success=success,
        ended_by=ended_by,
        info=run.info,
    )


def _add_final_info(env: Env, info: dict[str, Any]) -> None:
    """Add `env.final_info()` to the record. An error there does not change the episode."""
    try:
        with guard("final_info"):
            info |= recorded_info(env.final_info())
    except ForgeError as error:
        info["final_info_error"] = error_text(error)


class _LimitReached(Exception):
    """The environment has used up a time limit, "episode_seconds" or "step_seconds", in `part`."""

    def __init__(self, limit: str, part: str = "step") -> None:
        self.limit = limit
        self.part = part


class _EpisodeRun:
    """The state of one episode while it runs."""

    __slots__ = (
        *("act", "agent", "conversations", "info", "last_turn", "limits", "place", "reward", "rewards"),
        *("seconds_left", "step"),
    )

    def __init__(self, agent: Agent, conversations: Conversations, limits: EpisodeLimits) -> None:
        self.agent = agent
        self.conversations = conversations
        self.limits = limits
        self.place = Place()
        self.act: Callable[..., Awaitable[Any]] | None = None
        self.step: Callable[..., Awaitable[Any]]
        self.rewards: dict[str, float] = {}
        self.reward = 0.0
        """Reward that was given before the first turn; any other reward belongs to a turn."""
        self.last_turn: Turn | None = None
        self.info: dict[str, Any] = {}
        self.seconds_left = limits.episode_seconds
        """What is left of the episode's time, which runs only in the environment, not while the agent answers."""

    async def play(self, env: Env, task: Task, seed: int) -> End:
        """Play to the end."""
        options = {"task": task, "limits": self.limits}
        reset = await self._call_env("reset", read_reset, invoker(env.reset), seed=seed, options=options)
        self.step = invoker(env.step)
        self.conversations.observe(reset.observation, reset.next_turn)
        self.info |= reset.info
        turns = full_prompts = 0
        while turns < self.limits.max_turns:
            if self.seconds_left <= 0:  # the environment blocked the event loop, so that no deadline could end it
                raise _LimitReached("episode_seconds")
            started = time.perf_counter()
            conversation = self.conversations.current
            if conversation.asked is not None:
                self._check_agent(conversation.asked)
            try:
                turn, action = await self._act(conversation, env)
            except ContextFull as reason:
                full_prompts += 1
                if full_prompts > _MAX_FULL_PROMPTS:
                    return Outcome.TRUNCATED, "max_tokens"
                end = await self._handle_full_prompt(env, str(reason))
                if end is not None:
                    return end
                continue
            except TemplateError as error:
                if conversation.asked is None:
                    raise
                raise EnvError(str(error)) from error  # these messages are the environment's; others may be fine
            turns += 1
            end = await self._step(env, turn, action, time.perf_counter() - started)
            if end is not None:
                return end
        await self.notify_limit(env, "max_turns")
        return Outcome.TRUNCATED, "max_turns"

    async def end_conversations(self) -> None:
        """Tell an agent that wants to know that no turn will follow. An error there does not change the episode."""
        if (end := getattr(self.agent, "end_conversation", None)) is None:
            return
        for request_id in self.conversations.request_ids:
            try:
                with Deadline(self.limits.step_seconds, self.place):
                    await end(request_id)
            except Exception as error:
                self.info["end_conversation_error"] = describe("agent", error)

    async def notify_limit(self, env: Env, limit: str) -> None:
        """Tell an environment which limit has ended the episode. An error there does not change the episode."""
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
        step = await self._call_env("on_limit", read_on_limit, invoker(env.on_limit), "max_tokens", reason)
        if step is None:
            return Outcome.TRUNCATED, "max_tokens"
        self.info.setdefault("full_contexts", []).append(len(self.conversations.turns))
        if self.last_turn is None:
            self.reward += step.reward
        else:
            self.last_turn.reward += step.reward
        return self._apply(step)

    def time_limit_outcome(self, env: Env, name: str, end: _LimitReached) -> tuple[Outcome, str, str]:
        """Return the outcome of an episode that used up a time limit, what ended it, and why it has no reward."""
        limit = end.limit
        has_acted = bool(self.conversations.turns)  # before its first turn the model cannot be to blame
        if has_acted and env.time_spent_by == "model":
            return Outcome.TRUNCATED, limit, ""
        if limit == "step_seconds":
            return Outcome.ENV_FAULT, "", f"{end.part} took longer than {self.limits.step_seconds:g} s"
        seconds = f"{self.limits.episode_seconds:g} s of episode_seconds"
        return Outcome.TIMEOUT, limit, f"{name} and the services that it calls used up the {seconds}"

    async def _act(self, conversation: Conversation, env: Env) -> tuple[Turn, Action]:
        """Await the agent's answer. The episode's time does not run; the agent has a deadline of its own, if any.

        Raises:
            ContextFull, ForgeError: as the agent raises them.
            PolicyError: for whatever else it raises or returns, SystemExit included, with file and line.
        """
        deadline: Deadline | None = None
        try:
            seconds = getattr(self.agent, "answer_seconds", ANSWER_SECONDS)
            deadline = Deadline(math.inf if seconds is None else seconds, self.place)
            with deadline:
                if self.act is None:
                    self.act = invoker(self.agent.act)
                answer = await self.act(conversation, env.tools)
            return _read_answer(self.agent, answer)
        except NOT_CAUGHT as error:
            task = asyncio.current_task()
            if isinstance(error, GeneratorExit) or task is None or task.cancelling():
                raise
            # The episode was not cancelled: a task or future that the agent awaits was.
            raise PolicyError(describe("agent", error)) from error
        except BaseException as error:
            if deadline is not None and deadline.expired and isinstance(error, TimeoutError):
                raise PolicyError(f"{type(self.agent).__name__} did not answer within {seconds:g} s") from None
            cause = first_error(error)  # an agent with a TaskGroup raises an exception group
            if isinstance(cause, (ForgeError, ContextFull)):
                raise cause from None
            raise PolicyError(describe("agent", cause if cause.__traceback__ else error)) from error

    def _check_agent(self, next_turn: NextTurn) -> None:
        if next_turn.prompt is not None and not getattr(self.agent, "completes", False):
            raise EnvError(
                f"a plain prompt was to be completed, and {type(self.agent).__name__} answers messages only: use an "
                "agent that samples tokens, vllm: or checkpoint:, or ask for a chat completion"
            )

    async def _step(self, env: Env, turn: Turn, action: Action, policy_seconds: float) -> End | None:
        """Take one step; returns the end of the episode, or None."""
        started = time.perf_counter()
        # Record the turn first: the model's answer is kept even if the environment fails on it.
        conversation = self.conversations.current
        conversation.turns.append(turn)
        conversation.observation = ()
        self.last_turn = turn
        step = await self._call_env("step", read_step, self.step, action)
        turn.reward, turn.tool_uses = step.reward, step.tool_uses
        turn.policy_seconds, turn.env_seconds = policy_seconds, time.perf_counter() - started
        end = self._apply(step)
        is_cut = step.outcome is None and step.terminated and not step.truncated and action.finish_reason == "length"
        return (Outcome.TRUNCATED, _reached_limit(conversation, turn, action)) if is_cut else end

    def _apply(self, step: StepResult) -> End | None:
        """Record the result of a step; returns the end of the episode, or None."""
        self.conversations.observe(step.observation, step.next_turn)
        if step.rewards:
            self.rewards |= step.rewards
        if step.info:
            self.info |= step.info
        if step.outcome is not None:
            return step.outcome, step.ended_by if step.outcome.is_attempt else ""
        if step.truncated:
            return Outcome.TRUNCATED, step.ended_by
        return (Outcome.SCORED, step.ended_by) if step.terminated else None

    async def _call_env(
        self, part: str, read: Callable[[Any], T], method: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> T:
        """Call the environment within the limits of the step and the episode, and check its result.

        Args:
            part: "reset", "step" or "on_limit".
        """
        step_seconds, seconds_left = self.limits.step_seconds, self.seconds_left
        limit = "step_seconds" if step_seconds < seconds_left else "episode_seconds"
        deadline = Deadline(step_seconds if step_seconds < seconds_left else seconds_left, self.place)
        try:
            with deadline:
                result = await method(*args, **kwargs)
        except BaseException as error:
            if is_timeout(error, deadline):
                raise _LimitReached(limit, part) from None
            if (env_error := fault(part, error)) is None:
                raise
            raise env_error from error
        finally:
            self.seconds_left -= deadline.used
        try:
            return read(result)
        except BaseException as error:
            if (env_error := fault(f"{part} returned what cannot be read", error)) is None:
                raise
            raise env_error from error


def _reached_limit(conversation: Conversation, turn: Turn, action: Action) -> str:
    """Return the limit that cut off an answer."""
    sampled = len(turn.token_ids) or (action.usage or {}).get("completion_tokens", 0)
    return "max_tokens" if 0 < sampled < conversation.max_turn_tokens else "max_turn_tokens"


def _read_answer(agent: Agent, answer: Any) -> tuple[Turn, Action]:
    if isinstance(answer, tuple) and len(answer) == 2:
        turn, action = answer
        if isinstance(turn, Turn) and isinstance(action, Action):
            return turn, action
    raise PolicyError(f"{type(agent).__name__}.act returned {answer!r:.80}; it must return a Turn and an Action")
