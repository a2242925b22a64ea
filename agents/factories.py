"""Opens the agents "scripted:..." of `forge_env.registry.agent_spec`, which need no engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agents.scripted import Script, ScriptedAgent, scripted_agent
from forge_env.core.errors import UserError
from forge_env.core.protocols import ANSWER_SECONDS, Agent
from forge_env.registry.registry import env_class

if TYPE_CHECKING:
    from forge_env.registry.agent_spec import AgentSettings


@asynccontextmanager
async def open_scripted(script: str | Script | Agent, settings: AgentSettings) -> AsyncIterator[Agent]:
    """Open scripted:expert, scripted:null or scripted:module:function, or a function; an Agent stays as it is."""
    if settings.temperature is not None or settings.top_p is not None or settings.deterministic:
        raise UserError("a scripted agent does not sample: leave --temperature, --top-p and --deterministic out")
    check_no_adapter(settings)
    if settings.thinking is not None:
        raise UserError(f"thinking is {settings.thinking!r}, and a scripted agent has none: leave --thinking out")
    if settings.idle_seconds is not None:
        raise UserError("a scripted agent does not stream: leave --idle-seconds out and set --answer-seconds instead")
    seconds, name = ANSWER_SECONDS if settings.answer_seconds is None else settings.answer_seconds, ""
    if script == "expert":
        script, name = getattr(settings.env_class or env_class(settings.env), "expert", ""), f"expert of {settings.env}"
        if not script:
            raise UserError(
                f"the environment {settings.env} has no expert: take scripted:null, a function of yours as "
                "scripted:FILE.py:FUNCTION, or give the environment a staticmethod expert(messages)"
            )
    if isinstance(script, str):
        yield scripted_agent(settings.env, script, answer_seconds=seconds)
    elif not hasattr(script, "act"):
        yield ScriptedAgent(script, name=name, answer_seconds=seconds)
    elif settings.answer_seconds is None:
        yield script
    else:
        raise UserError(f"answer_seconds is {seconds:g}, and an Agent that is given has its own: leave it out")


def check_no_adapter(settings: AgentSettings) -> None:
    """Refuse settings that only a model in an engine of ours has."""
    if settings.adapter:
        raise UserError(
            f"the adapter is {settings.adapter}, and only the engines of local models, vllm: and checkpoint:, compute "
            "with one: leave --adapter out"
        )
