"""verifiers: a taskset whose tool server the rollouts share, and a model behind the endpoint.

The harness runs its loop in the process, as short as the contract allows: those of the package start a program for each
rollout, and so play few at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import httpx
import verifiers.v1 as vf
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig, provision_runtime
from verifiers.v1.utils.loaders import resolve_env_config

from benchmarks.rivals.endpoint import endpoint
from benchmarks.rivals.play import Play, Run
from benchmarks.rivals.task import TASKS, calculate, question, target

__all__ = ["Calculator", "Conversation"]
NAME = "rivals_calculator"
sys.modules[NAME] = sys.modules[__name__]  # verifiers finds a taskset by the name of a module without dots


class Tools(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    async def calculator(self, expression: str) -> str:
        """Calculate."""
        return calculate(expression)


class Data(vf.TaskData):
    answer: str


class Start(vf.Task[Data]):
    @vf.reward
    async def right(self, task: Data, trace: Any) -> float:
        return float(trace.last_reply.strip() == task.answer)


class Config(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class Calculator(vf.Taskset[Start, Config]):
    def load(self) -> Any:
        for i in range(TASKS):
            yield Start(Data(prompt=question(i), answer=target(i)), self.config.task)

    @classmethod
    def toolsets(cls, config: Config) -> list[Any]:
        return [Tools(config.tools)]


class Conversation(Harness[HarnessConfig]):
    """Asks the model until an answer calls no tool, in this process, by an HTTP client for each rollout."""

    SUPPORTS_MCP: ClassVar[bool] = True
    EXECUTES_CODE: ClassVar[bool] = False
    NEEDS_CONTAINER: ClassVar[bool] = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> ProgramResult:
        messages: list[dict[str, Any]] = [{"role": "user", "content": data.prompt}]
        servers = {name: {"url": url} for name, url in mcp_urls.items()}
        client = httpx.AsyncClient(timeout=None, trust_env=False, verify=False)  # to read certificates takes long
        async with client, AsyncExitStack() as stack:
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            while True:
                body = {"model": ctx.model, "messages": messages, "tools": tools}
                headers = {"Authorization": f"Bearer {secret}"}
                reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                message = reply.raise_for_status().json()["choices"][0]["message"]
                messages.append({key: value for key, value in message.items() if value is not None})
                if not message.get("tool_calls"):
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    function = call["function"]
                    said = await call_mcp(connections, dispatch, function["name"], json.loads(function["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})


@asynccontextmanager
async def conversations(seconds: float) -> AsyncIterator[Play]:
    agent = {"harness": {"id": NAME}, "runtime": {"type": "subprocess"}}
    env = vf.load_environment(resolve_env_config({"taskset": {"id": NAME}, "agent": agent}))
    async with endpoint(seconds) as url:
        os.environ["RIVALS_KEY"] = "none"
        context = vf.ModelContext(model="policy", client=vf.EvalClientConfig(base_url=url, api_key_var="RIVALS_KEY"))
        async with env.serving():
            tasks = list(env.taskset)

            async def play(episodes: int) -> None:
                slots = [env.slots(tasks[index % TASKS])[0] for index in range(episodes)]
                done = await asyncio.gather(*(env.run_slot(slot, context) for slot in slots))
                failed = next((episode for episode in done if not episode.ok), None)
                assert failed is None, failed
                assert sum(episode.traces[0].reward for episode in done) == episodes

            yield play


@asynccontextmanager
async def runtime() -> AsyncIterator[Run]:
    async with provision_runtime(SubprocessConfig()) as box:

        async def run(code: str) -> str:
            return (await box.run(["python3", "-c", code], {})).stdout

        yield run


PACKAGE = "verifiers"
WAYS = {"harness of one's own": (conversations, 64)}
CODE = {"runtime subprocess": runtime}

if "MCP_PORT_FILE" in os.environ:  # verifiers starts this module again, as the server of its tools
    Tools.run()
