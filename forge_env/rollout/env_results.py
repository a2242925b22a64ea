"""Checks and converts what the methods of an environment return. The rollout loop reads nothing else from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import pydantic_core

from forge_env.core.own_copies import own_copy
from forge_env.core.protocols import NextTurn
from forge_env.core.reward_value import reward_value
from forge_env.core.types import EpisodeLimits, Message, Outcome, ToolUse

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
    observation, info = result
    return ResetResult(_messages(observation), info.get("next"), recorded_info(info))


def read_step(result: Any) -> StepResult:
    observation, reward, terminated, truncated, info = result
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


def _messages(observation: Any) -> tuple[Message, ...]:
    messages = own_copy(tuple(observation))  # the environment may edit them, and the model saw these
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
