"""Calls of an environment's methods, with a deadline and with its exceptions turned into faults."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from forge_env.core.env import Env
from forge_env.core.errors import EnvError, ForgeError
from forge_env.core.user_code import error_text, fault, guard
from forge_env.rollout.env_results import read_success, recorded_info
from forge_env.utils.deadlines import Deadline, has_expired
from forge_env.utils.gates import GRACE_SECONDS, Gate, gate_of, still_running
from forge_env.utils.threads import behind_gate, call_on

HELD_SECONDS = 5.0
"""How long `close` waits for a method that runs on. Afterwards the instance is closed in the background, when the
method has ended."""
CLOSE_SECONDS = 60.0
"""Time limit of a `close` in the background."""
logger = logging.getLogger(__name__)


class EnvTimeout(EnvError):
    """A method of an environment exceeded its deadline."""


async def call_env(part: str, call: Coroutine[Any, Any, Any], deadline: Deadline) -> Any:
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
    return deadline.has_expired and isinstance(error, Exception) and not isinstance(error, ForgeError)


def is_default(env: Env, name: str) -> bool:
    """Whether a method is Env's own, which takes no time."""
    return getattr(type(env), name) is getattr(Env, name) and name not in vars(env)


async def _check_free(env: Env, method: str) -> None:
    """Refuse a method at the end of an episode if another one runs on; `close` has waited for it already."""
    gate = gate_of(env)
    if gate.is_held and not await gate.stop(GRACE_SECONDS):
        raise EnvError(f"{method} was not called: {still_running(gate.running)}")


async def success_of(env: Env, reward: float, seconds: float) -> bool:
    if is_default(env, "success"):
        return env.success(reward)
    await _check_free(env, "success")
    verdict = await call_env("success", call_on(env, env.success, reward), Deadline(seconds))
    with guard("success"):
        return read_success(verdict)


async def final_info_of(env: Env, seconds: float) -> Mapping[str, Any]:
    if is_default(env, "final_info"):
        return {}
    await _check_free(env, "final_info")
    info = await call_env("final_info", call_on(env, env.final_info), Deadline(seconds))
    with guard("final_info"):
        return recorded_info(info)


async def close_env(env: Env, seconds: float) -> str:
    """Close an environment as `close_instance` does, within `seconds`; returns what went wrong, or "".

    A failing close does not change the episode.
    """
    gate = gate_of(env)
    if is_default(env, "close") and not gate.holders:
        return ""
    was_held = gate.is_held
    deadline = Deadline(seconds)
    try:
        with guard("close"), deadline:
            await close_instance(env)
    except ForgeError as error:
        if not deadline.has_expired:
            return error_text(error)
        return _not_closed(gate) if was_held and gate.is_held else f"close took longer than {seconds:g} s"
    return ""


def _not_closed(gate: Gate) -> str:
    return f"it is not closed yet: {still_running(gate.running)}"


@behind_gate
async def close_instance(env: Env) -> None:
    """Close an environment when its methods have ended, for which it waits HELD_SECONDS at most.

    If a method runs on, or if this call is cancelled, the instance is closed in the background.
    """
    gate = gate_of(env)
    try:
        if gate.is_held and not await gate.stop(HELD_SECONDS, grace=GRACE_SECONDS):
            raise EnvError(_not_closed(gate))
    except (asyncio.CancelledError, EnvError):
        await _close_later(env)
        raise
    if is_default(env, "close"):
        return
    try:
        await call_on(env, env.close)
    except asyncio.CancelledError:
        if not has_expired():  # it had its time
            await _close_later(env)
        raise


async def _close_later(env: Env) -> None:
    if is_default(env, "close"):
        return
    gate_of(env).start(_close_when_free(env))
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # it begins: a task that is cancelled before never runs


async def _close_when_free(env: Env) -> None:
    """Close an instance when its methods have ended; HELD_SECONDS after a cancellation, for the event loop ends."""
    gate = gate_of(env)
    try:
        await gate.stop(math.inf, grace=GRACE_SECONDS)
    except asyncio.CancelledError as end:
        if end.args or not await gate.stop(HELD_SECONDS, grace=GRACE_SECONDS):  # with args it had this time before
            logger.warning("an instance of %s was not closed: %s", type(env).__name__, still_running(gate.running))
            return
    try:
        await call_env("close", call_on(env, env.close), Deadline(CLOSE_SECONDS))
    except ForgeError as error:
        logger.warning("an instance of %s was not closed: %s", type(env).__name__, error_text(error))


async def end_background(tasks: Collection[asyncio.Task[None]]) -> None:
    """Give tasks HELD_SECONDS to close their instances, and end them."""
    if not tasks:
        return
    _, late = await asyncio.wait(set(tasks), timeout=HELD_SECONDS)
    for task in late:
        task.cancel("the environment is closed")
    if late:
        await asyncio.wait(late, timeout=GRACE_SECONDS)
