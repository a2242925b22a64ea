"""Agents that `forge_env.agent_spec` names and that need no engine: scripts and outside endpoints."""

from __future__ import annotations

import re
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agents.scripted import Script, ScriptedAgent, scripted_agent
from forge_env.errors import ForgeError, UserError
from forge_env.protocols import Agent
from forge_env.registry import env_class, load
from forge_env.types import Message

if TYPE_CHECKING:
    from forge_env.agent_spec import AgentSettings


@asynccontextmanager
async def open_scripted(script: str, settings: AgentSettings) -> AsyncIterator[Agent]:
    """Open scripted:expert, scripted:null or scripted:module:function.

    Raises:
        UserError: when there is no such script, or it is asked for what only models have; from an episode, when the
            user's function fails.
    """
    if settings.temperature is not None or settings.top_p is not None or settings.deterministic:
        raise UserError("a scripted agent samples nothing: leave --temperature, --top-p and --deterministic out")
    if script == "expert" and not hasattr(env_class(settings.env), "expert"):
        raise UserError(
            f"the environment {settings.env} has no expert: take scripted:null, a function of yours as "
            "scripted:FILE.py:FUNCTION, or give the environment a staticmethod expert(messages)"
        )
    if script in ("expert", "null"):
        yield scripted_agent(settings.env, script)
        return
    function = load(script)
    if not callable(function):
        raise UserError(f"{script!r} is {function!r}; a script is a function of the messages so far")
    yield ScriptedAgent(_checked(script, function))


def _checked(name: str, function: Script) -> Script:
    """A user's function, whose mistakes are sentences."""

    def script(messages: list[Message]) -> Message:
        try:
            message = function(messages)
        except ForgeError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}, line {place.lineno}"
            raise UserError(f"the script {name} raised {type(error).__name__}: {error} ({where})") from error
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise UserError(
                f"the script {name} returned {message!r:.80}; it must return an assistant message, such as "
                "{'role': 'assistant', 'content': '4'}"
            )
        return message

    return script


@asynccontextmanager
async def open_openai(endpoint: str, settings: AgentSettings) -> AsyncIterator[Agent]:
    """Open openai:MODEL@BASE_URL, or openai:MODEL for OpenAI's own. The key comes from the environment alone.

    Raises:
        UserError: for a malformed address, a missing key, or a setting that endpoints do not have.
    """
    from agents.chat_agent import OPENAI, ChatAgent

    if settings.deterministic:
        raise UserError("an outside endpoint promises no repetition: leave --deterministic out, set --temperature 0")
    model, _, url = re.sub(r"@(?=https?://)", "\0", endpoint, count=1).partition("\0")
    agent = ChatAgent(
        model,
        url or OPENAI,
        api_key_env=settings.api_key_env,
        temperature=settings.temperature,
        extra_body={} if settings.top_p is None else {"top_p": settings.top_p},
        max_concurrency=settings.concurrency,
        requests_per_minute=settings.requests_per_minute,
    )
    async with agent:
        yield agent
