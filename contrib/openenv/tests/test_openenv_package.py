"""openenv:URL with servers that the SDK of OpenEnv makes, of its newest version and of an old one."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from contrib.check import run_checks
from contrib.check.strategies import StrategyAgent, actions_in_order, final_answer, tool_calls
from forge_env.core.episode import Episode
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from tests.envs.own_interpreter import own_interpreter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SERVERS = Path(__file__).with_name("sdk_servers.py")
VERSIONS = ("openenv==0.10.0", "openenv-core==0.3.0")
START_SECONDS = 400.0
SEEDED = Task(prompt=({"role": "user", "content": "Play."},), metadata={"seed": 7})


@pytest.fixture(scope="module", params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    return own_interpreter(request.param)


@contextmanager
def server(python: Path, kind: str, sessions: int = 100) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen([python, SERVERS, kind, str(port), str(sessions)])
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None and time.monotonic() < deadline
            try:
                if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        yield url
    finally:
        process.kill()
        process.wait()


async def play(factory: EnvFactory, task: Task, *actions: Any, **limits: float) -> Episode:
    agent = StrategyAgent(actions_in_order(*actions))
    return await run_episode(factory, agent, task, seed=0, episode_id="e", limits=EpisodeLimits(**limits))


async def test_echo_by_text(python: Path) -> None:
    with server(python, "echo") as url:
        report = await run_checks(make(f"openenv:{url}"), tasks=4, seconds=400)
        assert [row for row in report.rows if row.ok is False] == []
        async with make(f"openenv:{url}") as factory:
            opening = await play(factory, SEEDED, *[final_answer("x")] * 5)
            word = re.search(r"Say (\w+) alone", opening.messages[0]["content"]).group(1)  # type: ignore[union-attr]
            assert (opening.outcome, opening.reward, len(opening.turns)) == (Outcome.SCORED, 0.0, 4), opening.error
            right = await play(factory, SEEDED, final_answer("x"), final_answer(word))
            assert (right.outcome, right.reward, right.success) == (Outcome.SCORED, 1.0, True), right.error
            assert right.info.get("openenv_metadata", {"right": True}) == {"right": True}, "openenv 0.3 sends none"
            assert right.info["openenv"]["name"] == "EchoEnv"
            broken = await play(factory, SEEDED, final_answer("crash"))
            assert (broken.outcome, broken.reward) == (Outcome.ENV_FAULT, None)
            assert "raised: the echo broke" in broken.error


async def test_guess_by_a_typed_action(python: Path) -> None:
    with server(python, "guess") as url:
        report = await run_checks(make(f"openenv:{url}"), tasks=4, seconds=400)
        assert [row for row in report.rows if row.ok is False] == []
        async with make(f"openenv:{url}", reset='{"most": 9}') as factory:
            low, high, said = 0, 100, ""

            async def bisect(conversation: Any, tools: Any) -> Any:
                nonlocal low, high, said
                last = conversation.messages[-1]["content"]
                middle = (low + high) // 2
                if conversation.turns:
                    low, high = (middle + 1, high) if '"higher"' in last else (low, middle - 1)
                said = last
                return tool_calls(("guess", {"number": (low + high) // 2, "reason": "half"}))

            limits = EpisodeLimits(max_turns=12)
            episode = await run_episode(factory, StrategyAgent(bisect), SEEDED, seed=0, episode_id="e", limits=limits)
            wrong = await play(factory, SEEDED, tool_calls(("guess", {"number": 101})), final_answer("no more"))
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), (episode.error, said)
        assert '"left":9' in episode.messages[0]["content"]
        assert (wrong.outcome, wrong.reward) == (Outcome.SCORED, 0.0)
        assert wrong.turns[0].tool_uses[0].error == "bad_arguments"


async def test_shelf_by_mcp_tools_and_tasks_of_the_server(python: Path) -> None:
    with server(python, "shelf", sessions=64) as url:
        report = await run_checks(make(f"openenv:{url}"), tasks=2, seconds=600)
        assert [row for row in report.rows if row.ok is False] == []
        async with make(f"openenv:{url}") as factory:
            tasks = factory.tasks("train", count=3)
            listed = "index" in tasks[0].metadata  # openenv 0.3 lists no tasks
            task = tasks[0]
            looks = tool_calls(("price", {"name": "fig"}), ("price", {"name": "nix"}))
            looked = await play(factory, task, looks, final_answer(""))
            texts = [m["content"] for m in looked.messages if m["role"] == "tool"]
            assert texts[0] == "24" and "there is no nix" in texts[1], texts
            assert [use.error for use in looked.turns[0].tool_uses] == ["", "execution_error"]
            assert (looked.outcome, looked.reward) == (Outcome.SCORED, 0.0), looked.error
            if listed:
                assert task.prompt[0]["content"].startswith("What do ")
                assert factory.tasks("test", count=2)[0].metadata["split"] == "eval"
                right = await play(factory, task, tool_calls(("answer", {"total": task.target})))
                assert (right.outcome, right.reward, right.success) == (Outcome.SCORED, 1.0, True), right.error


async def test_the_template_of_the_package_ends_at_our_limit(python: Path) -> None:
    with server(python, "template", sessions=2) as url:
        async with make(f"openenv:{url}") as factory:
            episodes = await asyncio.gather(
                *(play(factory, SEEDED, *[final_answer("hello")] * 9, max_turns=3) for _ in range(6))
            )
        for episode in episodes:
            assert (episode.outcome, episode.ended_by) == (Outcome.TRUNCATED, "max_turns"), episode.error
            assert episode.reward == pytest.approx(1.5)
            assert '"echoed_message":"hello"' in episode.messages[2]["content"]


async def test_rewards_are_those_that_the_packages_own_client_reads(python: Path) -> None:
    """Their sum; a fault if the last one is null, as which the server sends NaN and None alike."""
    draw = random.Random(5)
    words = ("none", "nan", "0", "1", "0.5", "-0.25", "true", "false", "0.1", "1e-3")
    plans = [" ".join(draw.choices(words, k=draw.randrange(2, 6))) for _ in range(60)]
    with server(python, "planned") as url:
        client = [str(python), str(SERVERS.with_name("package_client.py")), url]
        done = subprocess.run(client, input=json.dumps(plans), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        theirs = json.loads(done.stdout.splitlines()[-1])
        ours = []
        for plan in plans:
            async with make(f"openenv:{url}", reset=json.dumps({"plan": plan})) as factory:
                episode = await play(factory, SEEDED, *[final_answer("x")] * 6)
            ours.append((episode.outcome, episode.reward))
    scored = [(Outcome.SCORED, pytest.approx(sum(filter(None, rewards)))) for rewards in theirs]
    fault = (Outcome.ENV_FAULT, None)
    assert ours == [fault if rewards[-1] is None else sum_ for rewards, sum_ in zip(theirs, scored, strict=True)]
    assert 5 < sum(outcome is Outcome.ENV_FAULT for outcome, _ in ours) < 50
