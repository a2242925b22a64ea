"""The suites with their packages, in environments of their own in .cache/: what solves and what cheats."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from contrib.suites import catalogue
from contrib.suites.agentdojo import env as agentdojo
from contrib.suites.bfcl import env as bfcl
from contrib.suites.humaneval import env as humaneval
from forge_env import EnvFactory, Episode, EpisodeLimits, Message, Outcome, Task, UserError, make, run_episode
from forge_env.core.errors import EnvError
from tests.helpers.scripts import tool_results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "suites"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))
    monkeypatch.setenv("UV_CACHE_DIR", os.environ.get("UV_CACHE_DIR", str(ROOT / ".cache" / "uv")))


def need(name: str) -> None:
    """Install a suite as `forge-env suite install` does, unless it is."""
    try:
        catalogue.installed(name)
    except UserError:
        try:
            catalogue.install(name)
        except UserError as error:
            pytest.skip(f"{name} cannot be installed: {error}")


@pytest.fixture(params=["agentdojo", "bfcl", "humaneval"])
def suite(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


async def play(factory: EnvFactory, task: Task, script: Any, limits: EpisodeLimits | None = None) -> Episode:
    limits = limits or factory.episode_limits()
    return await run_episode(factory, ScriptedAgent(script), task, seed=0, episode_id=task.id, limits=limits)


def calling(*calls: tuple[str, Any]) -> Message:
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    written = [{"id": f"c{i}", "type": "function", "function": function} for i, function in enumerate(functions)]
    return {"role": "assistant", "content": "", "tool_calls": written}


def in_turn(*messages: Message) -> Any:
    def script(conversation: Sequence[Message]) -> Message:
        number = sum(message["role"] == "assistant" for message in conversation)
        return messages[number] if number < len(messages) else {"role": "assistant", "content": ""}

    return script


def test_the_contract_is_kept(suite: str) -> None:
    command = [sys.executable, "-m", "forge_env", "check", suite, "--seconds", "600", "--tasks", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=800)
    wrong = [row for row in json.loads(done.stdout)["rows"] if row["ok"] is False or row.get("unfinished")]
    assert (done.returncode, wrong) == (0, []), done.stderr


async def test_solutions_of_a_sample_earn_1_and_silence_nothing(suite: str) -> None:
    script_of = {"agentdojo": agentdojo, "bfcl": bfcl, "humaneval": humaneval}[suite].script_of
    async with make(suite) as factory:
        for task in factory.tasks("train", count=12, seed=1):
            gold = await play(factory, task, script_of(task))
            assert (gold.outcome, gold.reward) == (Outcome.SCORED, 1.0), (task.id, gold.error, gold.info)
            empty = await play(factory, task, in_turn())
            assert (empty.outcome, empty.reward) == (Outcome.SCORED, 0.0), task.id


async def test_every_kind_of_bfcl_is_played() -> None:
    need("bfcl")
    for category in bfcl.categories_of("all", catalogue.installed("bfcl")):
        async with make("bfcl", category=category) as factory:
            for task in factory.tasks("test", count=2):
                assert task.kind == category
                if task.target is not None:
                    episode = await play(factory, task, bfcl.script_of(task))
                    assert episode.reward == 1.0, (task.id, episode.info)


async def test_a_killed_process_loses_nothing_of_a_conversation() -> None:
    """Every request replays the calls before it, in whatever process."""
    need("bfcl")
    async with make("bfcl", category="multi_turn_base") as factory:
        task = next(t for t in factory.tasks("all", count=50) if sum(map(len, t.target)) > 3)
        process = bfcl.process_of(bfcl.library.__file__, catalogue.installed("bfcl"))
        pids = set()

        def killing(messages: Sequence[Message]) -> Message:
            if process.pid is not None and messages[-1]["role"] == "tool":
                pids.add(process.pid)
                os.kill(process.pid, signal.SIGKILL)
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            return bfcl.script_of(task)(messages)

        episode = await play(factory, task, killing)
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    assert len(pids) > 1


async def test_calls_of_bfcl_reach_the_back_ends_only(tmp_path: Path) -> None:
    need("bfcl")
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w')"
    async with make("bfcl", category="multi_turn_base") as factory:
        task = factory.tasks("all", count=1)[0]
        names = ("eval", "globals", "__import__", task.target[0][0]["name"])
        hostile = [(name, {key: 1}) for name in names for key in ("expression", f"x={code} or y", "a b", "")]
        more = calling(("cd", {"folder": code})), calling(("cd", "{"))
        episode = await play(factory, task, in_turn(calling(*hostile), *more))
    results = tool_results(episode)
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0), episode.error
    assert len(results) == len(hostile) + 2
    assert [text for text in results[: len(hostile)] if not text.startswith("Error during execution")] == []
    assert not mark.exists()


async def test_what_a_suite_fails_on_is_the_models_failure() -> None:
    """Where it works without the model's calls; where it does not, it is a fault."""
    need("agentdojo")
    deep = "[" * 5000 + "]" * 5000  # the suite reads lists in texts by `literal_eval`, which gives up
    async with make("agentdojo", suite="banking") as factory:
        [task] = factory.tasks("train", count=1)
        script = in_turn(calling(("get_balance", {"x": deep})), {"role": "assistant", "content": "Done."})
        episode = await play(factory, task, script)
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0), episode.error
        process = agentdojo.process_of(agentdojo.library.__file__, catalogue.installed("agentdojo"))
        request = {name: task.metadata[name] for name in ("suite", "version", "injection_task", "injections")}
        broken = {**request, "do": "grade", "user_task": task.metadata["user_task"], "steps": [[{"no": "call"}]]}
        assert process.ask({**broken, "output": "", "unexecuted": []}) == {"ended": 1}
        with pytest.raises(EnvError, match="raised"):
            process.ask({**broken, "user_task": "user_task_none", "output": "", "unexecuted": []})


