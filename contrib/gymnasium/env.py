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

from agents.renderer.dialects import to_openai
from agents.renderer.reading import AnswerForm
from contrib.common.loop_thread import LoopThread
from contrib.gymnasium.env_runner import CLOSE_SECONDS, OPEN_SECONDS, EnvRunner, StepOutcome
from contrib.gymnasium.message_space import MessageSpace
from forge_env.core.env import Env
from forge_env.core.errors import InfraError, UserError
from forge_env.core.types import Action, EpisodeLimits, Message, Task, ToolSpec
from forge_env.rollout.factory import EnvFactory, make


class SyncEnv(gymnasium.Env[str, str]):
    """A forge environment as a `gymnasium.Env`: observations and actions are text.

    An observation is the text of the new messages, each under its role; `info["messages"]` holds the messages. An
    action is the text of the model; tool calls in it are parsed in the given dialect, as in a run: a call in a thought
    is none. The last step's `info["outcome"]`
    is a `forge_env.core.types.Outcome`. A fault ends the episode truncated, with reward 0.0, the outcome "env_fault" or
    "infra_fault" and `info["error"]`; after a fault in `reset`, the first step returns it.

    All instances of a process share one event loop in a daemon thread. Instances of one environment with the same
    options share its resources. Both are released by the last `close()`.

    Args:
        env: name of an environment ("math", "module:Class"), its class, or a factory.
        split: the tasks that `reset` draws from, "train" or "test".
        dialect: syntax of tool calls: "hermes", "llama", "openai" or "none".
        num_tasks: draw from this many fixed tasks, those of `task_seed`; a new task every time when None.
        limits: of an episode; `max_turns`, `step_seconds` and `scoring_seconds` apply. When None, those that the
            environment declares, and `max_episode_steps` of `gymnasium.make` instead of `max_turns`.
        max_length: maximum number of characters of an observation or action; a longer observation is cut.
        options: options of the environment.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - a plain dict, as in Gymnasium

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
        self._split = split
        self._form = AnswerForm(dialect=dialect)
        self._form.read("", tools=None, is_cut=False)  # raises for an unknown dialect
        self._num_tasks, self._task_seed = num_tasks, task_seed
        self._tasks: Sequence[Task] = ()
        self._limits = limits or self._factory.episode_limits()
        self._has_explicit_limits = limits is not None
        self._timeout = self._limits.episode_seconds + self._limits.scoring_seconds + OPEN_SECONDS
        self.render_mode = render_mode
        self._max_length = max_length
        self.observation_space = MessageSpace(max_length)
        self.action_space = MessageSpace(max_length)
        self._runner: EnvRunner | None = None
        self._turns_left = 0
        self._fault: StepOutcome | None = None
        self._transcript: list[Message] = []

    def allow_turns(self, turns: int) -> None:
        """Set the maximum number of turns, from the next `reset` on, unless `limits` were given."""
        if not self._has_explicit_limits:
            self._limits = replace(self._limits, max_turns=turns)

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the model may call, in OpenAI's shape; empty before the first `reset`."""
        return () if self._runner is None else self._runner.tools

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode of `options["task"]`, or of a random task; the same seed gives the same task.

        Further options are passed to the environment.
        """
        super().reset(seed=seed)
        env_options = dict(options or {})
        new_task = self._draw(int(self.np_random.integers(2**31))) if "task" not in env_options else None
        task = new_task or env_options.pop("task")
        episode_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        runner = self._open()
        self._turns_left, self._transcript = 0, []
        start = runner.loop.run(runner.reset(task, episode_seed, env_options), self._timeout)
        self._turns_left, self._fault = self._limits.max_turns, start if start.outcome else None
        return self._observation(start.messages, {**start.info, **_end_info(start), "task_id": task.id})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn: `action` is the text of an assistant message."""
        runner = self._runner
        if runner is None or not runner.loop.is_mine or self._turns_left == 0:
            raise ResetNeeded("Cannot call env.step() before env.reset(), or after the end of an episode")
        self._turns_left -= 1
        if self._fault is not None:
            return self._result(self._fault)
        step = runner.loop.run(runner.step(self._action(action)), self._timeout)
        if not step.outcome and self._turns_left == 0:
            step = runner.truncated(replace(step, info={**step.info, "ended_by": "max_turns"}))
        return self._result(step)

    def render(self) -> str | None:
        return _text(self._transcript) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the environment, and the shared resources if no other instance uses them. Idempotent."""
        runner, self._runner, self._turns_left = self._runner, None, 0
        if runner is None or not runner.loop.is_mine:
            return
        self._finalizer.detach()
        try:
            runner.loop.run(runner.close(), self._limits.step_seconds + CLOSE_SECONDS)
        except InfraError as error:
            gymnasium.logger.warn(f"closing {self._factory.name} failed: {error}")
        finally:
            runner.loop.release()

    def _open(self) -> EnvRunner:
        """Return the runner on the event loop of this process; one that a parent process made cannot be used."""
        if self._runner is None or not self._runner.loop.is_mine:
            self._runner = EnvRunner(LoopThread.lease(), self._factory, self._limits)
            self._finalizer = weakref.finalize(self, EnvRunner.abandon, self._runner)
            self._finalizer.atexit = False  # at exit the loop closes what is left, and waits for it
        return self._runner

    def _draw(self, seed: int) -> Task:
        if self._num_tasks is None:
            return self._factory.tasks(self._split, count=1, seed=seed)[0]
        if not self._tasks:
            self._tasks = self._factory.tasks(self._split, count=self._num_tasks, seed=self._task_seed)
        return self._tasks[seed % len(self._tasks)]

    def _action(self, text: str) -> Action:
        if not isinstance(text, str):
            raise UserError(f"an action is the text of an assistant message; this one is of type {type(text).__name__}")
        answer = self._form.read(str(text), tools=None, is_cut=False)
        message: Message = {"role": "assistant", "content": answer.content}
        if answer.thought:
            message["reasoning_content"] = answer.thought
        if answer.calls:
            message["tool_calls"] = to_openai(answer.calls)
        self._transcript.append({"role": "assistant", "content": text})
        return Action(message=message, tool_calls=answer.calls)

    def _result(self, step: StepOutcome) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if step.outcome:
            self._turns_left = 0
        if step.error:
            gymnasium.logger.warn(f"an episode of {self._factory.name} ended by {step.outcome}: {step.error}")
        text, info = self._observation(step.messages, {**step.info, **_end_info(step)})
        return text, step.reward, step.terminated, step.truncated, info

    def _observation(self, messages: Sequence[Message], info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        copies = copy.deepcopy(tuple(messages))  # an info must not change after it was returned
        self._transcript.extend(copies)
        return _cut(_text(copies), self._max_length), {**info, "messages": copies}


class TurnLimit(gymnasium.Wrapper[str, str, str, str], gymnasium.utils.RecordConstructorArgs):
    """Passes `gymnasium.make(..., max_episode_steps=40)` on to a SyncEnv; part of each registration."""

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
        raise UserError(f"the options {sorted(options)} belong to the factory of {env.name}: pass them to it")
    return env


def _end_info(step: StepOutcome) -> dict[str, str]:
    return {key: value for key, value in (("outcome", step.outcome), ("error", step.error)) if value}


def _text(messages: Sequence[Message]) -> str:
    """Return messages as text, each under its role.

    >>> _text([{"role": "tool", "name": "calculator", "content": "893"}])
    '[tool calculator]\\n893'
    """
    return "\n\n".join(f"[{' '.join(filter(None, (m['role'], m.get('name'))))}]\n{m['content']}" for m in messages)


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    mark = f"\n[{len(text)} characters, cut to {length}]"
    return (text[: max(0, length - len(mark))] + mark)[:length]
