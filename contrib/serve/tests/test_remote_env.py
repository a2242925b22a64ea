"""An episode of a served environment equals the one in-process, and what happens on the way is a fault or nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent, scripted_agent
from contrib.serve.remote.env import RemoteEnv
from contrib.serve.remote.server_address import ServerAddress
from contrib.serve.remote.wire import Answer
from contrib.serve.tests.served import Proxy, Served, served, server_process
from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, UserError
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, ToolCall
from forge_env.evaluation.digests import environment_digests
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode

COUNTER = "contrib.serve.tests.served_envs:Counter"
ODD = "contrib.serve.tests.served_envs:Odd"


def playing(*turns: str | tuple[str, dict[str, Any]]) -> ScriptedAgent:
    """Return an agent that says texts and calls tools, in order; the last one again and again."""

    async def script(messages: list[Message]) -> Message:
        number = sum(message["role"] == "assistant" for message in messages)
        turn = turns[min(number, len(turns) - 1)]
        if isinstance(turn, str):
            return {"role": "assistant", "content": turn}
        call = {"id": f"c{number}", "function": {"name": turn[0], "arguments": turn[1]}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    return ScriptedAgent(script)


def content(episode: Episode, env: str) -> dict[str, Any]:
    """All of an episode as JSON data, apart from the times, and with `env` for the address of a server."""
    data: dict[str, Any] = json.loads(episode.to_json().replace(episode.env, env))
    for turn in data["turns"]:
        for name in ("env_seconds", "policy_seconds"):
            assert turn.pop(name) >= 0
        for use in turn["tool_uses"]:
            assert use.pop("seconds") >= 0
    return data


async def both(
    env: str, url: str, agent: ScriptedAgent, limits: EpisodeLimits | None = None, *, count: int = 3, **options: Any
) -> list[Episode]:
    """Play the same episodes in this process and at a server: of so many tasks, each with a seed of its own."""
    played: list[list[Episode]] = []
    for factory in (make(env, **options), make(url)):
        async with factory:
            played.append(
                [
                    await run_episode(factory, agent, task, seed=7 + i, episode_id=f"e{i}", limits=limits)
                    for i, task in enumerate(factory.tasks("test", count=count, seed=5))
                ]
            )
    here, there = played
    assert [content(episode, env) for episode in there] == [content(episode, env) for episode in here]
    return there


@pytest.fixture(scope="module")
def counter() -> Iterator[Served]:
    with served(COUNTER, level=2) as server:
        yield server


@pytest.fixture(scope="module")
def odd() -> Iterator[Served]:
    with served(ODD) as server:
        yield server


@pytest.mark.parametrize(
    "turns",
    [
        [("up", {}), ("draw", {}), ("up", {}), "2"],
        [("draw", {}), ("no_such_tool", {}), ("up", {"by": 3}), "0"],
        [("up", {})],
        [("broken", {})],
        ["wrong"],
    ],
    ids=["solved", "mistakes", "limit of turns", "fault", "wrong"],
)
async def test_an_episode_of_a_tool_env_is_the_same(counter: Served, turns: Sequence[Any]) -> None:
    episodes = await both(COUNTER, counter.url, playing(*turns), level=2)
    if turns == [("broken", {})]:
        assert {(e.outcome, e.reward) for e in episodes} == {(Outcome.INFRA_FAULT, None)}
        assert episodes[0].error == "SandboxError: tool broken: the sandbox is gone"
    if len(turns) == 4:
        assert episodes[0].info["model_calls"]["user"]["prompt_tokens"] == 3
    if turns[-1] == "0":
        assert episodes[0].success, "its own idea of success came along"
    assert "refused_requests" in episodes[0].info


@pytest.mark.parametrize("result", [{}, [], "", 0, False, None])
def test_an_empty_result_arrives_as_it_is(result: Any) -> None:
    """An environment may list no cheats, and a session that could not begin has no final info."""
    assert Answer.load(Answer(result=result).dump()).result == result


@pytest.mark.parametrize(
    "words", ["raise", "exit", "nan", "shape", "outcome", "truncated", "done", "context", "tools", "queue", "on"]
)
async def test_whatever_a_step_returns_or_raises_is_the_same(odd: Served, words: str) -> None:
    limits = EpisodeLimits(max_turns=4, step_seconds=5)
    await both(ODD, odd.url, playing("first", words, "done"), limits, count=1)


async def test_time_on_the_server_is_the_time_of_the_episode(odd: Served) -> None:
    """A model that stalls is truncated with its reward; an environment that waits in a queue uses no time."""
    slow = EpisodeLimits(max_turns=4, step_seconds=0.2, episode_seconds=60)
    for episode in await both(ODD, odd.url, playing("first", "sleep"), slow, count=1):
        assert (episode.outcome, episode.ended_by, episode.reward) == (Outcome.TRUNCATED, "step_seconds", 0.1 - 0.25)
        assert episode.info["limited"] == "step_seconds"
    for episode in await both(ODD, odd.url, playing("queue", "done"), slow, count=1):
        assert episode.outcome is Outcome.SCORED
    short = replace(slow, step_seconds=9, episode_seconds=0.2)
    for episode in await both(ODD, odd.url, playing("tools", "sleep"), short, count=1):
        assert (episode.outcome, episode.reward) == (Outcome.TIMEOUT, None)


async def test_an_answer_that_is_no_json_is_a_fault_of_the_environment(odd: Served) -> None:
    async with make(odd.url) as factory:
        [task] = factory.tasks(count=1)
        episode = await run_episode(factory, playing("no json"), task, seed=0, episode_id="e")
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert "no JSON" in episode.error


@pytest.mark.parametrize("env", ["code_exec", "tool_api"])
async def test_an_episode_with_a_sandbox_or_services_is_the_same(env: str) -> None:
    with served(env) as server:
        episodes = await both(env, server.url, scripted_agent(server.url), count=1)
    assert {episode.reward for episode in episodes} == {1.0}


def test_the_class_is_what_the_server_declares(counter: Served) -> None:
    here, there = make(COUNTER, level=2), make(counter.url)
    assert there.tasks(count=4) == here.tasks(count=4)
    assert [task.kind for task in there.tasks(count=2)] == ["even", "odd"]
    assert there.episode_limits() == here.episode_limits()
    assert list(there.env_class.tools) == list(here.env_class.tools)
    assert environment_digests(here).items() <= environment_digests(there).items()
    with pytest.raises(UserError, match="there is no split 'other'"):
        there.tasks("other", count=1)
    with pytest.raises(UserError, match="has no option 'level'"):
        make(counter.url, level=1)


async def transcript(name: str, calls: Sequence[str], seed: int, **options: Any) -> list[Any]:
    """Everything that one instance returns, without the values of its infos, which may hold durations."""
    async with make(name, **options) as factory:
        env = factory.make()
        options = {"task": factory.tasks(count=1)[0], "limits": EpisodeLimits()}
        results = [await env.reset(seed=seed, options=options)]
        for i, called in enumerate(calls):
            if called == "reset":
                results.append(await env.reset(seed=seed + i, options=options))
            else:
                call = ToolCall(id=f"c{i}", name=called, arguments={})
                message: Message = {"role": "assistant", "content": ""}
                results.append(await env.step(Action(message=message, tool_calls=(call,))))
        await env.close()
        await env.close()
        return [[list(result[0]), *result[1:-1], sorted(result[-1])] for result in results] + [env.final_info()]


@settings(max_examples=10)
@given(st.lists(st.sampled_from(["up", "draw", "reset"]), max_size=8), st.integers(0, 2**31))
def test_any_calls_of_one_instance_are_the_same(counter: Served, calls: list[str], seed: int) -> None:
    assert asyncio.run(transcript(counter.url, calls, seed)) == asyncio.run(transcript(COUNTER, calls, seed, level=2))


async def test_calls_out_of_order_are_refused(counter: Served) -> None:
    async with make(counter.url) as factory:
        env = factory.make()
        with pytest.raises(EnvError, match="before reset"):
            await env.step(Action(message={"role": "assistant", "content": "2"}))
        await env.close()
    with pytest.raises(EnvError, match="async with forge_env.make"):
        await factory.env_class().reset(options={"task": factory.tasks(count=1)[0]})


def behind(proxy: str, server: Served) -> type[RemoteEnv]:
    """The class of a served environment, whose calls go through a proxy."""

    class Behind(make(server.url).env_class):  # type: ignore[misc]
        server = ServerAddress(proxy)

    return Behind


@settings(max_examples=10)
@given(st.lists(st.sampled_from(["pass", "refuse", "drop answer", "slow"]), max_size=12))
def test_a_step_is_taken_once_over_any_bad_connection(counter: Served, plan: list[str]) -> None:
    """The tool counts its calls. A lost answer is asked for again, and the call is not made again."""

    async def run() -> Episode:
        async with Proxy(counter.url, plan) as url, EnvFactory(behind(url, counter), name="behind") as factory:
            return await run_episode(factory, playing(*[("up", {})] * 3, "2"), task, seed=1, episode_id="e")

    [task] = make(counter.url).tasks(count=1)
    episode = asyncio.run(run())
    assert (episode.outcome, episode.reward, episode.error) == (Outcome.SCORED, 1.0, "")
    assert [m["content"] for m in episode.messages if m["role"] == "tool"] == ["1", "2", "3"]


async def test_a_killed_server_is_a_fault_and_no_zero() -> None:
    with server_process("--env", COUNTER) as (process, url):
        async with make(url, retry_seconds=0.5) as factory:

            def kill_then_say() -> Any:
                turns = 0

                async def script(messages: list[Message]) -> Message:
                    nonlocal turns
                    turns += 1
                    if turns == 2:
                        process.kill()
                        process.wait(30)
                    return {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [{"function": {"name": "up", "arguments": {}}}],
                    }

                return ScriptedAgent(script)

            [task] = factory.tasks(count=1)
            episode = await run_episode(factory, kill_then_say(), task, seed=1, episode_id="e")
            assert (episode.outcome, episode.reward, episode.success) == (Outcome.INFRA_FAULT, None, None)
            assert episode.error.startswith(f"ServiceError: the environment's server {url} was lost in step")
            assert len(episode.turns) == 2
        with pytest.raises(UserError, match="no environment answers at"):
            make(url)
