"""Opens the agents "openai:..." of `forge_env.registry.agent_spec`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from contrib.chat.agent import OPENAI, TIMEOUT, ChatAgent
from forge_env.core.errors import UserError
from forge_env.core.protocols import Agent

if TYPE_CHECKING:
    from forge_env.registry.agent_spec import AgentSettings


@asynccontextmanager
async def open_openai(endpoint: str, settings: AgentSettings) -> AsyncIterator[Agent]:
    """Open openai:MODEL@BASE_URL, or openai:MODEL for OpenAI's endpoint. The API key comes from the environment only.

    A given `thinking` is sent as vLLM and SGLang take it, `chat_template_kwargs`; "template" sends nothing. The
    thoughts of earlier turns are then sent back, unless it is "off": the chat template keeps or drops them.
    """
    if settings.deterministic:
        raise UserError(
            "an external endpoint does not guarantee equal answers: leave --deterministic out and set --temperature 0"
        )
    settings.refuse("an endpoint", "adapter")
    body: dict[str, Any] = {} if settings.top_p is None else {"top_p": settings.top_p}
    if settings.thinking in ("off", "on"):
        body["chat_template_kwargs"] = {"enable_thinking": settings.thinking == "on"}
    model, _, url = re.sub(r"@(?=[a-zA-Z]+://)", "\0", endpoint, count=1).partition("\0")
    if not url and (address := re.search(r"@((?:localhost|[^@/]+:\d+|[^@/]+(?=/v\d))(/.*)?)$", model)):
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
