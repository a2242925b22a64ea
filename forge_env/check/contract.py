"""The checks of the contract: what `reset`, `step` and `close` return, and in which order they may be called."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from forge_env.check.moves import Move, probe, says
from forge_env.check.shapes import wrong_with_reset, wrong_with_step, wrong_with_tools
from forge_env.check.subject import LIMITS, Failed, Overdue, Skipped, Subject, bounded, called, instance, reset, step
from forge_env.check.threads import advice
from forge_env.core.env import Env
from forge_env.core.episode import Turn
from forge_env.core.errors import ForgeError, PolicyError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Action, Task
from forge_env.core.user_code import told


async def contract(subject: Subject) -> str:
    """The shapes of everything that an instance returns, over an episode of each kind."""
    if not subject.tasks:
        raise Skipped("there are no tasks to play")
    steps = 0
    for move in subject.moves:
        async with instance(subject) as env:
            steps += await _examine(env, subject.tasks[0], subject.seed, move)
    return f"reset, {steps} steps and the tools have the right shapes"


async def _examine(env: Env, task: Task, seed: int, move: Move) -> int:
    result = await _named(reset(env, task, seed))
    _require(wrong_with_reset(result))
    _require(wrong_with_tools(env.tools))
    conversation = Conversation(request_id="check", seed=seed, observation=tuple(result[0]))
    for turn in range(1, LIMITS.max_turns + 1):
        try:
            action = await move(conversation, env.tools)
        except PolicyError:  # the expert's mistake, which is the finding of the check of the gold answers
            return turn - 1
        conversation.turns.append(Turn(kind="text", observation=conversation.observation, message=action.message))
        result = await _named(step(env, action))
        _require(wrong_with_step(result))
        if result[2] or result[3]:
            return turn
        _require(_unanswered(action, result[0]))
        conversation.observation = tuple(result[0])
    return LIMITS.max_turns


def _unanswered(action: Action, messages: Sequence[Any]) -> str:
    answered = {message.get("tool_call_id") for message in messages}
    missing = [call for call in action.tool_calls if call.id not in answered]
    if not missing:
        return ""
    return (
        f"step() left the call {missing[0].name} unanswered: return a tool message with the tool_call_id of each call"
    )


async def _named(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except Overdue as error:
        raise Failed(f"{error}: make it faster, or await what it waits for") from None
    except ForgeError as error:
        raise Failed(f"{told(error)}{advice(str(error))}") from error


def _require(problem: str) -> None:
    if problem:
        raise Failed(problem)


async def reset_first(subject: Subject) -> str:
    """A `step` before the first `reset` must be refused."""
    async with instance(subject) as env:
        try:
            await step(env, says("0"))
        except Overdue:
            raise Failed(
                "step() before reset() hangs: raise forge_env.EnvError when no episode has been started"
            ) from None
        except ForgeError as error:
            return f"step() before reset() raises {type(error.__cause__ or error).__name__}"
    raise Failed("step() works before reset(): raise forge_env.EnvError when no episode has been started")


async def close(subject: Subject) -> str:
    """`close` at any time, and twice; a closed instance refuses or ignores what comes after."""
    await _closed(subject.factory.make(), "of an instance that was never reset")
    env = subject.factory.make()
    await _named(reset(env, subject.tasks[0], subject.seed))
    await _closed(env, "after reset()")
    await _closed(env, "called twice")
    await _after_close(env)
    await _closed(env, "called again after a step()")
    episode = await subject.episode(subject.tasks[0], probe)
    if "close_error" in episode.info:
        raise Failed(f"at the end of an episode, {episode.info['close_error']}; let it free only what is there")
    return "close() can be called at any time, and twice"


async def _closed(env: Env, when: str) -> None:
    try:
        await bounded(f"close() {when}", called("close", env.close), LIMITS.step_seconds)
    except Overdue as error:
        raise Failed(f"{error}: bound what it waits for") from None
    except ForgeError as error:
        raise Failed(f"close() {when}: {told(error)}; let it free only what is there") from error


async def _after_close(env: Env) -> None:
    try:
        await bounded("step() after close()", called("step", env.step, says("0")), LIMITS.step_seconds)
    except Overdue as error:
        raise Failed(f"{error}: raise forge_env.EnvError when the instance is closed") from None
    except ForgeError:
        pass  # refused
