"""Calls of an environment without the rollout loop, each with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from contrib.check.context import LIMITS, CheckContext
from contrib.check.strategies import Strategy
from forge_env.core.env import Env
from forge_env.core.episode import Turn
from forge_env.core.plain_value import own_copy, own_task
from forge_env.core.protocols import Conversation
from forge_env.core.types import Action, Task
from forge_env.core.user_code import guard
from forge_env.rollout import env_calls
from forge_env.rollout.env_calls import EnvTimeout, close_env
from forge_env.utils.deadlines import Deadline
from forge_env.utils.threads import call_on

T = TypeVar("T")

CANCEL_SECONDS = 1.0  # how long a cancelled task may take to end


@asynccontextmanager
async def fresh_instance(context: CheckContext) -> AsyncIterator[Env]:
    """Make an instance and close it at the end. An error of `close` is ignored: the check "close" reports it."""
    env = await context.factory.construct(seconds=LIMITS.step_seconds)
    try:
        yield env
    finally:
        await close_env(env, LIMITS.step_seconds)


async def reset(env: Env, task: Task, seed: int) -> Any:
    call = call_on(env, env.reset, seed=seed, options={"task": own_task(task), "limits": LIMITS})
    return await env_calls.call_env("reset", call, Deadline(LIMITS.step_seconds))


async def step(env: Env, action: Action) -> Any:
    return await env_calls.call_env("step", call_on(env, env.step, action), Deadline(LIMITS.step_seconds))


async def call_env(part: str, env: Env, *args: Any, **kwargs: Any) -> Any:
    with guard(part):
        return await call_on(env, getattr(env, part), *args, **kwargs)


async def play_directly(env: Env, task: Task, seed: int, strategy: Strategy) -> AsyncGenerator[tuple[float, Any]]:
    """Play one episode without the rollout loop; yields the seconds and the result of `reset`, then of each `step`."""
    start = time.perf_counter()
    result = await reset(env, task, seed)
    yield time.perf_counter() - start, result
    conversation = Conversation(request_id="check", seed=seed, observation=own_copy(tuple(result[0])))
    for _ in range(LIMITS.max_turns):
        action = await strategy(conversation, env.tools)
        message = own_copy(action.message)
        conversation.turns.append(Turn(kind="text", observation=conversation.observation, message=message))
        start = time.perf_counter()
        result = await step(env, action)
        yield time.perf_counter() - start, result
        conversation.observation = own_copy(tuple(result[0]))
        if result[2] or result[3]:
            return


async def with_timeout(name: str, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Await work in a task of its own, for `seconds` at most, even if it does not respond to cancellation."""
    task = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await cancel(task)
        raise
    if not done:
        await cancel(task)
        raise EnvTimeout(f"{name} took longer than {seconds:g} s")
    return task.result()


async def cancel(task: asyncio.Task[Any], seconds: float = CANCEL_SECONDS) -> bool:
    """Cancel a task; returns whether it ended within `seconds`."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if done and not task.cancelled():
        task.exception()  # marks it as retrieved; otherwise asyncio logs it when the task is collected
    return bool(done)
