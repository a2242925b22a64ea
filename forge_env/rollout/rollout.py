"""The one rollout loop: an agent acts in an environment, turn by turn, and leaves an Episode.

This is the only place where environments and agents meet. A bad rollout is data: what breaks underneath an episode, in
its environment or in its agent becomes its outcome, counted by reason. A bug in this loop still raises.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import pydantic_core

from forge_env.core.env import Env
from forge_env.core.episode import Episode, Group, Turn
from forge_env.core.errors import EnvError, ForgeError, InfraError, PolicyError, TemplateError, first_error
from forge_env.core.faults import SHRINK, FaultPolicy
from forge_env.core.protocols import ANSWER_SECONDS, Agent, ContextFull, Conversation, NextTurn
from forge_env.core.reward_value import reward_value
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task, ToolUse
from forge_env.core.user_code import NOT_CAUGHT, describe, fault, guard, told
from forge_env.rollout.factory import EnvFactory
from forge_env.utils.deadlines import Deadline
from forge_env.utils.threads import invoke

T = TypeVar("T")
_MOST_FULL = 1000
"""Prompts of one episode without room for an answer: an environment that only ever asks these would never end."""


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
    """Run `count` sibling episodes of one task at once; sibling i has seed `seed + i`.

    A sibling without a reward, by a fault of ours or a TIMEOUT, is run again where `on_fault` refills, with the same
    seed. Each runs within an `around()` of its own, its repetitions included.
    """
    replaced: list[Episode] = []

    async def sibling(i: int) -> Episode:
        attempt = 0
        while True:
            again = f".{attempt}" if attempt else ""
            episode = await run_episode(
                factory,
                agent,
                task,
                seed=seed + i,
                episode_id=f"{group_id}/{i}{again}",
                group_id=group_id,
                limits=limits,
                env_options=env_options,
            )
            attempt += 1
            if not on_fault.runs_again(episode.outcome, attempt):
                return episode
            replaced.append(episode)

    async def place(i: int) -> Episode:
        with around():
            return await sibling(i)

    try:
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(place(i)) for i in range(count)]
    except* Exception as errors:
        raise first_error(errors) from None
    episodes = tuple(each.result() for each in tasks)
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
    """Run one episode to its end, under the limits that its environment declares where none are given.

    Returns:
        An Episode in every case: faults of the environment or of what lies underneath are outcomes, not exceptions.
    """
    limits = limits or factory.episode_limits()
    run = _Run(agent, _Contexts(episode_id, seed, limits), limits)
    if env_options:
        run.info["env_options"] = _for_the_record(env_options)
    env: Env | None = None
    outcome, error, ended_by = Outcome.SCORED, "", ""
    try:
        env = factory.make(**(env_options or {}))
        outcome, ended_by = await run.play(env, task, seed)
    except _OutOfTime as end:
        assert env is not None
        outcome, ended_by, error = run.out_of_time(env, factory.name, end)
        await run.tell(env, end.limit)
    except EnvError as broken:
        outcome, error = Outcome.ENV_FAULT, told(broken)
    except InfraError as broken:
        outcome, error = Outcome.INFRA_FAULT, f"{type(broken).__name__}: {broken}"
    finally:
        if env is not None:
            await _close(env, limits.step_seconds, run.info)
            _note_final(env, run.info)
    turns = run.contexts.turns
    reward = sum(turn.reward for turn in turns) + run.reward
    if outcome is Outcome.TRUNCATED and env is not None:
        reward += env.truncation_reward
    success = None
    if outcome.is_valid and env is not None:
        try:
            with guard("success"):
                success = _read_success(env.success(reward))
        except EnvError as broken:
            outcome, error, ended_by = Outcome.ENV_FAULT, told(broken), ""
    return Episode(
        task=task,
        turns=turns,
        tail=tuple(run.contexts.current.observation),
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


async def _close(env: Env, seconds: float, info: dict[str, Any]) -> None:
    """Close an environment. What it did stays as it was: a close that fails is noted, and waited for only so long."""
    deadline = Deadline(seconds)
    try:
        with guard("close"):
            await deadline.run(invoke(env.close))
    except ForgeError as error:
        late = f"close took longer than {seconds:g} s"
        info["close_error"] = late if deadline.expired else told(error)


def _note_final(env: Env, info: dict[str, Any]) -> None:
    """Add what an environment says of the whole episode. What it did stays as it was here as well."""
    try:
        with guard("final_info"):
            info |= _for_the_record(env.final_info())
    except ForgeError as error:
        info["final_info_error"] = told(error)


class _Contexts:
    """The conversations of one episode. Nearly always there is one; an environment may start more, see `NextTurn`."""

    __slots__ = ("_known", "_limits", "_request_id", "_seed", "current")

    def __init__(self, request_id: str, seed: int, limits: EpisodeLimits) -> None:
        self._request_id = request_id
        self._seed = seed
        self._limits = limits
        self.current = self._new(0)
        self._known = {0: self.current}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Those of one conversation after those of another, so that rows stay whole; the one at hand comes last."""
        return tuple(turn for each in self._known.values() for turn in each.turns)

    def observe(self, observation: tuple[Message, ...], asked: NextTurn | None) -> None:
        """Show what is new to the conversation that goes on."""
        if asked is not None:
            number = asked.context
            self.current = self._known.pop(number) if number in self._known else self._new(number)
            self._known[number] = self.current
        self.current.asked = asked
        self.current.observation = observation

    def _new(self, number: int) -> Conversation:
        return Conversation(
            request_id=f"{self._request_id}/context{number}" if number else self._request_id,
            seed=self._seed + number * _SEED_STRIDE,
            max_turn_tokens=self._limits.max_turn_tokens,
            max_tokens=self._limits.max_tokens,
        )


