"""openenv:URL against a small real server of the protocol, on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from contrib.check import run_checks
from contrib.check.strategies import StrategyAgent, actions_in_order, final_answer, tool_calls
from contrib.openenv.container import is_image
from contrib.openenv.description import base_url
from contrib.openenv.env import OpenEnv
from contrib.openenv.observations import call_text, observation_text
from contrib.openenv.session import Session
from contrib.openenv.tests.small_server import ACTION, OF_MCP, TOOL, TYPED, SmallServer
from forge_env.core.episode import Episode
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.types import EpisodeLimits, Outcome, Task, ToolFailure
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from tests.envs.serving import serve
from tests.helpers.server_process import server_process

IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
TASK = Task(prompt=({"role": "user", "content": "Play."},), metadata={"seed": 7})


@pytest.fixture
def small() -> Iterator[tuple[SmallServer, str]]:
    server = SmallServer()
    with serve(server.app) as url:
        yield server, url


async def play(factory: EnvFactory, *actions: Any, task: Task = TASK, **limits: float) -> Episode:
    agent = StrategyAgent(actions_in_order(*actions))
    return await run_episode(
        factory, agent, task, seed=3, episode_id="e", limits=EpisodeLimits(**{"max_turns": 8, **limits})
    )


async def test_text_becomes_the_only_field_and_reward_and_end_come_along(small: tuple[SmallServer, str]) -> None:
    server, url = small
    async with make(f"openenv:{url}", reset='{"level": 2}') as factory:
        episode = await play(factory, final_answer("5"), final_answer("7"))
        lost = await play(factory, *[final_answer("1")] * 5)
    assert (episode.outcome, episode.reward, episode.success) == (Outcome.SCORED, 1.0, True), episode.error
    assert [m["content"] for m in episode.messages] == ["Play.\n\nSay 7.", "5", "No.", "7", "Right."]
    assert episode.info["openenv"] == {"url": url, "name": "small", "version": "1.2"}
    assert episode.info["openenv_metadata"] == {"left": 1}
    assert (lost.outcome, lost.reward, len(lost.turns), lost.success) == (Outcome.SCORED, 0.0, 3, False)
    assert server.resets == [{"level": 2, "seed": 7}] * 2
    assert server.sessions == 0, "each episode has ended its session"


def test_a_sum_of_rewards_reaches_success_reward_but_for_rounding() -> None:
    assert [OpenEnv().success(reward) for reward in (0.7 + 0.2 + 0.1, 0.999)] == [True, False]


@pytest.mark.parametrize(("flag", "is_true"), [(True, True), (1, True), ("true", True), ("false", False), (0, False)])
def test_a_flag_of_a_server_may_be_a_text(flag: Any, is_true: bool) -> None:
    assert Session("", None)._result({"observation": {}, "done": flag}).done is is_true
    result = {"content": [{"type": "text", "text": "seven"}]}
    texts = [call_text({"result": {**result, name: flag}}, "") for name in ("is_error", "isError")]
    assert texts == ["Error: seven" if is_true else "seven"] * 2


async def test_numbers_keep_their_digits_in_both_directions() -> None:
    numbers = '{"a":[1.10,1e400,-0,0.123456789012345678,1E5],"b":5.0}'
    action = {**ACTION, "properties": {"price": {"type": "number"}, "any": {}}, "required": ["price"]}
    server = SmallServer(action)
    data = f'{{"done":true,"reward":1.0,"observation":{numbers}}}'
    server.frames["step"] = f'\ufeff{{"type":"observation","data":{data}}}'
    with serve(server.app) as url:
        async with make(f"openenv:{url}") as factory:
            [name] = [tool["function"]["name"] for tool in await tools_of(factory)]
            call = {"name": name, "arguments": '{"price": "1.10", "any": [-0, 12345678901234567890, 1E5]}'}

            def says(messages: Any) -> Any:
                return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

            limits = EpisodeLimits(max_turns=2)
            episode = await run_episode(factory, ScriptedAgent(says), TASK, seed=3, episode_id="e", limits=limits)
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    assert episode.messages[-1]["content"] == numbers
    [sent] = [text for text in server.texts if '"step"' in text]
    assert '"price": 1.10, "any": [-0, 12345678901234567890, 1E5]' in sent


async def tools_of(factory: EnvFactory) -> list[Any]:
    env = factory.make()
    await env.reset(seed=0, options={"task": TASK})
    tools = list(env.tools)
    await env.close()
    return tools


async def test_all_pages_of_tools_are_listed_and_a_list_without_an_end_is_a_fault() -> None:
    server = SmallServer(OF_MCP)
    others = [{**TOOL, "name": name} for name in ("say!", "say?")]
    server.pages = {"first": {"tools": [TOOL], "nextCursor": ""}, "": {"tools": others}}
    with serve(server.app) as url:
        async with make(f"openenv:{url}") as factory:
            assert [tool["function"]["name"] for tool in await tools_of(factory)] == ["say", "say_", "say__2"]
            server.pages["first"]["nextCursor"] = "first"
            problem = "list of tools of the OpenEnv server .* names the page 'first' twice"
            with pytest.raises(ServiceError, match=problem):
                await tools_of(factory)


@pytest.mark.parametrize(
    ("schema", "name", "arguments"),
    [(TYPED, "guess_number", {"message": 7}), (OF_MCP, "say", {"number": 7}), (ACTION, "say", {"message": "7"})],
)
async def test_tools_are_those_of_mcp_or_the_schema_of_the_action(schema: Any, name: str, arguments: Any) -> None:
    wrong = {field: 1 if value == 7 else "1" for field, value in arguments.items()}
    with serve(SmallServer(schema).app) as url:
        async with make(f"openenv:{url}", actions="tool") as factory:
            episode = await play(factory, tool_calls((name, wrong), ("nix", {}), (name, arguments), (name, wrong)))
            silent = await play(factory, tool_calls((name, {"bad": []})), final_answer("I am done."))
            env = factory.make()
            await env.reset(seed=0, options={"task": TASK})
            tools, _ = list(env.tools), await env.close()
    assert [tool["function"]["name"] for tool in tools] == [name]
    assert next(iter(tools[0]["function"]["parameters"]["properties"])) in arguments
    assert "metadata" not in tools[0]["function"]["parameters"]["properties"]
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    texts = [m["content"] for m in episode.messages if m["role"] == "tool"]
    assert [texts[0], texts[2], texts[3]] == ["No.", "Right.", "Error: the episode is over."]
    assert "no tool 'nix'" in texts[1]
    assert [use.error for use in episode.turns[0].tool_uses] == ["", "unknown_tool", "", "episode_over"]
    assert (silent.outcome, silent.reward, len(silent.turns)) == (Outcome.SCORED, 0.0, 2), silent.error


async def test_the_tasks_of_a_server_are_ours(small: tuple[SmallServer, str]) -> None:
    _, url = small
    first, again = (make(f"openenv:{url}").tasks("train", count=5, seed=s) for s in (0, 0))
    assert first == again and all(task.metadata["seed"] % 2 == 0 for task in first)
    listing = SmallServer(tasks={"train": 30, "test": 8})
    with serve(listing.app) as url:
        factory = make(f"openenv:{url}")
        tasks = factory.tasks("test", count=8, seed=1)
        assert sorted(task.metadata["index"] for task in tasks) == list(range(8))
        assert tasks[0].target == 1 and tasks[0].prompt[0]["content"].startswith("Say ")
        with pytest.raises(UserError, match=r"9 test tasks were asked for, and the server at .* lists 8"):
            factory.tasks("test", count=9)
        async with factory:
            episode = await play(factory, final_answer(str(tasks[0].metadata["index"])), task=tasks[0])
        assert episode.reward == 1.0
        assert (listing.resets[0]["split"], listing.resets[0]["index"]) == ("test", tasks[0].metadata["index"])
        assert make(f"openenv:{url}", tasks="seeds").tasks("test", count=20)
    with serve(SmallServer(tasks={"all": 40}).app) as url:
        factory = make(f"openenv:{url}")
        indices = {s: {t.metadata["index"] for t in factory.tasks(s, count=5)} for s in ("train", "test")}
        assert not indices["train"] & indices["test"]


async def test_episodes_wait_for_a_session_of_a_small_server() -> None:
    server = SmallServer(most=2)
    with serve(server.app) as url:
        async with make(f"openenv:{url}") as factory:
            episodes = await asyncio.gather(*(play(factory, final_answer("7")) for _ in range(8)))
    assert [episode.reward for episode in episodes] == [1.0] * 8
    assert server.peak == 2


FAULTS = {
    "environment": ('{"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "boom"}}', "raised: boom"),
    "version": ('{"kind": "obs", "v": 9}', "which is not the protocol of openenv 0.3 to 0.10"),
    "text": ("hello", "which is not the protocol of"),
    "half": ('{"type": "observation", "data": {"reward": 1}}', "without an observation"),
    "unknown": ('{"type": "error", "data": {"code": "UNKNOWN_TYPE", "message": "no step"}}', "UNKNOWN_TYPE: no step"),
    "null": (
        '{"type": "observation", "data": {"observation": {}, "reward": null, "done": true}}',
        "ended the episode with the reward null, as which a server sends NaN too: mend it, or set the option",
    ),
    "nan": ('{"type": "observation", "data": {"observation": {}, "reward": NaN}}', "gave the reward nan"),
}


@pytest.mark.parametrize(("kind", "fault"), [("reset", "half"), *(("step", fault) for fault in FAULTS)])
async def test_what_a_server_does_wrong_is_a_fault_with_its_reason(
    small: tuple[SmallServer, str], kind: str, fault: str
) -> None:
    server, url = small
    text, reason = FAULTS[fault]
    server.frames[kind] = text
    async with make(f"openenv:{url}") as factory:
        episode = await play(factory, final_answer("7"))
    assert episode.outcome in (Outcome.ENV_FAULT, Outcome.INFRA_FAULT)
    assert episode.reward is None
    assert reason in episode.error
    assert server.sessions == 0


@pytest.mark.parametrize(
    ("first", "steps", "options", "reward"),
    [
        (0.25, (None, 1.0), {}, 1.25),
        (None, (0.5, None, 0.25), {}, 0.75),
        (-1, (True,), {}, 0.0),
        (None, (None,), {"null_reward": "zero"}, 0.0),
        (None, (1.0, None), {}, None),
        (float("nan"), (1.0,), {}, None),
        (None, (float("nan"), 1.0), {}, None),
    ],
)
async def test_rewards_of_all_observations_count(
    small: tuple[SmallServer, str], first: Any, steps: tuple[Any, ...], options: dict[str, Any], reward: float | None
) -> None:
    server, url = small
    server.rewards = [first, *steps]
    async with make(f"openenv:{url}", **options) as factory:
        episode = await play(factory, *[final_answer("x")] * len(steps))
    assert episode.reward == reward, episode.error
    assert episode.outcome is (Outcome.ENV_FAULT if reward is None else Outcome.SCORED), episode.error


async def test_a_refused_action_is_answered_and_a_hanging_step_ends_at_its_limit(
    small: tuple[SmallServer, str],
) -> None:
    server, url = small
    async with make(f"openenv:{url}") as factory:
        episode = await play(factory, final_answer("9" * 60_000), final_answer("\ud800"), final_answer("7"))
        hanging = await play(factory, final_answer("hang"), step_seconds=0.5)
    assert [m["content"] for m in episode.messages][2::2] == ["Error: message: too long", "No.", "Right."]
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0)
    assert (hanging.outcome, hanging.reward) == (Outcome.ENV_FAULT, None)
    assert server.held.is_set()


async def test_a_killed_server_is_a_fault_and_no_zero() -> None:
    imports = "from contrib.openenv.tests.small_server import SmallServer"
    with server_process(imports, "SmallServer().app") as (process, url):
        async with make(f"openenv:{url}") as factory:
            calls = 0

            async def strategy(conversation: Any, tools: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == 2:
                    process.kill()
                    process.wait()
                return final_answer("1")

            agent, limits = StrategyAgent(strategy), EpisodeLimits()
            episode = await run_episode(factory, agent, TASK, seed=0, episode_id="e", limits=limits)
            assert (episode.outcome, episode.reward, calls) == (Outcome.INFRA_FAULT, None, 2)
            assert "the connection to the OpenEnv server" in episode.error
            later = await play(factory, final_answer("7"))
            assert (later.outcome, later.reward) == (Outcome.INFRA_FAULT, None)
            assert f"no OpenEnv server answers at {url}" in later.error


async def test_the_contract_holds(small: tuple[SmallServer, str]) -> None:
    _, url = small
    only = ("contract", "malformed actions", "same seed", "leaks")
    report = await run_checks(make(f"openenv:{url}"), tasks=1, seconds=60, only=only)
    assert [row for row in report.rows if row.ok is False] == []


async def test_a_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SmallServer()
    server.token = "t0ken"
    with serve(server.app) as url:
        with pytest.raises(UserError, match="token_env names the environment variable 'OPENENV_KEY', which is not set"):
            async with make(f"openenv:{url}", token_env="OPENENV_KEY"):
                pass
        monkeypatch.setenv("OPENENV_KEY", "t0ken")
        async with make(f"openenv:{url}", token_env="OPENENV_KEY") as factory:
            assert (await play(factory, final_answer("7"))).reward == 1.0
        async with make(f"openenv:{url}") as factory:
            refused = await play(factory, final_answer("7"))
        assert refused.outcome is Outcome.INFRA_FAULT and "opens no session of OpenEnv" in refused.error


def test_mistakes_are_one_sentence(small: tuple[SmallServer, str]) -> None:
    _, url = small
    with pytest.raises(UserError, match="is no URL of an OpenEnv server"):
        make("openenv:ftp://127.0.0.1:1")
    with pytest.raises(UserError, match="option tasks is 'nix'; it is auto, seeds or server"):
        make(f"openenv:{url}", tasks="nix").tasks(count=1)
    with pytest.raises(UserError, match="lists no tasks: leave the option tasks out"):
        make(f"openenv:{url}", tasks="server").tasks(count=1)
    with pytest.raises(UserError, match="there is no split"):
        make(f"openenv:{url}").tasks("all", count=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    with pytest.raises(ServiceError, match=rf"no OpenEnv server answers at http://127.0.0.1:{free}"):
        make(f"openenv:http://127.0.0.1:{free}").tasks(count=1)


async def test_mistakes_of_the_episodes_are_one_sentence(small: tuple[SmallServer, str]) -> None:
    _, url = small
    for options, message in (
        ({"actions": "voice"}, "option actions is 'voice'; it is auto, tool or text"),
        ({"docker_run": "'"}, 'docker_run is "\'", which is no command line'),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            async with make(f"openenv:{url}", **options):
                pass
    for options, message in (
        ({"reset": "[]"}, "option reset is"),
        ({"null_reward": "0"}, "null_reward is '0'; it is f"),
    ):
        async with make(f"openenv:{url}", **options) as factory:
            with pytest.raises(UserError, match=message):
                factory.make()


def test_another_service_is_no_openenv_server() -> None:
    from fastapi import FastAPI

    app = FastAPI()
    app.get("/schema")(lambda: {"openapi": "3.1"})
    with serve(app) as url, pytest.raises(UserError, match="is no OpenEnv server of a version that is known here"):
        make(f"openenv:{url}").tasks(count=1)
    with serve(FastAPI()) as url, pytest.raises(UserError, match="/schema gives HTTP 404"):
        make(f"openenv:{url}").tasks(count=1)


def test_urls_and_images() -> None:
    assert base_url("ws://host:1/x/") == "http://host:1/x"
    assert base_url("https://host") == "https://host"
    assert is_image("echo-env:latest") and is_image("localhost:5000/a/b@sha256:" + "0" * 64)
    assert not is_image("http://x") and not is_image("-x") and not is_image("a b")


def test_observations_are_text_where_they_can_be() -> None:
    assert observation_text({"text": "a", "empty": "", "none": None}) == "a"
    assert json.loads(observation_text({"text": "ü", "n": 0})) == {"text": "ü", "n": 0}
    assert observation_text({}) == ""
    shown = call_text({"result": {"content": [{"type": "text", "text": "a"}, IMAGE]}}, "u")
    assert shown == "a\n[image: image/png, 3 bytes]"
    assert call_text({"result": {"content": [], "data": [1]}}, "u") == "[1]"
    assert call_text({"result": 3}, "u") == "3"
    failed = call_text({"error": {"error_type": "invalid_args", "message": "no"}}, "u")
    assert isinstance(failed, ToolFailure) and (failed, failed.kind) == ("Error: no", "invalid_args")
    failed = call_text({"result": {"content": [{"type": "text", "text": "x"}], "is_error": True}}, "u")
    assert isinstance(failed, ToolFailure)
    with pytest.raises(ServiceError, match="timeout: slow"):
        call_text({"error": {"error_type": "timeout", "message": "slow"}}, "u")