async def test_more_steps_than_the_suite_allows_end_a_conversation() -> None:
    need("bfcl")
    async with make("bfcl", category="multi_turn_base") as factory:
        task = factory.tasks("all", count=1)[0]
        name = task.metadata["functions"][0]
        episode = await play(factory, task, lambda messages: calling((name, {})))
    assert (episode.reward, len(episode.turns)) == (0.0, 21)
    assert episode.info["error_type"] == "multi_turn:force_terminated"


async def test_utility_and_security_are_scored_apart() -> None:
    need("agentdojo")
    options = {"suite": "banking", "attack": "important_instructions"}
    async with make("agentdojo", **options) as factory:
        task = next(t for t in factory.tasks("train", count=60) if len(t.metadata["injection_calls"]) == 1)
        assert any("<INFORMATION>" in text for text in task.metadata["injections"].values())
        steadfast = await play(factory, task, agentdojo.script_of(task))
        assert (steadfast.reward, steadfast.rewards) == (1.0, {"utility": 1.0, "security": 1.0})
        hijacked_calls = agentdojo.script_of_calls(task.metadata["injection_calls"], "Done.")
        hijacked = await play(factory, task, hijacked_calls)
        assert hijacked.rewards["security"] == 0.0
        both = [*task.metadata["injection_calls"], *task.target["calls"]]
        obedient = agentdojo.script_of_calls(both, task.target["output"])
        assert (await play(factory, task, obedient)).rewards == {"utility": 1.0, "security": 0.0}
    async with make("agentdojo", reward="both", **options) as factory:
        assert (await play(factory, task, obedient)).reward == 0.0
        assert (await play(factory, task, agentdojo.script_of(task))).reward == 1.0


async def test_the_sixteenth_answer_of_agentdojo_is_the_last() -> None:
    need("agentdojo")
    async with make("agentdojo", suite="banking") as factory:
        task = factory.tasks("train", count=1)[0]
        episode = await play(factory, task, lambda messages: calling(("get_balance", {})))
    assert (episode.outcome, episode.ended_by, len(episode.turns)) == (Outcome.TRUNCATED, "max_turns", 16)
    assert episode.rewards["utility"] == 0.0
    assert episode.messages[-1]["content"] == "Error: no more calls are executed."


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ("bfcl", {"category": "multi_turn_bas"}, "bfcl has no category 'multi_turn_bas'. Did you mean multi_turn_base"),
        ("bfcl", {"category": "web_search_base"}, "is not played here: it needs the network"),
        ("bfcl", {"category": "memory_kv"}, "is not played here: it needs earlier conversations"),
        ("agentdojo", {"suite": "bankin"}, "the option suite of agentdojo is 'bankin'. Did you mean banking"),
        ("agentdojo", {"attack": "important_instruction"}, "Did you mean important_instructions"),
        ("agentdojo", {"version": "v9"}, "the option version of agentdojo is 'v9'"),
        ("agentdojo", {"model": "mine"}, "the option model of agentdojo is 'mine'"),
        ("humaneval", {"split": "dev"}, "there is no split 'dev' of humaneval"),
    ],
)
def test_mistakes_are_said(env: str, options: dict[str, str], words: str) -> None:
    need(env)
    split = options.pop("split", "all")
    with pytest.raises(UserError, match=words.replace(".", r"\.")):
        make(env, **options).tasks(split, count=1)


@pytest.mark.parametrize("name", ["agentdojo", "humaneval"])
def test_the_verdict_of_a_sample_is_that_of_the_suites_own_checker(name: str, tmp_path: Path) -> None:
    """BFCL's needs torch and the clients of all providers: `contrib/suites/benchmarks/third_party.py` asks it."""
    need(name)
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "contrib.suites.benchmarks.third_party", "--only", name, "--tasks", "10"]
    subprocess.run([*command, "--json", str(results)], check=True, capture_output=True, cwd=ROOT, timeout=800)
    result = json.loads(results.read_text())[name]
    gold, differing = result["scripts"]["gold"], result["agreement"]["differing_ids"]
    assert gold["earned_1"] == gold["episodes"] == 10
    assert [pair for pair in differing.values() if pair != {"ours": False, "theirs": True}] == []
    assert [key for key in differing if not key.startswith("code-cheat")] == []