_SEED_STRIDE = 15_485_863
"""Between the seeds of an episode's conversations: a prime, beyond the next ones, which are the siblings'."""


class _OutOfTime(Exception):
    """The environment has used up a limit: "episode_seconds" or "step_seconds", in "reset" or in "step"."""

    def __init__(self, limit: str, part: str = "step") -> None:
        self.limit = limit
        self.part = part


class _Run:
    """The moving parts of one episode."""

    __slots__ = ("agent", "contexts", "info", "last_turn", "limits", "reward", "rewards", "seconds_left")

    def __init__(self, agent: Agent, contexts: _Contexts, limits: EpisodeLimits) -> None:
        self.agent = agent
        self.contexts = contexts
        self.limits = limits
        self.rewards: dict[str, float] = {}
        self.reward = 0.0
        """Of an end before the first turn; any other reward is a turn's."""
        self.last_turn: Turn | None = None
        self.info: dict[str, Any] = {}
        self.seconds_left = limits.episode_seconds
        """Of the episode's clock, which runs in the environment alone: not while the agent answers."""

    async def play(self, env: Env, task: Task, seed: int) -> tuple[Outcome, str]:
        """Play to the end; returns the outcome, and what ended the episode."""
        options = {"task": task, "limits": self.limits}
        reset = await self._env("reset", invoke(env.reset, seed=seed, options=options), _read_reset)
        self.contexts.observe(reset.observation, reset.next)
        self.info |= reset.info
        turns = full = 0
        while turns < self.limits.max_turns:
            if self.seconds_left <= 0:  # the environment blocked the loop, so that no deadline could end it
                raise _OutOfTime("episode_seconds")
            started = time.perf_counter()
            conversation = self.contexts.current
            if conversation.asked is not None:
                self._check_agent(conversation.asked)
            try:
                turn, action = await self._act(conversation, env)
            except ContextFull as reason:
                full += 1
                end = await self._full(env, str(reason)) if full <= _MOST_FULL else (Outcome.TRUNCATED, "max_tokens")
                if end is not None:
                    return end
                continue
            except TemplateError as error:
                if conversation.asked is None:
                    raise
                raise EnvError(str(error)) from error  # the messages came from outside, and others may be fine
            turns += 1
            end = await self._step(env, turn, action, time.perf_counter() - started)
            if end is not None:
                return end
        await self.tell(env, "max_turns")
        return Outcome.TRUNCATED, "max_turns"

    async def tell(self, env: Env, limit: str) -> None:
        """Tell an environment which limit has ended the episode. What it did stays as it was: a failure is noted."""
        try:
            with guard("on_limit"):
                await Deadline(self.limits.step_seconds).run(invoke(env.on_limit, limit))
        except ForgeError as error:
            self.info["on_limit_error"] = told(error)

    async def _full(self, env: Env, reason: str) -> tuple[Outcome, str] | None:
        """The next prompt leaves no room to answer: the episode is over, unless its environment goes on without a turn.

        Returns:
            The outcome and what ended the episode, where it has ended.
        """
        step = await self._env("on_limit", invoke(env.on_limit, "max_tokens", reason), _read_on_limit)
        if step is None:
            return Outcome.TRUNCATED, "max_tokens"
        self.info.setdefault("full_contexts", []).append(len(self.contexts.turns))
        if self.last_turn is None:
            self.reward += step.reward
        else:
            self.last_turn.reward += step.reward
        return self._went_on(step)

    def out_of_time(self, env: Env, name: str, end: _OutOfTime) -> tuple[Outcome, str, str]:
        """What an episode is that used up a limit of time: the outcome, what ended it, and why it has no reward."""
        limit = end.limit
        acted = bool(self.contexts.turns)  # before its first turn nothing is the model's doing
        if acted and env.time_spent_by == "model":
            return Outcome.TRUNCATED, limit, ""
        if limit == "step_seconds":
            return Outcome.ENV_FAULT, "", f"{end.part} took longer than {self.limits.step_seconds:g} s"
        seconds = f"{self.limits.episode_seconds:g} s of episode_seconds"
        return Outcome.TIMEOUT, limit, f"{name} and the services that it calls used up the {seconds}"

    async def _act(self, conversation: Conversation, env: Env) -> tuple[Turn, Action]:
        """Await the agent: no clock of the episode runs, and one that does not end by itself has a deadline.

        Raises:
            ContextFull, ForgeError: as the agent says it; a UserError is the same for every episode.
            PolicyError: for whatever else it raises or returns, SystemExit among it, with file and line.
        """
        deadline: Deadline | None = None
        try:
            seconds = getattr(self.agent, "answer_seconds", ANSWER_SECONDS)
            deadline = None if seconds is None else Deadline(seconds)
            answer = invoke(self.agent.act, conversation, env.tools)
            return _read_answer(self.agent, await (answer if deadline is None else deadline.run(answer)))
        except NOT_CAUGHT as error:
            task = asyncio.current_task()
            if isinstance(error, GeneratorExit) or task is None or task.cancelling():
                raise
            # Nobody cancelled the episode: a task or future that the agent waits for was.
            raise PolicyError(describe("agent", error)) from error
        except BaseException as error:
            if deadline is not None and deadline.expired and isinstance(error, TimeoutError):
                raise PolicyError(f"{type(self.agent).__name__} did not answer within {seconds:g} s") from None
            cause = first_error(error)  # an agent with tasks of its own raises a group
            if isinstance(cause, (ForgeError, ContextFull)):
                raise cause from None
            raise PolicyError(describe("agent", cause if cause.__traceback__ else error)) from error

    def _check_agent(self, asked: NextTurn) -> None:
        if asked.prompt is not None and not getattr(self.agent, "completes", False):
            raise EnvError(
                f"a plain prompt was to be completed, and {type(self.agent).__name__} answers messages only: use an "
                "agent that samples tokens, vllm: or checkpoint:, or ask for a chat completion"
            )

    async def _step(self, env: Env, turn: Turn, action: Action, policy_seconds: float) -> tuple[Outcome, str] | None:
        """Take one step; returns the outcome and what ended the episode, where it has ended."""
        started = time.perf_counter()
        # The turn is kept first: what the model said stays in the record even if the environment breaks on it.
        conversation = self.contexts.current
        conversation.turns.append(turn)
        conversation.observation = ()
        self.last_turn = turn
        step = await self._env("step", invoke(env.step, action), _read_step)
        turn.reward, turn.tool_uses = step.reward, step.tool_uses
        turn.policy_seconds, turn.env_seconds = policy_seconds, time.perf_counter() - started
        end = self._went_on(step)
        is_cut = step.outcome is None and step.terminated and not step.truncated and action.finish_reason == "length"
        return (Outcome.TRUNCATED, _reached_limit(conversation, turn, action)) if is_cut else end

    def _went_on(self, step: _Step) -> tuple[Outcome, str] | None:
        """Take over what a step gave; returns the outcome and what ended the episode, where it has ended."""
        self.contexts.observe(step.observation, step.next)
        self.rewards.update(step.rewards)
        self.info |= step.info
        if step.outcome is not None:
            return step.outcome, step.ended_by if step.outcome.is_attempt else ""
        if step.truncated:
            return Outcome.TRUNCATED, step.ended_by
        return (Outcome.SCORED, step.ended_by) if step.terminated else None

    async def _env(self, part: str, call: Coroutine[Any, Any, Any], read: Callable[[Any], T]) -> T:
        """Await the environment: a deadline, and its own exceptions and wrong shapes named as its own.

        Args:
            part: "reset", "step" or "on_limit".
        """
        limit = "step_seconds" if self.limits.step_seconds < self.seconds_left else "episode_seconds"
        deadline = Deadline(min(self.limits.step_seconds, self.seconds_left))
        try:
            result = await deadline.run(call)
        except BaseException as error:
            if deadline.expired and isinstance(error, Exception) and not isinstance(error, ForgeError):
                raise _OutOfTime(limit, part) from None
            if (broken := fault(part, error)) is not None:
                raise broken from error
            raise
        finally:
            self.seconds_left -= deadline.used
        with guard(f"{part} returned what cannot be read"):
            return read(result)


