"""A harness of verifiers that plays the conversation inside the worker; loaded by `contrib/verifiers/worker.py`.

The harnesses that ship with verifiers start a Python process for every rollout, which takes seconds of processor time.
This one asks the model and calls the environment's tools as their "null" does, which lets the model run no code, and
ends with the first answer that calls no tool. It runs in the interpreter of verifiers.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness"]

_FULL = "context_length_exceeded"


class ChatHarness(Harness[HarnessConfig]):
    """Asks the model until an answer calls no tool."""

    APPENDS_SYSTEM_PROMPT: ClassVar[bool] = True
    SUPPORTS_MCP: ClassVar[bool] = True
    SUPPORTS_RESUME: ClassVar[bool] = True
    SUPPORTS_TOOL_INTERCEPTION: ClassVar[bool] = True
    EXECUTES_CODE: ClassVar[bool] = False
    NEEDS_CONTAINER: ClassVar[bool] = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        system_prompt, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system_prompt}] if system_prompt else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        # The rollout has deadlines of its own. To read certificates takes a tenth of a second, so only where needed.
        client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {secret}"},
            timeout=None,
            trust_env=False,
            verify=endpoint.startswith("https:"),
        )
        async with client, AsyncExitStack() as stack:
            tools = _Tools(client, tool_interception_url, *await connect_mcp({"mcpServers": servers}, stack))
            error = await _converse(client, endpoint, ctx.model, messages, tools)
        return ProgramResult(exit_code=1 if error else 0, stdout="", stderr=error)


async def _converse(
    client: httpx.AsyncClient, endpoint: str, model: str, messages: list[dict[str, Any]], tools: _Tools
) -> str:
    """Ask until an answer calls no tool; return what went wrong, if anything did."""
    body: dict[str, Any] = {"model": model, "messages": messages}
    if tools.schemas:
        body["tools"] = tools.schemas
    while True:
        response = await client.post(f"{endpoint}/chat/completions", json=body)
        if response.status_code != 200:
            return "" if _FULL in response.text else f"HTTP {response.status_code}: {response.text[:2000]}"
        message = response.json()["choices"][0]["message"]
        messages.append({name: value for name, value in message.items() if value is not None})
        calls = message.get("tool_calls") or ()
        if not calls:
            return ""
        for call in calls:
            messages.append(await tools.answer(call))


class _Tools:
    def __init__(
        self,
        client: httpx.AsyncClient,
        gate: str | None,
        schemas: list[dict[str, Any]],
        dispatch: dict[str, tuple[str, str]],
        servers: dict[str, Any],
    ) -> None:
        self.schemas = schemas
        self._client = client
        self._gate = gate
        self._dispatch = dispatch
        self._servers = servers

    async def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        name, text = call["function"]["name"], call["function"]["arguments"] or "{}"
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError):
            arguments = text
        if self._gate is not None:
            request = {"tool_call_id": call["id"], "name": name, "arguments": arguments}
            decision = (await self._client.post(self._gate, json=request)).raise_for_status().json()
            if decision["action"] == "stop":
                raise RuntimeError(decision["reason"])
            if decision["action"] == "deny":
                denial: dict[str, Any] = decision["message"]
                return denial
        if not isinstance(arguments, dict):
            content: Any = f"error: the arguments of {name} are no JSON object"
        elif name not in self._dispatch:
            content = f"error: there is no tool {name!r}"
        else:
            content = await call_mcp(self._servers, self._dispatch, name, arguments)
        return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}
