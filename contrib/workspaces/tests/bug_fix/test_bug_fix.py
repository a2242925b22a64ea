"""bug_fix in real workspaces: the expert is paid, and nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import forge_env
from agents.scripted import ScriptedAgent
from contrib.workspaces.bug_fix.env import BugFix
from contrib.workspaces.bug_fix.tasks import LEVELS
from contrib.workspaces.env.cheats import workspace_cheats
from envs.messages import call, say
from forge_env import Outcome
from forge_env.rollout.factory import EnvFactory
from tests.helpers.scripts import play, tool_results


@pytest.fixture
async def factory() -> AsyncIterator[EnvFactory]:
    async with EnvFactory(BugFix) as factory:
        yield factory


@pytest.mark.parametrize("level", LEVELS)
async def test_the_expert_is_paid_on_every_level_also_of_the_test_split(level: int) -> None:
    async with EnvFactory(BugFix, level=level) as factory:
        tasks = [*factory.tasks("train", count=1), *factory.tasks("test", count=1)]
        episodes = await asyncio.gather(*(play(factory, task) for task in tasks))
    assert [episode.reward for episode in episodes] == [1.0, 1.0]
    assert {spec["function"]["name"] for spec in factory.make(level=level).tools} == (
        {"shell", "edit"} if level == 0 else {"shell", "read", "write", "edit", "search"}
    )
    verdict = episodes[0].info["verdict"]
    assert verdict["passed"] == verdict["total"] > 0


async def test_an_empty_answer_and_an_unchanged_package_earn_nothing(factory: EnvFactory) -> None:
    [task] = factory.tasks("train", count=1)
    for messages in ([say("")], [call("shell", command="ls"), say("done")]):
        episode = await play(factory, task, *messages)
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0)
        assert episode.info["verdict"]["reason"] == "no module was changed"


@pytest.mark.parametrize("cheat", range(len(workspace_cheats()) + 1))
async def test_a_cheat_earns_nothing(factory: EnvFactory, cheat: int) -> None:
    [task] = factory.tasks("train", count=1)
    scripts = [messages for messages in BugFix.cheats(task) if not isinstance(messages, str)]
    assert len(scripts) == len(workspace_cheats()) + 1
    episode = await play(factory, task, *scripts[cheat])
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0)


async def test_a_package_that_breaks_another_function_earns_nothing(factory: EnvFactory) -> None:
    [task] = factory.tasks("train", count=1)
    [(path, text)] = task.metadata["solution"].items()
    other = next(name for _, name, _, _ in task.target["calls"] if name != task.metadata["operation"])
    broken = f"{text}\n\ndef {other}(argument):\n    return None\n"
    episode = await play(factory, task, call("write", path=path, text=broken), say("done"))
    assert episode.reward == 0.0 and episode.info["verdict"]["passed"] > 0
    assert (await play(factory, task, call("write", path=path, text=text), say("done"))).reward == 1.0


@pytest.mark.parametrize(
    "command",
    ["rm {path}", "ln -sf /etc/passwd {path}", "rm {path}; mkfifo {path}", "head -c 3000000 /dev/zero > {path}"],
)
async def test_a_module_that_is_no_module_earns_nothing(factory: EnvFactory, command: str) -> None:
    [task] = factory.tasks("train", count=1)
    [path] = task.target["sources"]
    episode = await play(factory, task, call("shell", command=command.format(path=path)), say("done"))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0)


async def test_the_tools_answer_mistakes_with_what_to_do(factory: EnvFactory) -> None:
    [task] = factory.tasks("train", count=1)
    [path] = task.target["sources"]
    mistakes: dict[str, dict[str, Any]] = {
        "does not contain this passage": {"name": "edit", "path": path, "old": "nothing of it", "new": ""},
        "times (lines": {"name": "edit", "path": path, "old": "return", "new": ""},
        "[exit code 3]": {"name": "shell", "command": "exit 3"},
        "it ran longer than 1 s": {"name": "shell", "command": "sleep 60", "timeout": 1},
        "it is at most 600": {"name": "shell", "command": "true", "timeout": 601},
        "[no line matches]": {"name": "search", "pattern": "xyzzy"},
        "start is 1 to": {"name": "read", "path": path, "start": 1000},
        "nowhere.py": {"name": "read", "path": "nowhere.py"},
    }
    calls = [call(arguments.pop("name"), **arguments) for arguments in mistakes.values()]
    limits = {"max_turns": len(calls) + 1}
    agent = ScriptedAgent(lambda messages: [*calls, say("done")][sum(m["role"] == "assistant" for m in messages)])
    episode = await forge_env.run_episode(
        factory, agent, task, seed=0, episode_id="mistakes", limits=forge_env.EpisodeLimits(**limits)
    )
    answers = tool_results(episode)
    assert len(answers) == len(mistakes)
    for reason, answer in zip(mistakes, answers, strict=True):
        assert reason in answer, answer


async def test_a_shell_keeps_its_folder_and_an_edit_keeps_the_mode(factory: EnvFactory) -> None:
    [task] = factory.tasks("train", count=1)
    [path] = task.target["sources"]
    episode = await play(
        factory,
        task,
        call("shell", command=f"chmod 755 {path}; cd /tmp; export COLOUR=red"),
        call("edit", path=path, old='"""Return', new='"""Give'),
        call("shell", command=f"pwd; echo $COLOUR; stat -c %a /repo/{path}"),
        call("search", pattern="Give", path=path),
        say("done"),
    )
    answers = tool_results(episode)
    if '"""Give' in answers[3]:
        assert answers[2] == "/tmp\nred\n755"
    else:  # three functions: the passage occurs three times
        assert "3 times" in answers[1] and answers[2] == "/tmp\nred\n755"


async def test_episodes_at_once_do_not_meet(factory: EnvFactory) -> None:
    tasks = factory.tasks("train", count=5)
    episodes = await asyncio.gather(*(play(factory, task) for task in tasks))
    assert [episode.reward for episode in episodes] == [1.0] * 5
