"""`forge-env serve --as mcp`: what agents with MCP get, and what they get where something breaks."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents.scripted import scripted_agent
from contrib.serve import mcp
from contrib.serve.desk import PlayOptions
from contrib.serve.tests.served import TOKEN, Served, served
from contrib.serve.tests.served_envs import Counter, Held
from contrib.serve.tests.test_remote_env import COUNTER, ODD
from forge_env.core.episode import read_jsonl
from forge_env.core.types import Message
from forge_env.rollout.factory import make
from forge_env.utils.threads import invoke
from tests.helpers.packages import needs
from tests.helpers.waiting import wait_until

pytestmark = [needs("mcp"), needs("uvicorn")]


def opener(**options: Any) -> Any:
    return functools.partial(mcp.open_app, play=PlayOptions(**{"tasks": 6, **options}))


@pytest.fixture(scope="module")
def counter() -> Iterator[Served]:
    with served(COUNTER, opener=opener(), max_sessions=16) as server:
        yield server


@asynccontextmanager
async def connected(url: str, token: str = TOKEN) -> AsyncIterator[Any]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"}
    url = f"{url.removesuffix('/mcp')}/mcp"
    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(headers=headers, timeout=60, verify=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def call(client: Any, name: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(name, arguments)
    return result.is_error, result.content[0].text


async def test_a_session_is_an_episode(counter: Served) -> None:
    async with connected(counter.url) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["start_task", "broken", "draw", "slow", "up", "answer"]
        assert await call(client, "up") == (True, "Error: this session has no task yet: call start_task first")
        assert await call(client, "start_task", index=2) == (False, "Count.\n\nCount to 3. ?")
        assert await call(client, "up") == (False, "1")
        failed, text = await call(client, "nix")
        assert (failed, "there is no tool 'nix'" in text) == (True, True)
        assert (await call(client, "answer"))[1] == "Error: the tool answer takes one argument, text, which is a string"
        assert "has its task already" in (await call(client, "start_task"))[1]
        result = await client.call_tool("answer", {"text": "3"})
        assert result.content[0].text == "The episode is over: scored, reward 1, no success."
        facts = result.structured_content
        assert (facts["done"], facts["reward"], facts["outcome"], facts["success"]) == (True, 1.0, "scored", False)
        assert "is over, and takes no further message" in (await call(client, "up"))[1]
        assert "has its task already" in (await call(client, "start_task"))[1], "no second attempt in a session"


async def test_the_choice_of_a_task(counter: Served) -> None:
    for arguments, text in (
        ({"index": 6}, "the split test has 6 tasks, and the index is 6"),
        ({"split": "nix"}, "there is no split 'nix'"),
        ({"seed": -1}, "seed is -1; it is a whole number from 0"),
        ({"task": 1}, "has no argument 'task'"),
    ):
        async with connected(counter.url) as client:
            failed, said = await call(client, "start_task", **arguments)
            assert failed and text in said
            assert await call(client, "start_task", split="train", index=0) == (False, "Count.\n\nCount to 1. ?")
    texts = []
    for _ in range(2):
        async with connected(counter.url) as client:
            await call(client, "start_task", seed=5)
            texts.append(await call(client, "draw"))
    assert texts[0] == texts[1], "the same seed is the same episode"


async def test_the_expert_solves_its_tasks(tmp_path: Path) -> None:
    """The expert of the environment, played by calls of an MCP client."""
    with served("tool_api", opener=opener(out=tmp_path / "out", tasks=2), level=1) as server:
        async with make("tool_api", level=1) as factory:
            tasks = factory.tasks("test", count=2)
        expert: Any = scripted_agent("tool_api")._script  # type: ignore[attr-defined]

        async def play(index: int) -> Any:
            messages: list[Message] = list(tasks[index].prompt)
            async with connected(server.url) as client:
                assert not (await call(client, "start_task", index=index))[0]
                while True:
                    message = await invoke(expert, messages)
                    calls = message.get("tool_calls", [])
                    if not calls:
                        return await client.call_tool("answer", {"text": message["content"]})
                    messages.append(message)
                    for item in calls:
                        function = item["function"]
                        _, text = await call(client, function["name"], **function["arguments"])
                        answer: Message = {"role": "tool", "content": text, "tool_call_id": item.get("id", "c")}
                        messages.append(answer)

        results = await asyncio.gather(*(play(index) for index in range(2)))
        assert [result.structured_content["reward"] for result in results] == [1.0] * 2
    episodes = list(read_jsonl(tmp_path / "out" / "episodes.jsonl"))
    assert {episode.task.id for episode in episodes} == {task.id for task in tasks}
    assert all(episode.reward == 1.0 and episode.success for episode in episodes)


async def test_calls_that_come_at_once_are_turns_one_after_another(counter: Served) -> None:
    async with connected(counter.url) as client:
        await call(client, "start_task", index=0)
        texts = [text for _, text in await asyncio.gather(*(call(client, "up") for _ in range(5)))]
        assert sorted(texts) == ["1", "2", "3", "4", "5"]


async def test_tasks_that_are_begun_at_once_are_one_episode(tmp_path: Path) -> None:
    with served(COUNTER.replace("Counter", "Held"), opener=opener(out=tmp_path / "out")) as server:
        async with connected(server.url) as client:
            first = asyncio.create_task(call(client, "start_task", split="train", index=0))
            assert await asyncio.to_thread(Held.asked.wait, 60)
            others = await asyncio.gather(*(call(client, "start_task", split="train", index=index) for index in (1, 0)))
            Held.go.set()
            assert await first == (False, "Count.\n\nCount to 1. ?")
            assert all(failed and "this session has its task already" in text for failed, text in others)
            assert await call(client, "up") == (False, "1")
    assert (tmp_path / "out" / "faults.jsonl").read_text().count("\n") == 1


async def test_a_fault_is_an_error_and_no_reward(counter: Served) -> None:
    async with connected(counter.url) as client:
        await call(client, "start_task")
        result = await client.call_tool("broken", {})
        assert result.is_error
        assert "has ended without a reward: infra_fault" in result.content[0].text
        assert "the sandbox is gone" in result.content[0].text
        assert result.structured_content == {"fault": result.structured_content["fault"]}


async def test_tools_that_change_are_told() -> None:
    with served(ODD, opener=opener()) as server:
        async with connected(server.url) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["start_task", "answer"]
            await call(client, "start_task", index=0)
            await call(client, "answer", text="tools")
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["start_task", "tool1", "answer"]


def rejected(url: str, path: str = "/mcp", **headers: str) -> tuple[int, dict[str, Any]]:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    response = httpx.post(f"{url}{path}", json=request, headers=headers, verify=False)
    return response.status_code, response.json()["error"]


def test_what_is_refused(counter: Served) -> None:
    token = {"authorization": f"Bearer {TOKEN}"}
    assert rejected(counter.url)[0] == 401
    assert rejected(counter.url, authorization="Bearer another-token-of-tests")[0] == 401
    assert rejected(counter.url, path="/nix", **token)[0] == 404
    status, error = rejected(counter.url, **token, **{"mcp-protocol-version": "2099-01-01"})
    assert (status, error["code"], error["data"]["requested"]) == (400, -32022, "2099-01-01")
    assert error["message"].startswith("this server speaks the versions ")
    status, error = rejected(counter.url, **token, **{"mcp-session-id": "0" * 32})
    assert (status, error["message"]) == (404, "Session not found")


async def test_sessions_are_bounded() -> None:
    from mcp import MCPError

    with served(COUNTER, opener=opener(), max_sessions=1) as server:
        async with connected(server.url) as client:
            await call(client, "start_task")
            with pytest.raises(ExceptionGroup) as raised:
                async with connected(server.url):
                    pass
            assert raised.group_contains(MCPError, match="Too many open sessions")
        async with connected(server.url) as client:
            assert not (await call(client, "start_task"))[0]


async def test_a_client_that_leaves_ends_its_episode(tmp_path: Path) -> None:
    with served(COUNTER, opener=opener(out=tmp_path / "out")) as server:
        before = len(Counter.closed)
        async with connected(server.url) as client:
            await call(client, "start_task")
        await asyncio.to_thread(wait_until, lambda: len(Counter.closed) > before)
    assert "the client ended its session" in json.loads((tmp_path / "out" / "faults.jsonl").read_text())["error"]


async def test_a_silent_client_ends_its_episode(tmp_path: Path) -> None:
    with served(COUNTER, opener=opener(out=tmp_path / "out"), idle_seconds=0.4) as server:
        before = len(Counter.closed)
        async with connected(server.url) as client:
            await call(client, "start_task")
            await asyncio.to_thread(wait_until, lambda: len(Counter.closed) > before)
    assert "Client did not answer within 0.4 s" in (tmp_path / "out" / "faults.jsonl").read_text()


async def test_the_end_of_the_server_ends_its_episodes(tmp_path: Path) -> None:
    with served(COUNTER, opener=opener(out=tmp_path / "out")) as server:
        async with connected(server.url) as client:
            await call(client, "start_task")
            await asyncio.to_thread(server.stop)
    assert (tmp_path / "out" / "faults.jsonl").read_text().count("\n") == 1


async def test_our_own_tools_of_mcp_servers_can_use_it(counter: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mcp:URL` as tools: the two directions fit together."""
    from contrib.apis.mcp.tools import open_mcp

    monkeypatch.setenv("HEADER", f"Bearer {TOKEN}")
    async with open_mcp(f"{counter.url}/mcp", headers={"Authorization": "HEADER"}) as server:
        assert next(tool.name for tool in server.tools) == "start_task"
        assert await server.call("start_task", {"index": 0}) == "Count.\n\nCount to 1. ?"
        assert await server.call("answer", {"text": "1"}) == "The episode is over: scored, reward 1, no success."