def _reached_limit(conversation: Conversation, turn: Turn, action: Action) -> str:
    """The limit that a cut-off answer has reached."""
    sampled = len(turn.token_ids) or (action.usage or {}).get("completion_tokens", 0)
    return "max_tokens" if 0 < sampled < conversation.max_turn_tokens else "max_turn_tokens"


def _read_answer(agent: Agent, answer: Any) -> tuple[Turn, Action]:
    if isinstance(answer, tuple) and len(answer) == 2:
        turn, action = answer
        if isinstance(turn, Turn) and isinstance(action, Action):
            return turn, action
    raise PolicyError(f"{type(agent).__name__}.act returned {answer!r:.80}; it must return a Turn and an Action")


class _Reset(NamedTuple):
    """What an environment's reset gave back, checked."""

    observation: tuple[Message, ...]
    next: NextTurn | None
    info: Mapping[str, Any]


class _Step(NamedTuple):
    """What an environment's step gave back, checked."""

    observation: tuple[Message, ...]
    reward: float
    terminated: bool
    truncated: bool
    rewards: Mapping[str, float]
    tool_uses: tuple[ToolUse, ...]
    outcome: Outcome | None
    ended_by: str
    next: NextTurn | None
    info: Mapping[str, Any]
    """What else the environment says, for the record."""


