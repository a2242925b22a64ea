"""Calls of an environment's methods, with a deadline and with its exceptions turned into faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from forge_env.core.env import Env
from forge_env.core.errors import EnvError, ForgeError
from forge_env.core.user_code import error_text, fault, guard
from forge_env.rollout.env_results import read_success, recorded_info
from forge_env.utils.deadlines import Deadline
from forge_env.utils.threads import invoke

STOP_SECONDS = 0.5
"""For a call that was told to stop."""
UNSTOPPED_CLOSE_SECONDS = 5.0
"""Time limit of `close` if a tool runs on: it may wait for something that the tool holds, for example a connection."""


class EnvTimeout(EnvError):
    """A method of an environment exceeded its deadline."""


async def call_env(part: str, call: Coroutine[Any, Any, Any], deadline: Deadline) -> Any:
    """Await a method of an environment.

    Args:
        part: name of the method, for the error message.
        call: the call.
        deadline: its time limit.

    Raises:
        EnvTimeout: after the time limit.
        EnvError: for whatever else it raises, with file and line.
    """
    try:
        with deadline:
            return await call
    except BaseException as error:
        if is_timeout(error, deadline):
            raise EnvTimeout(f"{part} took longer than {deadline.seconds:g} s") from None
        if (env_error := fault(part, error)) is None:
            raise
        raise env_error from error


def is_timeout(error: BaseException, deadline: Deadline) -> bool:
    """Whether a method raised because its time was used up."""
    return deadline.expired and isinstance(error, Exception) and not isinstance(error, ForgeError)


async def unstopped_tools(env: Env) -> list[str]:
    """Return the tools that run on after their time limit: Python interrupts no C call, such as a query of SQLite.

    A call that Python can interrupt has STOP_SECONDS to end.
    """
    until = time.monotonic() + STOP_SECONDS
    while env._unstopped and time.monotonic() < until:
        await asyncio.sleep(STOP_SECONDS / 20)
    return list(env._unstopped)


def _is_default(env: Env, name: str) -> bool:
    """Whether a method is Env's own, which takes no time."""
    return getattr(type(env), name) is getattr(Env, name) and name not in vars(env)


async def success_of(env: Env, reward: float, seconds: float) -> bool:
    """Return the environment's verdict on an episode with this reward, the sum over its steps.

    Raises:
        EnvTimeout: after `seconds`.
        EnvError: the call raises, or returns neither True nor False.
    """
    if _is_default(env, "success"):
        return env.success(reward)
    verdict = await call_env("success", invoke(env.success, reward), Deadline(seconds))
    with guard("success"):
        return read_success(verdict)


async def final_info_of(env: Env, seconds: float) -> Mapping[str, Any]:
    """Return the environment's facts about the whole episode, as JSON data.

    Raises:
        EnvTimeout: after `seconds`.
        EnvError: the call raises, or does not return a mapping.
    """
    if _is_default(env, "final_info"):
        return {}
    info = await call_env("final_info", invoke(env.final_info), Deadline(seconds))
    with guard("final_info"):
        return recorded_info(info)


async def close_env(env: Env, seconds: float) -> str:
    """Close an environment; returns what went wrong, or "". A failing close does not change the episode."""
    if _is_default(env, "close"):
        return ""
    deadline = Deadline(seconds)
    try:
        with guard("close"), deadline:
            await invoke(env.close)
    except ForgeError as error:
        return f"close took longer than {seconds:g} s" if deadline.expired else error_text(error)
    return ""
