"""`forge-env serve --as openenv`: what clients of OpenEnv get, and what they get where something breaks."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted import scripted_agent
from contrib.records.run_settings import all_files
from contrib.serve import openenv
from contrib.serve.desk import PlayOptions
from contrib.serve.tests.served import TOKEN, Served, served, server_process
from contrib.serve.tests.served_envs import Counter
from contrib.serve.tests.test_remote_env import COUNTER, ODD, playing
from forge_env.core.episode import read_jsonl
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode
from tests.helpers.packages import needs
from tests.helpers.waiting import wait_until

pytestmark = [needs("websockets"), needs("uvicorn")]


def opener(**options: Any) -> Any:
    return functools.partial(openenv.open_app, play=PlayOptions(**{"tasks": 6, **options}))


@pytest.fixture(scope="module")
def counter() -> Iterator[Served]:
    with served(COUNTER, opener=opener(), max_sessions=8) as server:
        yield server


@pytest.fixture(scope="module")
def odd() -> Iterator[Served]:
    with served(ODD, opener=opener(limits={"max_turns": 4})) as server:
        yield server


class Socket:
    """The frames of a client."""

    def __init__(self, socket: Any) -> None:
        self.raw = socket

    async def ask(self, kind: str, **data: Any) -> dict[str, Any]:
        await self.raw.send(json.dumps({"type": kind, "data": data}))
        answer: dict[str, Any] = json.loads(await self.raw.recv())
        return answer

    async def say(self, text: str) -> dict[str, Any]:
        answer = await self.ask("step", content=text)
        assert answer["type"] == "observation", answer
        data: dict[str, Any] = answer["data"]
        return data

    async def error(self, kind: str, **data: Any) -> tuple[str, str]:
        answer = await self.ask(kind, **data)
        assert answer["type"] == "error", answer
        return answer["data"]["code"], answer["data"]["message"]


@asynccontextmanager
async def connected(url: str, query: str = "", token: str = TOKEN) -> AsyncIterator[Socket]:
    from websockets.asyncio.client import connect

    address = f"ws{url.removeprefix('http')}/{token}/ws{query}"
    async with asyncio.timeout(60), connect(address, proxy=None) as socket:
        yield Socket(socket)


@pytest.mark.parametrize("env", ["math", "tool_api"])
async def test_there_and_back_is_the_same_episode(env: str) -> None:
    with served(env, opener=opener(tasks=2), level=1) as server:
        name = f"openenv:{server.url}"
        async with make(name, token_env="FORGE_ENV_TOKEN") as remote, make(env, level=1) as local:
            here = {task.id: task for task in local.tasks("test", count=2)}
            there = remote.tasks("test", count=2)
            assert all(task.prompt == here[task.id].prompt and task.kind == here[task.id].kind for task in there)
            assert all(task.target is None for task in there), "a client does not learn the solution"
            for script, reward in (("expert", 1.0), ("null", 0.0)):
                agent = scripted_agent(env, script)
                played = await asyncio.gather(
                    *(run_episode(remote, agent, task, seed=5, episode_id="e") for task in there)
                )
                for episode in played:
                    same = await run_episode(local, agent, here[episode.task.id], seed=5, episode_id="e")
                    assert episode.messages == same.messages, episode.error
                    assert (episode.outcome, episode.reward, episode.success, episode.ended_by, episode.rewards) == (
                        *(same.outcome, same.reward, same.success, same.ended_by, same.rewards),
                    )
                    assert episode.reward == reward


async def test_an_episode_by_messages(counter: Served) -> None:
    async with connected(counter.url) as client:
        first = (await client.ask("reset", seed=3))["data"]
        again = (await client.ask("reset", seed=3))["data"]
        assert first["observation"]["messages"] == again["observation"]["messages"]
        assert (first["reward"], first["done"], first["metadata"]["seed"]) == (None, False, 3)
        names = [tool["function"]["name"] for tool in first["observation"]["tool_specs"]]
        assert names == ["broken", "draw", "slow", "up"]
        call = {"id": "c1", "type": "function", "function": {"name": "up", "arguments": "{}"}}
        step = (await client.ask("step", content="", tool_calls=[call]))["data"]
        answer = {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "up"}
        assert (step["observation"]["messages"], step["reward"], step["done"]) == ([answer], 0.0, False)
        assert "tool_specs" not in step["observation"], "they have not changed"
        state = (await client.ask("state"))["data"]
        assert (state["step_count"], state["seed"], state["index"]) == (1, 3, first["metadata"]["index"])
        last = (await client.ask("step", content=0))["data"]  # a client that read the text as JSON
        assert (last["reward"], last["done"]) == (0.5, True)
        facts = last["metadata"]
        assert (facts["outcome"], facts["success"], facts["rewards"]) == ("scored", True, {"right": 0.5})
        assert await client.error("step", content="0") == (
            "EXECUTION_ERROR",
            f"the episode {state['episode_id']} is over, and takes no further message: reset begins another one",
        )
        one, other = [(await client.ask("reset"))["data"]["metadata"]["index"] for _ in range(2)]
        assert other == (one + 1) % 6, "without a seed and an index, tasks come in turn"


async def test_an_episode_by_calls_of_tools(counter: Served) -> None:
    async with connected(counter.url) as client:
        listed = (await client.ask("step", type="list_tools"))["data"]["observation"]["tools"]
        assert [tool["name"] for tool in listed] == ["broken", "draw", "slow", "up", "answer"]
        assert (await client.error("step", type="call_tool", tool_name="up"))[1].startswith("there is no episode yet")
        await client.ask("reset", index=2)
        step = (await client.ask("step", type="call_tool", tool_name="up", arguments={}))["data"]
        content = [{"type": "text", "text": "1"}]
        assert step["observation"]["result"] == {"content": content, "data": "1", "is_error": False}
        step = (await client.ask("step", type="call_tool", tool_name="nix", arguments={}))["data"]
        assert step["observation"]["result"]["is_error"]
        assert "there is no tool 'nix'" in step["observation"]["result"]["data"]
        answer = {"tool_name": "answer", "arguments": {"text": "3"}}
        assert (await client.error("step", type="call_tool", tool_name="answer", arguments={}))[0] == "VALIDATION_ERROR"
        last = (await client.ask("step", type="call_tool", **answer))["data"]
        assert (last["reward"], last["done"], last["metadata"]["reward"]) == (1.0, True, 1.0)


def test_an_episode_over_http(counter: Served) -> None:
    def ask(method: str, **params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return httpx.post(f"{counter.url}/{TOKEN}/mcp", json=request, timeout=30, verify=False).json()

    session = ask("openenv/session/create")["result"]["session_id"]

    async def begin() -> None:
        async with connected(counter.url, f"?session_id={session}") as client:
            await client.ask("reset", index=0)
            async with connected(counter.url, f"?session_id={session}") as other:
                assert "has a WebSocket already" in (await other.error("state"))[1]

    asyncio.run(begin())
    assert ask("tools/list", session_id=session)["result"]["tools"][0]["inputSchema"]["type"] == "object"
    assert ask("tools/call", session_id=session, name="up", arguments={})["result"]["data"] == "1"
    broken = ask("tools/call", session_id=session, name="broken", arguments={})["error"]["message"]
    assert "infra_fault" in broken and "the sandbox is gone" in broken
    assert ask("openenv/session/close", session_id=session)["result"]["closed"]
    assert "there is no session" in ask("tools/call", session_id=session, name="up")["error"]["message"]


def test_tasks_are_listed_without_their_solutions(counter: Served) -> None:
    with httpx.Client(base_url=f"{counter.url}/{TOKEN}", verify=False) as client:

        def ask(path: str, **body: Any) -> Any:
            return client.post(path, json=body).json()

        [name] = client.get("/list_environments").json()
        assert [split["name"] for split in client.get(f"/{name}/splits").json()] == ["train", "test"]
        assert ask(f"/{name}/num_tasks", split="train") == {"num_tasks": 6}
        task = ask(f"/{name}/task", split="train", index=1)["task"]
        assert set(task) == {"id", "prompt", "kind"}
        part = ask(f"/{name}/task_range", split="train", start=1, stop=3)["tasks"]
        assert part[0] == task and len(part) == 2
        assert client.post(f"/{name}/task", json={"split": "train", "index": 6}).status_code == 400
        assert "there is no split" in ask(f"/{name}/tasks", split="nix")["detail"]
        assert client.get("/health").json() == {"status": "healthy"}
        assert client.get("/schema").json()["action"]["required"] == ["content"]
        assert client.get("/metadata").json()["description"].startswith("Counts, draws numbers")
        assert client.post("/reset", json={}).status_code == 404


@given(
    words=st.lists(st.sampled_from(["x", "tools", "context", "done", "truncated", "outcome"]), min_size=1, max_size=5)
)
@settings(max_examples=12, deadline=None)
def test_the_rewards_of_the_steps_are_those_of_the_episode(odd: Served, words: list[str]) -> None:
    async def play() -> None:
        async with connected(odd.url) as client:
            await client.ask("reset", index=0)
            told, last = 0.0, {}
            for word in (*words, "x", "x", "x", "x"):
                last = await client.say(word)
                told += last["reward"]
                if last["done"]:
                    break
            assert last["done"], "at the latest by max_turns"
            assert told == pytest.approx(last["metadata"]["reward"])
            cut = last["metadata"]["outcome"] == "truncated"
            assert cut == (last["metadata"]["ended_by"] == "max_turns")

    asyncio.run(play())


async def test_a_fault_is_an_error_and_no_reward(odd: Served) -> None:
    async with connected(odd.url) as client:
        for word, text in (("raise", "KeyError: 'price'"), ("nan", "step returned the reward")):
            await client.ask("reset", index=0)
            code, message = await client.error("step", content=word)
            assert code == "EXECUTION_ERROR" and text in message
        assert (await client.ask("reset", index=0))["type"] == "observation", "the session goes on"


async def test_requests_of_another_form_change_nothing(counter: Served) -> None:
    async with connected(counter.url) as client:
        await client.ask("reset", index=0)
        for data in ({"text": "1"}, {"content": ["1"]}, {"content": "", "tool_calls": "up"}, {}):
            assert (await client.error("step", **data))[0] == "VALIDATION_ERROR"
        for data in ({"index": 99}, {"index": "1"}, {"seed": -1}, {"split": "nix"}, {"split": 3}):
            assert (await client.error("reset", **data))[0] == "VALIDATION_ERROR"
        assert (await client.error("fly"))[0] == "UNKNOWN_TYPE"
        for text in ("{", "[1]", "1"):
            await client.raw.send(text)
            assert json.loads(await client.raw.recv())["data"]["code"] == "INVALID_JSON"
        await client.raw.send('{"type": "step", "data": [1]}')
        assert json.loads(await client.raw.recv())["data"]["code"] == "VALIDATION_ERROR"
        assert (await client.say("1"))["done"], "the episode has taken none of it"


async def test_only_who_has_the_token(counter: Served) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    for path in ("/ws", "/another-token-of-tests/ws", f"/{TOKEN}x/ws", f"/{TOKEN}/nix"):
        with pytest.raises(InvalidStatus, match="403"):
            async with connect(f"ws{counter.url.removeprefix('http')}{path}", proxy=None):
                pass
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with connect(f"ws{counter.url.removeprefix('http')}/ws", additional_headers=headers, proxy=None) as socket:
        assert (await Socket(socket).ask("state"))["type"] == "state"
    assert httpx.get(f"{counter.url}/schema", verify=False).status_code == 401
    assert httpx.get(f"{counter.url}/schema", headers=headers, verify=False).status_code == 200


async def test_sessions_are_bounded_and_our_client_waits_for_one() -> None:
    with served(COUNTER, opener=opener(), max_sessions=1) as server:
        async with make(f"openenv:{server.url}", token_env="FORGE_ENV_TOKEN") as factory:
            async with connected(server.url) as client:
                await client.ask("reset")
                async with connected(server.url) as other:
                    answer = json.loads(await other.raw.recv())["data"]
                    assert answer["code"] == "CAPACITY_REACHED"
                    assert answer["message"].startswith("all 1 sessions are in use")
            task = factory.tasks("test", count=1)[0]
            played = (run_episode(factory, playing("0"), task, seed=1, episode_id=f"{i}") for i in range(3))
            for episode in await asyncio.gather(*played):
                assert (episode.outcome, episode.reward, episode.success) == (Outcome.SCORED, 0.5, True), episode.error


def test_a_killed_client_leaves_nothing(tmp_path: Path) -> None:
    client = """
