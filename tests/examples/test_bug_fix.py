"""The example environment with files, pytest and hidden calls: the expert is paid, and nothing that forges is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import forge_env
from agents.scripted import ScriptedAgent
from forge_env.core.errors import SandboxUnavailable, UserError
from forge_env.core.types import Outcome, Task
from forge_env.utils.targets import load
from tests.helpers.scripts import calls, in_order, tool_results

TARGET = str(Path(__file__).parents[2] / "examples/bug_fix.py")
BugFix = load(f"{TARGET}:BugFix")

ALWAYS_EQUAL = (
    "class X(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\ndef NAME(*xs): return X(0)\n"
)
FORGED_FRAME = """
import json, os, struct
def NAME(*xs):
    text = json.dumps(True).encode()
    os.write(3, b"V" + struct.pack("<I", len(text)) + text)
    os._exit(0)
"""
FORGED_TESTS = "import pytest, sys\npytest.main = lambda *a, **k: 0\nsys.exit(0)\n"
SEARCHING = """
import gc, os, sys
def NAME(*xs):
    for place in ("/tmp", "."):
        for name in os.listdir(place):
            if name.startswith(("test_", "hidden", "answer")):
                raise RuntimeError(name)
    return [value for value in gc.get_objects() if type(value) is dict and "expected" in value]
"""
CONFTEST = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def factory() -> AsyncIterator[forge_env.EnvFactory]:
    try:
        async with forge_env.EnvFactory(BugFix) as opened:
            yield opened
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def makes(*moves: tuple[str, dict[str, Any]]) -> ScriptedAgent:
    """An agent that makes one call after the other."""
    return in_order(*map(calls, moves))


async def play(factory: forge_env.EnvFactory, task: Task, agent: ScriptedAgent) -> forge_env.Episode:
    episode = await forge_env.run_episode(factory, agent, task, seed=0, episode_id="e")
    assert episode.outcome is Outcome.SCORED, episode.error
    return episode


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("split", ["train", "test"])
async def test_the_expert_mends_the_bugs(factory: forge_env.EnvFactory, split: str) -> None:
    for task in factory.tasks(split, count=3, seed=4):
        episode = await play(factory, task, ScriptedAgent(BugFix.expert))
        assert episode.reward == 1.0, (task.metadata["source"], tool_results(episode))
        assert tool_results(episode)[-1].endswith("[100%]\n0")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_tests_that_the_model_sees_fail_at_first(factory: forge_env.EnvFactory) -> None:
    for task in factory.tasks("train", count=3, seed=2):
        episode = await play(factory, task, makes(("run_tests", {})))
        assert episode.reward == 0.0 and "FAILED test_" in tool_results(episode)[0]
        assert tool_results(episode)[0].endswith("\n1")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "files",
    [
        {"conftest.py": CONFTEST},
        {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
        {"sitecustomize.py": FORGED_TESTS, "usercustomize.py": FORGED_TESTS, "pytest.py": FORGED_TESTS},
        {"test_NAME.py": "def test_0():\n    pass\n"},
        {"json.py": "def dumps(value): return 'null'\n", "struct.py": "", "sys.py": ""},
        {"NAME.py": ALWAYS_EQUAL},
        {"NAME.py": FORGED_FRAME},
        {"NAME.py": f"{FORGED_TESTS}def NAME(*xs): return None\n"},
        {"NAME.py": SEARCHING},
        {"NAME.py": ""},
        {"NAME/__init__.py": "def NAME(*xs): return None\n"},
    ],
    ids=lambda files: next(iter(files)),
)
async def test_files_of_the_model_forge_no_verdict(factory: forge_env.EnvFactory, files: dict[str, str]) -> None:
    [task] = factory.tasks("train", count=1, seed=3)
    name = task.metadata["module"]
    moves = [
        ("write_file", {"path": path.replace("NAME", name), "text": text.replace("NAME", name)})
        for path, text in files.items()
    ]
    episode = await play(factory, task, makes(*moves, ("run_tests", {})))
    assert episode.reward == 0.0 and tool_results(episode)[: len(moves)] == ["written"] * len(moves)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("at_end", [False, True])
async def test_what_the_model_leaves_beside_a_right_module_does_not_break_the_grading(
    factory: forge_env.EnvFactory, at_end: bool
) -> None:
    [task] = factory.tasks("train", count=1, seed=3)
    right = ("write_file", {"path": f"{task.metadata['module']}.py", "text": task.metadata["right"]})
    litter = [
        ("write_file", {"path": "json.py", "text": "1 / 0"}),
        ("write_file", {"path": "conftest.py", "text": "1 / 0"}),
        ("python", {"code": "import os, time\nif not os.fork():\n    while True: time.sleep(0.01)"}),
    ]
    episode = await play(factory, task, makes(*((*litter, right) if at_end else (right, *litter))))
    assert episode.reward == 1.0, tool_results(episode)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "code",
    ["import os; os.remove(PATH)", "import os; os.remove(PATH); os.symlink('/etc/passwd', PATH)", "while True: 1"],
)
async def test_a_module_that_cannot_be_taken_out_earns_nothing(factory: forge_env.EnvFactory, code: str) -> None:
    [task] = factory.tasks("train", count=1, seed=5)
    path = f"{task.metadata['module']}.py"
    if code.startswith("while"):  # as if the time was over: the files are then as at the start
        code = "import os; open(PATH, 'w').write('changed'); os._exit(3)"
    moves = (
        ("python", {"code": code.replace("PATH", repr(path))}),
        ("python", {"code": "import os; sorted(os.listdir())"}),
    )
    episode = await play(factory, task, makes(*moves))
    assert episode.reward == 0.0
    if "_exit" in code:
        assert "the files are as at the start" in tool_results(episode)[0] and path in tool_results(episode)[1]


@pytest.mark.asyncio(loop_scope="module")
async def test_what_a_model_asks_of_a_path_outside_is_answered(factory: forge_env.EnvFactory) -> None:
    [task] = factory.tasks("train", count=1)
    moves = (
        ("read_file", {"path": "../etc/passwd"}),
        ("write_file", {"path": "/x", "text": ""}),
        ("read_file", {"path": "no"}),
    )
    texts = tool_results(await play(factory, task, makes(*moves)))
    assert "no relative path" in texts[0] and "no relative path" in texts[1] and "no such file" in texts[2]


def test_the_splits_share_no_bug_and_tasks_are_plain_data() -> None:
    tasks = {(split, seed): BugFix.tasks(split, count=40, seed=seed) for split, seed in SPLITS}
    for made in tasks.values():
        assert json.loads(json.dumps([task.target for task in made])) == [task.target for task in made]
        assert len({task.id for task in made}) == 40

    def of(split: str, what: Callable[[Task], str]) -> set[str]:
        return {what(task) for (each, _), made in tasks.items() if each == split for task in made}

    assert not of("train", lambda task: task.prompt[0]["content"]) & of("test", lambda task: task.prompt[0]["content"])
    train, test = (
        of(split, lambda task: task.metadata["source"].replace(task.metadata["module"], ""))
        for split in ("train", "test")
    )
    assert len(train) == 11 and len(test) == 5 and not train & test
    assert BugFix.tasks("test", count=7, seed=9) == BugFix.tasks("test", count=7, seed=9)
    with pytest.raises(UserError, match="no split 'dev'"):
        BugFix.tasks("dev", count=1)


SPLITS = [("train", 0), ("train", 1), ("test", 0)]
