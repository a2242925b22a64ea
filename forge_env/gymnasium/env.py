"""Forge environments as Gymnasium environments.

Example::

    import forge_env
    import gymnasium

    env = gymnasium.make("forge_env/Math-v0")
    question, info = env.reset(seed=0)
    answer, reward, terminated, truncated, info = env.step("The answer is 42.")
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import gymnasium.logger
import gymnasium.utils
from gymnasium.error import ResetNeeded

from forge_env.core.env import Env
from forge_env.core.errors import InfraError, UserError
from forge_env.core.types import Action, EpisodeLimits, Message, Task, ToolSpec
from forge_env.gymnasium.loop_thread import LoopThread
from forge_env.gymnasium.message_space import MessageSpace
from forge_env.gymnasium.session import CLOSE_SECONDS, OPEN_SECONDS, Session, Step
from forge_env.registry.registry import load
from forge_env.rollout.factory import EnvFactory, make


class SyncEnv(gymnasium.Env[str, str]):
    """A forge environment as a `gymnasium.Env`: observations and actions are text.

    An observation is the text of the new messages, each under its role; `info["messages"]` has them whole. An action is
    what the model wrote; tool calls in it are read in the named dialect. The last step's `info["outcome"]` says how
    the episode ended, as `forge_env.core.types.Outcome`. What breaks underneath an episode ends it truncated, with
    reward 0.0, the outcome "env_fault" or "infra_fault" and `info["error"]`; when it broke in `reset`, the first step
    says so.

    All instances of a process share one event loop in a daemon thread, and those of one environment with the same
    options share what it opens. Both end with the last `close()`.

    Args:
        env: name of an environment ("math", "module:Class"), its class, or a factory.
        split: which tasks `reset` draws from, "train" or "test".
        dialect: how tool calls are written: "hermes", "llama", "openai" or "none".
        num_tasks: draw from this many fixed tasks, those of `task_seed`; a new task every time when None.
        limits: `max_turns`, `step_seconds` and `scoring_seconds` of an episode hold here; when None, those that the
            environment declares, and `max_episode_steps` of `gymnasium.make` in the place of `max_turns`.
        max_length: characters of an observation or an action; a longer observation is cut.
        options: options of the environment.

    Raises:
        UserError: for an unknown environment, option or dialect.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - a plain dict, as Gymnasium has it

    def __init__(
        self,
        env: str | type[Env] | EnvFactory,
        *,
        split: str = "train",
        dialect: str = "hermes",
        num_tasks: int | None = None,
        task_seed: int = 0,
        limits: EpisodeLimits | None = None,
        max_length: int = 65536,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        self._factory = _factory(env, options)
        self._split, self._dialect = split, dialect
        self._parse, self._to_openai = (
            load("agents.renderer.dialects:parse"),
            load("agents.renderer.dialects:to_openai"),
        )
        self._parse("", dialect)  # an unknown dialect is said now
        self._num_tasks, self._task_seed = num_tasks, task_seed
        self._tasks: Sequence[Task] = ()
        self._limits = limits or self._factory.episode_limits()
        self._has_own_limits = limits is not None
        self._patience = self._limits.episode_seconds + self._limits.scoring_seconds + OPEN_SECONDS
        self.render_mode = render_mode
        self._max_length = max_length
        self.observation_space = MessageSpace(max_length)
        self.action_space = MessageSpace(max_length)
        self._session: Session | None = None
        self._turns_left = 0
        self._fault: Step | None = None
        self._transcript: list[Message] = []

    def allow_turns(self, turns: int) -> None:
        """Let episodes have so many turns, from the next `reset` on, unless this was made with limits of its own."""
        if not self._has_own_limits:
            self._limits = replace(self._limits, max_turns=turns)

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """What the model may call, in OpenAI's shape; empty before the first `reset`."""
        return () if self._session is None else self._session.tools

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode of `options["task"]`, or of a task that is drawn; the same seed gives the same one.

        Further options are handed to the environment.

        Raises:
            UserError: when what the environment needs is not there.
            InfraError: when what its instances share cannot be opened, or something blocks the event loop.
        """
        super().reset(seed=seed)
        further = dict(options or {})
        drawn = self._draw(int(self.np_random.integers(2**31))) if "task" not in further else None
        task = drawn or further.pop("task")
        episode_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        session = self._open()
        self._turns_left, self._transcript = 0, []
        first = session.loop.run(session.reset(task, episode_seed, further), self._patience)
        self._turns_left, self._fault = self._limits.max_turns, first if first.outcome else None
        return self._shown(first.messages, {**first.info, **_end(first), "task_id": task.id})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn: `action` is the text of an assistant message.

        Raises:
            ResetNeeded: before `reset`, and after the end of an episode.
            InfraError: when something blocks the event loop.
        """
        session = self._session
        if session is None or not session.loop.is_mine or self._turns_left == 0:
            raise ResetNeeded("Cannot call env.step() before env.reset(), or after the end of an episode")
        self._turns_left -= 1
        if self._fault is not None:
            return self._result(self._fault)
        step = session.loop.run(session.step(self._action(action)), self._patience)
        if not step.outcome and self._turns_left == 0:
            step = session.out_of_turns(replace(step, info={**step.info, "ended_by": "max_turns"}))
        return self._result(step)

    def render(self) -> str | None:
        """Return the conversation so far, with `render_mode="ansi"`."""
        return _text(self._transcript) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the environment, and what is shared when no other instance needs it. Idempotent."""
        session, self._session, self._turns_left = self._session, None, 0
        if session is None or not session.loop.is_mine:
            return
        self._finalizer.detach()
        try:
            session.loop.run(session.close(), self._limits.step_seconds + CLOSE_SECONDS)
        except InfraError as error:
            gymnasium.logger.warn(f"closing {self._factory.name} failed: {error}")
        finally:
            session.loop.release()

    def _open(self) -> Session:
        """Return the connection to the loop of this process; one that a parent process made is of no use."""
        if self._session is None or not self._session.loop.is_mine:
            self._session = Session(LoopThread.lease(), self._factory, self._limits)
            self._finalizer = weakref.finalize(self, Session.abandon, self._session)
            self._finalizer.atexit = False  # the loop closes what is left then, and waits for it
        return self._session

    def _draw(self, seed: int) -> Task:
        if self._num_tasks is None:
            return self._factory.tasks(self._split, count=1, seed=seed)[0]
        if not self._tasks:
            self._tasks = self._factory.tasks(self._split, count=self._num_tasks, seed=self._task_seed)
        return self._tasks[seed % len(self._tasks)]

    def _action(self, text: str) -> Action:
        if not isinstance(text, str):
            raise UserError(f"an action is the text of an assistant message; this one is of type {type(text).__name__}")
        content, calls = self._parse(str(text), self._dialect)
        message: Message = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = self._to_openai(calls)
        self._transcript.append({"role": "assistant", "content": text})
        return Action(message=message, tool_calls=calls)

    def _result(self, step: Step) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if step.outcome:
            self._turns_left = 0
        if step.error:
            gymnasium.logger.warn(f"an episode of {self._factory.name} ended by {step.outcome}: {step.error}")
        text, info = self._shown(step.messages, {**step.info, **_end(step)})
        return text, step.reward, step.terminated, step.truncated, info

    def _shown(self, messages: Sequence[Message], info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        own = copy.deepcopy(tuple(messages))  # who keeps an info must not see it change
        self._transcript.extend(own)
        return _cut(_text(own), self._max_length), {**info, "messages": own}


class TurnLimit(gymnasium.Wrapper[str, str, str, str], gymnasium.utils.RecordConstructorArgs):
    """Tells a SyncEnv how many steps `gymnasium.make(..., max_episode_steps=40)` allows; registered with each one."""

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        if env.spec is not None and env.spec.max_episode_steps is not None:
            assert isinstance(env.unwrapped, SyncEnv)
            env.unwrapped.allow_turns(env.spec.max_episode_steps)


def _factory(env: str | type[Env] | EnvFactory, options: Mapping[str, Any]) -> EnvFactory:
    if isinstance(env, str):
        return make(env, **options)
    if not isinstance(env, EnvFactory):
        return EnvFactory(env, **options)
    if options:
        raise UserError(f"the options {sorted(options)} belong to the factory of {env.name}: give them to it")
    return env


def _end(step: Step) -> dict[str, str]:
    """What an info says of the end of an episode: nothing before it."""
    return {key: value for key, value in (("outcome", step.outcome), ("error", step.error)) if value}


def _text(messages: Sequence[Message]) -> str:
    """Write messages one below the other, each under its role.

    >>> _text([{"role": "tool", "name": "calculator", "content": "893"}])
    '[tool calculator]\\n893'
    """
    return "\n\n".join(f"[{' '.join(filter(None, (m['role'], m.get('name'))))}]\n{m['content']}" for m in messages)


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    mark = f"\n[{len(text)} characters, cut to {length}]"
    return (text[: max(0, length - len(mark))] + mark)[:length]