import sys, json, time
from websockets.sync.client import connect
socket = connect(sys.argv[1], proxy=None)
socket.send(json.dumps({"type": "reset", "data": {}}))
socket.recv()
socket.send(json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": "up", "arguments": {}}}))
socket.recv()
print("ready", flush=True)
time.sleep(600)
"""
    out = tmp_path / "out"
    with served(COUNTER, opener=opener(out=out)) as server:
        url = f"ws{server.url.removeprefix('http')}/{TOKEN}/ws"
        process = subprocess.Popen([sys.executable, "-c", client, url], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            before = len(Counter.closed)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        wait_until(lambda: len(Counter.closed) > before and not server.app.sessions)
    line = json.loads((out / "faults.jsonl").read_text())
    assert (line["episode"]["reward"], len(line["episode"]["turns"])) == (None, 1)
    assert "the client ended its session before the end of the episode" in line["error"]


async def test_a_killed_server_is_a_fault() -> None:
    with server_process("--env", COUNTER, "--as", "openenv", "--tasks", "3") as (process, url):
        async with make(f"openenv:{url}", token_env="FORGE_ENV_TOKEN") as factory:
            task = factory.tasks("test", count=1)[0]

            async def kill(messages: Any) -> Any:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return {"role": "assistant", "content": "1"}

            from agents.scripted import ScriptedAgent

            episode = await run_episode(factory, ScriptedAgent(kill), task, seed=1, episode_id="e")
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
    assert "was lost" in episode.error


async def test_faults_come_back_as_faults(odd: Served, counter: Served) -> None:
    for server, turn, outcome in ((odd, "raise", Outcome.ENV_FAULT), (counter, ("broken", {}), Outcome.INFRA_FAULT)):
        async with make(f"openenv:{server.url}", token_env="FORGE_ENV_TOKEN") as factory:
            task = factory.tasks("test", count=1)[0]
            episode = await run_episode(factory, playing(turn), task, seed=1, episode_id="e")
        assert (episode.outcome, episode.reward) == (outcome, None), episode.error


async def test_a_truncated_episode_comes_back_as_one(odd: Served) -> None:
    async with make(f"openenv:{odd.url}", token_env="FORGE_ENV_TOKEN") as factory:
        task = factory.tasks("test", count=1)[0]
        episode = await run_episode(
            factory, playing("x"), task, seed=1, episode_id="e", limits=EpisodeLimits(max_turns=9)
        )
    assert (episode.outcome, episode.ended_by, len(episode.turns)) == (Outcome.TRUNCATED, "max_turns", 4), episode.error
    assert episode.reward == pytest.approx(4 * 0.1 - 0.25)


def test_an_idle_session_is_ended(tmp_path: Path) -> None:
    from websockets.exceptions import ConnectionClosed

    with served(COUNTER, opener=opener(out=tmp_path / "out"), idle_seconds=0.3) as server:

        async def idle() -> None:
            async with connected(server.url) as client:
                await client.ask("reset")
                with pytest.raises(ConnectionClosed):
                    await client.raw.recv()

        asyncio.run(idle())
        request = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
        assert "result" in httpx.post(f"{server.url}/{TOKEN}/mcp", json=request, verify=False).json()
        wait_until(lambda: not server.app.sessions)
    assert "Client did not answer within 0.3 s" in (tmp_path / "out" / "faults.jsonl").read_text()


async def test_the_record_is_that_of_any_episode_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for run in range(2):
        with served(COUNTER, opener=opener(out=out)) as server:
            async with connected(server.url) as client:
                await client.ask("reset", index=1, seed=9)
                await client.ask("step", type="call_tool", tool_name="draw", arguments={})
                await client.say("2")
                await client.ask("reset", index=1)
        [episode, *more] = list(read_jsonl(out / "episodes.jsonl"))
        assert len(more) == run
        assert [e.id.rpartition("/")[2] for e in (episode, *more)] == ["0", "2"][: run + 1]
    async with make(COUNTER) as factory:
        task = factory.tasks("test", count=6)[1]
        same = await run_episode(factory, playing(("draw", {}), "2"), task, seed=9, episode_id="e")
    texts = [[m["content"] for m in e.messages] for e in (episode, same)]
    assert texts[0] == texts[1]
    assert (episode.reward, episode.success, episode.info["count"], episode.info["model_calls"]) == (
        *(same.reward, same.success, same.info["count"], same.info["model_calls"]),
    )
    assert set(all_files(out)) == {"", "faults"}


def test_sigterm_ends_the_command_and_its_episodes(tmp_path: Path) -> None:
    arguments = ("--env", COUNTER, "--as", "openenv", "--tasks", "3", "--out", str(tmp_path / "out"))
    with server_process(*arguments) as (process, url):

        async def begin() -> int:
            async with connected(url) as client:
                await client.ask("reset")
                process.send_signal(signal.SIGTERM)
                return await asyncio.to_thread(process.wait, 30)

        assert asyncio.run(begin()) == 143
    assert (tmp_path / "out" / "faults.jsonl").read_text().count("\n") == 1
