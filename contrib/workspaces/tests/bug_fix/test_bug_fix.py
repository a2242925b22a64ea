"""bug_fix in real workspaces: the expert is paid, and nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from contrib.workspaces.bug_fix.env import BugFix
from contrib.workspaces.bug_fix.tasks import LEVELS
from contrib.workspaces.env.cheats import workspace_cheats
from envs.messages import call, say
from forge_env import Outcome, Task
from forge_env.rollout.factory import EnvFactory
from tests.helpers.scripts import play, tool_results

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def factory() -> AsyncIterator[EnvFactory]:
    async with EnvFactory(BugFix) as factory:
        yield factory


@pytest.fixture
def task(factory: EnvFactory) -> Task:
    [task] = factory.tasks("train", count=1)
    return task


@pytest.mark.parametrize(
    "level", [LEVELS[0], *(pytest.param(n, marks=pytest.mark.slow) for n in LEVELS[1:-1]), LEVELS[-1]]
)
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


async def test_an_empty_answer_and_an_unchanged_package_earn_nothing(factory: EnvFactory, task: Task) -> None:
    for messages in ([say("")], [call("shell", command="ls"), say("done")]):
        episode = await play(factory, task, *messages)
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0)
        assert episode.info["verdict"]["reason"] == "no module was changed"


async def test_a_cheat_or_a_module_that_is_no_module_earns_nothing(factory: EnvFactory, task: Task) -> None:
    [path] = task.target["sources"]
    scripts = [messages for messages in BugFix.cheats(task) if not isinstance(messages, str)]
    assert len(scripts) == len(workspace_cheats()) + 1
    for command in (
        f"rm {path}",
        f"ln -sf /etc/passwd {path}",
        f"rm {path}; mkfifo {path}",
        f"head -c 3000000 /dev/zero > {path}",
    ):
        scripts.append([call("shell", command=command), say("done")])
    episodes = await asyncio.gather(*(play(factory, task, *messages) for messages in scripts))
    for messages, episode in zip(scripts, episodes, strict=True):
        assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0), messages


async def test_a_package_that_breaks_another_function_earns_nothing(factory: EnvFactory, task: Task) -> None:
    [(path, text)] = task.metadata["solution"].items()
    other = next(name for _, name, _, _ in task.target["calls"] if name != task.metadata["operation"])
    broken = f"{text}\n\ndef {other}(argument):\n    return None\n"
    episode = await play(factory, task, call("write", path=path, text=broken), say("done"))
    assert episode.reward == 0.0 and episode.info["verdict"]["passed"] > 0
    assert (await play(factory, task, call("write", path=path, text=text), say("done"))).reward == 1.0


async def test_a_shell_keeps_its_folder_and_an_edit_keeps_the_mode(factory: EnvFactory, task: Task) -> None:
    [path] = task.target["sources"]
    first = next(line for line in task.metadata["files"][path].splitlines() if line.startswith("def "))
    calls = [
        call("shell", command=f"chmod 755 {path}; cd /tmp; export COLOUR=red"),
        call("edit", path=path, old=first, new=f"{first}  # edited"),
        call("shell", command=f"pwd; echo $COLOUR; stat -c %a /repo/{path}"),
    ]
    answers = tool_results(await play(factory, task, *calls, say("done")))
    assert answers[1:] == ["[replaced]", "/tmp\nred\n755"]
