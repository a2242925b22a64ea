"""Calls of an environment's methods: their deadlines, their exceptions as faults, and the checks of what they return.

The rollout loop reads nothing else from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import pydantic_core

from forge_env.core.env import Env
from forge_env.core.errors import EnvError, ForgeError
from forge_env.core.plain_value import own_copy
from forge_env.core.protocols import NextTurn
from forge_env.core.reward_value import reward_value
from forge_env.core.types import EpisodeLimits, Message, Outcome, ToolUse
from forge_env.core.user_code import error_text, fault, guard
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


_INTERPRETED_KEYS = frozenset({"rewards", "tools", "outcome", "next"})
"""Keys of an info that the rollout loop interprets; all others are recorded."""
_LIMIT_NAMES = frozenset(field.name for field in fields(EpisodeLimits))
"""Values that info["ended_by"] may have: a limit of the episode that the environment enforces itself."""
_MAPPING = (dict, Mapping)  # an abstract class is slow to ask, and a dict is found before


class ResetResult(NamedTuple):
    observation: tuple[Message, ...]
    next_turn: NextTurn | None
    info: Mapping[str, Any]
    """What is recorded in the Episode."""


class StepResult(NamedTuple):
    observation: tuple[Message, ...]
    reward: float
    terminated: bool
    truncated: bool
    rewards: Mapping[str, float]
    tool_uses: tuple[ToolUse, ...]
    outcome: Outcome | None
    ended_by: str
    next_turn: NextTurn | None
    info: Mapping[str, Any]
    """What is recorded in the Episode."""


def read_reset(result: Any) -> ResetResult:
    observation, info = _parts(result, "messages, info")
    return ResetResult(_messages(observation), info.get("next"), recorded_info(info))


def read_step(result: Any) -> StepResult:
    observation, reward, terminated, truncated, info = _parts(result, "messages, reward, terminated, truncated, info")
    return StepResult(
        _messages(observation),
        reward_value(reward, "step returned the reward"),
        bool(terminated),
        bool(truncated),
        _reward_parts(info["rewards"]) if "rewards" in info else {},
        tuple(info.get("tools", ())),
        Outcome(info["outcome"]) if "outcome" in info else None,
        _ended_by(info) if "ended_by" in info else "environment",
        info.get("next"),
        {} if info.keys() <= _INTERPRETED_KEYS else recorded_info(info),
    )


def read_on_limit(result: Any) -> StepResult | None:
    return None if result is None else read_step(result)


def read_success(value: Any) -> bool:
    if not isinstance(value, bool) and type(value).__name__ != "bool":  # NumPy has a bool of its own
        raise TypeError(f"it returned {value!r:.80}, and not True or False")
    return bool(value)


def recorded_info(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of an info that the loop does not interpret, as JSON data: an Episode is written to disk."""
    if info.keys() <= _INTERPRETED_KEYS:
        return {}
    others = {key: value for key, value in info.items() if key not in _INTERPRETED_KEYS}
    return {key: pydantic_core.to_jsonable_python(value, fallback=repr) for key, value in others.items()}


def _parts(result: Any, form: str) -> Any:
    if not isinstance(result, (tuple, list)) or len(result) != form.count(",") + 1:
        raise TypeError(f"it is {result!r:.80}, and not ({form})")
    return result


def _messages(observation: Any) -> tuple[Message, ...]:
    given = (observation,) if isinstance(observation, str) else tuple(observation)
    messages = own_copy(given)  # the environment may edit them, and the model saw these
    for message in messages:
        if not isinstance(message, _MAPPING) or "role" not in message or "content" not in message:
            raise TypeError(f"{message!r:.80} is no message; a message is a dict with role and content")
    return messages


def _reward_parts(parts: Mapping[str, Any]) -> dict[str, float]:
    return {
        str(name): reward_value(part, f"step returned the part {name} of the reward,") for name, part in parts.items()
    }


def _ended_by(info: Mapping[str, Any]) -> str:
    limit = info.get("ended_by")
    return limit if isinstance(limit, str) and limit in _LIMIT_NAMES else "environment"
