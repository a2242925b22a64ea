"""Opens the agents "scripted:..." and "openai:..." of `forge_env.registry.agent_spec`; neither needs an engine."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

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
    _check_no_adapter(settings)
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


@asynccontextmanager
async def open_openai(endpoint: str, settings: AgentSettings) -> AsyncIterator[Agent]:
    """Open openai:MODEL@BASE_URL, or openai:MODEL for OpenAI's endpoint. The API key comes from the environment only.

    A given `thinking` is sent as vLLM and SGLang take it, `chat_template_kwargs`; "template" sends nothing. The
    thoughts of earlier turns are then sent back, unless it is "off": the chat template keeps or drops them.
    """
    from agents.chat.agent import OPENAI, TIMEOUT, ChatAgent

    if settings.deterministic:
        raise UserError(
            "an external endpoint does not guarantee equal answers: leave --deterministic out and set --temperature 0"
        )
    _check_no_adapter(settings)
    body: dict[str, Any] = {} if settings.top_p is None else {"top_p": settings.top_p}
    if settings.thinking in ("off", "on"):
        body["chat_template_kwargs"] = {"enable_thinking": settings.thinking == "on"}
    model, _, url = re.sub(r"@(?=[a-zA-Z]+://)", "\0", endpoint, count=1).partition("\0")
    if not url and (address := re.search(r"@([^@/]+:\d+(/.*)?)$", model)):
        raise UserError(f"the agent openai:{endpoint} has the address {address[1]}: write it as http://{address[1]}")
    agent = ChatAgent(
        model,
        url or OPENAI,
        api_key_env=settings.api_key_env,
        temperature=settings.temperature,
        extra_body=body,
        sends_thoughts=settings.thinking in ("on", "template"),
        max_concurrency=settings.concurrency,
        requests_per_minute=settings.requests_per_minute,
        timeout=TIMEOUT if settings.answer_seconds is None else settings.answer_seconds,
        idle_timeout=settings.idle_seconds,
        # For a streamed answer the client sets no total time-out; the agent's limit applies.
        answer_seconds=None if settings.idle_seconds is None else settings.answer_seconds,
    )
    async with agent:
        yield agent


def _check_no_adapter(settings: AgentSettings) -> None:
    """Refuse settings that only a model in an engine of ours has."""
    if settings.adapter:
        raise UserError(
            f"the adapter is {settings.adapter}, and only the engines of local models, vllm: and checkpoint:, compute "
            "with one: leave --adapter out"
        )
