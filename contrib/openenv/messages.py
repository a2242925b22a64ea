"""Environments with assistant messages as actions and messages as observations, as forge-env serve has them.

The conversation comes as it is there, with the tools in OpenAI's form, and the last observation says how the episode
has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contrib.openenv.session import Observed
from forge_env.core.errors import ServiceError
from forge_env.core.plain_value import messages_problem
from forge_env.core.types import Action, Message, Outcome, ToolSpec

_ACTION = {"content", "tool_calls"}


def takes_messages(fields: Mapping[str, Any]) -> bool:
    return fields.keys() == _ACTION


def action_data(action: Action) -> dict[str, Any]:
    calls = action.message.get("tool_calls")
    return {"content": action.text, **({"tool_calls": calls} if calls else {})}


def messages_of(result: Observed, url: str) -> tuple[Message, ...]:
    messages = result.observation.get("messages")
    if problem := messages_problem(messages):
        raise ServiceError(f"the OpenEnv server {url} sent an observation without messages: {problem}")
    return tuple(messages)  # type: ignore[arg-type]


def tools_of(result: Observed, earlier: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
    """The tools, which an observation contains if they have changed."""
    return list(result.observation.get("tool_specs", earlier))


def info_of(result: Observed) -> dict[str, Any]:
    """Return what the last observation says about the episode, as the info of a step."""
    facts = result.metadata
    info: dict[str, Any] = {"openenv_metadata": dict(facts)} if facts else {}
    if not result.done:
        return info
    if facts.get("ended_by"):
        info["ended_by"] = facts["ended_by"]
    if facts.get("outcome") in (Outcome.TRUNCATED, Outcome.MODEL_FAULT):
        info["outcome"] = facts["outcome"]
    if isinstance(facts.get("rewards"), dict):
        info["rewards"] = facts["rewards"]
    return info


def success_of(result: Observed) -> bool | None:
    """The environment's verdict on the episode; None if it has not said it."""
    verdict = result.metadata.get("success") if result.done else None
    return verdict if isinstance(verdict, bool) else None
