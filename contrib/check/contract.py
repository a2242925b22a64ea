"""The checks of the contract: what `reset`, `step` and `close` return, and the order in which they may be called."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from contrib.check.context import LIMITS, CheckContext, CheckFailed, CheckSkipped
from contrib.check.direct_calls import call_env, fresh_instance, reset, step, with_timeout
from contrib.check.result_shapes import reset_problem, step_problem, tools_problem
from contrib.check.strategies import Strategy, final_answer, try_every_tool
from contrib.check.threads import advice
from forge_env.core.env import Env
from forge_env.core.episode import Turn
from forge_env.core.errors import ForgeError, PolicyError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Task
from forge_env.core.user_code import error_text
from forge_env.rollout.env_calls import EnvTimeout


async def contract(context: CheckContext) -> str:
    """Everything that an instance returns has the right shape, over one episode of each strategy."""
    if not context.tasks:
        raise CheckSkipped("there are no tasks to play")
    steps = 0
    for strategy in context.strategies:
        async with fresh_instance(context) as env:
            steps += await _check_episode(env, context.tasks[0], context.seed, strategy)
    return f"reset, {steps} steps and the tools have the right shapes"


async def _check_episode(env: Env, task: Task, seed: int, strategy: Strategy) -> int:
    result = await _result(reset(env, task, seed))
    _fail_on(reset_problem(result))
    _fail_on(tools_problem(env.tools))
    conversation = Conversation(request_id="check", seed=seed, observation=tuple(result[0]))
    for turn in range(1, LIMITS.max_turns + 1):
        try:
            action = await strategy(conversation, env.tools)
        except PolicyError:  # the expert failed; the check "gold answers" reports it
            return turn - 1
        conversation.turns.append(Turn(kind="text", observation=conversation.observation, message=action.message))
        result = await _result(step(env, action))
        _fail_on(step_problem(result))
        if result[2] or result[3]:
            return turn
        ids = {message.get("tool_call_id") for message in result[0]}
        if missing := next((call for call in action.tool_calls if call.id not in ids), None):
            raise CheckFailed(
                f"step() left the call {missing.name} unanswered: return a tool message with the tool_call_id of each "
                "call"
            )
        conversation.observation = tuple(result[0])
    return LIMITS.max_turns


async def _result(call: Awaitable[Any]) -> Any:
    """Await a call of the environment. Raises CheckFailed when it raises or takes too long."""
    try:
        return await call
    except EnvTimeout as error:
        raise CheckFailed(f"{error}: make it faster, or await what it waits for") from None
    except ForgeError as error:
        raise CheckFailed(f"{error_text(error)}{advice(str(error))}") from error


def _fail_on(problem: str) -> None:
    if problem:
        raise CheckFailed(problem)


async def reset_first(context: CheckContext) -> str:
    """A `step` before the first `reset` raises."""
    async with fresh_instance(context) as env:
        try:
            await step(env, final_answer("0"))
        except EnvTimeout:
            raise CheckFailed(
                "step() before reset() hangs: raise forge_env.EnvError when no episode has been started"
            ) from None
        except ForgeError as error:
            return f"step() before reset() raises {type(error.__cause__ or error).__name__}"
    raise CheckFailed("step() works before reset(): raise forge_env.EnvError when no episode has been started")


async def close(context: CheckContext) -> str:
    """`close` may be called at any time, and twice; a `step` after it raises or is ignored."""
    await _close(await context.factory.construct(seconds=LIMITS.step_seconds), "of an instance that was never reset")
    env = await context.factory.construct(seconds=LIMITS.step_seconds)
    await _result(reset(env, context.tasks[0], context.seed))
    await _close(env, "after reset()")
    await _close(env, "called twice")
    await _step_after_close(env)
    await _close(env, "called again after a step()")
    episode = await context.episode(context.tasks[0], try_every_tool)
    if "close_error" in episode.info:
        raise CheckFailed(
            f"at the end of an episode, {episode.info['close_error']}; let it free only what the instance holds"
        )
    return "close() can be called at any time, and twice"


async def _close(env: Env, when: str) -> None:
    try:
        await with_timeout(f"close() {when}", call_env("close", env), LIMITS.step_seconds)
    except EnvTimeout as error:
        raise CheckFailed(f"{error}: set a time limit for what it waits for") from None
    except ForgeError as error:
        remedy = advice(str(error)) or "; let it free only what the instance holds"
        raise CheckFailed(f"close() {when}: {error_text(error)}{remedy}") from error


async def _step_after_close(env: Env) -> None:
    try:
        call = call_env("step", env, final_answer("0"))
        await with_timeout("step() after close()", call, LIMITS.step_seconds)
    except EnvTimeout as error:
        raise CheckFailed(f"{error}: raise forge_env.EnvError when the instance is closed") from None
    except ForgeError:
        pass  # a refusal is fine