def _read_success(value: Any) -> bool:
    if not isinstance(value, bool) and type(value).__name__ != "bool":  # NumPy has one of its own
        raise TypeError(f"it returned {value!r:.80}, and not True or False")
    return bool(value)


_TAKEN = frozenset({"rewards", "tools", "outcome", "next"})
_LIMITS = frozenset(each.name for each in fields(EpisodeLimits))
"""What an environment may say as info["ended_by"]: one of the episode's limits, which it keeps itself."""


def _read_reset(result: Any) -> _Reset:
    observation, info = result
    return _Reset(_messages(observation), info.get("next"), _for_the_record(info))


def _read_step(result: Any) -> _Step:
    observation, reward, terminated, truncated, info = result
    parts = info.get("rewards", {})
    return _Step(
        _messages(observation),
        reward_value(reward, "step returned the reward"),
        bool(terminated),
        bool(truncated),
        {name: reward_value(part, f"step returned the part {name} of the reward,") for name, part in parts.items()},
        tuple(info.get("tools", ())),
        Outcome(info["outcome"]) if "outcome" in info else None,
        _ended_by(info),
        info.get("next"),
        _for_the_record(info),
    )


def _messages(observation: Any) -> tuple[Message, ...]:
    messages = tuple(observation)
    for message in messages:
        if not isinstance(message, Mapping) or not message.keys() >= _IN_A_MESSAGE:
            raise TypeError(f"{message!r:.80} is no message; a message is a dict with role and content")
    return messages


_IN_A_MESSAGE = frozenset({"role", "content"})


def _read_on_limit(result: Any) -> _Step | None:
    return None if result is None else _read_step(result)


def _ended_by(info: Mapping[str, Any]) -> str:
    limit = info.get("ended_by")
    return limit if isinstance(limit, str) and limit in _LIMITS else "environment"


def _for_the_record(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an environment says beside what the loop takes, as JSON can say it: an Episode is written to disk."""
    if info.keys() <= _TAKEN:
        return {}
    return {key: pydantic_core.to_jsonable_python(v, fallback=repr) for key, v in info.items() if key not in _TAKEN}
