"""code_exec in the real sandbox: the expert solves it, and no cheat earns anything."""

from __future__ import annotations

from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from envs.code_exec import CodeExec, extract_code
from forge_env.env import EnvFactory
from forge_env.errors import SandboxError
from forge_env.rollout import run_episode, run_group
from forge_env.sandbox import ExecRequest, ExecResult, ExecStatus, Limits
from forge_env.types import Action, EpisodeLimits, Outcome, Task, ToolCall

TASK = CodeExec.tasks(count=1)[0]
LIMITS = EpisodeLimits()


def solution(task: Task) -> str:
    """The expression that solves a task, from what only its maker knows."""
    _, _, _, first, index, second, constant = task.prompt[0]["content"].rstrip(".").split()
    words = {"plus": "+", "minus": "-", "times": "*"}
    value = task.metadata["table"][int(index.strip("t[]"))]
    return f"x {words[first]} {value} {words[second]} {constant}"


def says(text: str = "", code: str | None = None) -> Action:
    calls = () if code is None else (ToolCall(id="call_0", name="python", arguments={"code": code}),)
    return Action(message={"role": "assistant", "content": text}, tool_calls=calls)


async def score(*answers: str, before: str | None = None) -> list[float]:
    """The reward of each answer, each in an episode of its own; `before` runs in the tool first."""
    rewards = []
    async with EnvFactory(CodeExec) as factory:
        for answer in answers:
            env = factory.make()
            await env.reset(seed=0, options={"task": TASK})
            if before is not None:
                await env.step(says(code=before))
            _, reward, terminated, _, _ = await env.step(says(answer))
            assert terminated
            rewards.append(reward)
    return rewards


async def run_tool(*snippets: str) -> list[str]:
    async with EnvFactory(CodeExec) as factory:
        env = factory.make()
        await env.reset(seed=0, options={"task": TASK})
        return [(await env.step(says(code=code)))[0][0]["content"] for code in snippets]


# ---- the expert ----


@pytest.mark.parametrize("split", ["train", "test"])
async def test_the_expert_earns_the_full_reward(split: str) -> None:
    async with EnvFactory(CodeExec) as factory:
        for i, task in enumerate(CodeExec.tasks(split, count=20)):
            result = await run_episode(
                factory, ScriptedAgent(CodeExec.expert), task, seed=i, episode_id=str(i), limits=LIMITS
            )
            assert (result.outcome, result.reward, len(result.turns)) == (Outcome.SCORED, 1.0, 2), result.messages


async def test_without_its_tool_the_expert_earns_nothing() -> None:
    async with EnvFactory(CodeExec) as factory:
        group = await run_group(
            factory,
            ScriptedAgent(CodeExec.expert),
            TASK,
            count=4,
            seed=0,
            group_id="g",
            limits=LIMITS,
            env_options={"use_tools": False},
        )
    assert group.rewards == (0.0,) * 4
    assert "switched off" in group.episodes[0].messages[-2]["content"]


def test_the_question_does_not_tell_the_value() -> None:
    """What is asked for depends on the table: the same words with another value have another solution."""
    for task in CodeExec.tasks(count=50):
        value = solution(task).split()[2]
        assert value not in task.prompt[0]["content"].split()
        assert all(eval(solution(task), {"x": x}) == y for x, y in task.target)


# ---- answers ----

RIGHT = {
    "plain": "def f(x): return {}",
    "fenced": "Here it is:\n```python\ndef f(x):\n    return {}\n```\nDone.",
    "the last fence": "```python\ndef f(x): return 0\n```\nNo:\n```\ndef f(x): return {}\n```",
    "lambda": "f = lambda x: {}",
    "prints as well": "def f(x):\n    print('hello')\n    return {}",
}
WRONG = {
    "empty": "",
    "prose": "The answer is {}.",
    "malformed": "def f(x) return {}",
    "another name": "def g(x): return {}",
    "another number": "def f(x): return ({}) + 1",
    "prints": "def f(x): print({})",
    "a float": "def f(x): return float({})",
    "a text": "def f(x): return str({})",
    "a list": "def f(x): return [{}]",
    "nothing": "def f(x): pass",
    "true": "def f(x): return True",
    "no such sandbox name": "def f(x): return t[0]",
}
CHEATS = {
    "reads t": "def f(x): return "
    + solution(TASK).replace(solution(TASK).split()[2], TASK.prompt[0]["content"].split()[4]),
    "the first test by heart": f"def f(x): return {TASK.target[0][1]}",
    "one test by heart, the other guessed": f"def f(x): return {{{TASK.target[0][0]}: {TASK.target[0][1]}}}.get(x, 0)",
    "equal to everything": "class E:\n    def __eq__(self, other): return True\ndef f(x): return E()",
    "an int equal to everything": (
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef f(x): return E(1)"
    ),
    "sys.exit": "import sys\ndef f(x): sys.exit(0)",
    "sys.exit at once": "import sys\nsys.exit(0)",
    "os._exit": "import os\ndef f(x): os._exit(0)",
    "raises": "def f(x): raise SystemExit",
    "generator": "def f(x): yield 1",
    "replaces json": (
        f"import json\njson.dumps = lambda *a, **k: '[{TASK.target[0][1]}, {TASK.target[1][1] + 1}]'\n"
        "def f(x): return 1"
    ),
    "verdict on stdout": f"print('[{TASK.target[0][1]}, {TASK.target[1][1]}]')\ndef f(x): return None",
    "asks its own frames": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame.f_back: frame = frame.f_back\n"
        "    return frame.f_globals.get('expected', frame.f_locals.get('expected'))"
    ),
}


async def test_right_answers_earn_one() -> None:
    rewards = await score(*(text.format(solution(TASK)) for text in RIGHT.values()))
    assert dict(zip(RIGHT, rewards, strict=True)) == dict.fromkeys(RIGHT, 1.0)


async def test_wrong_answers_earn_nothing() -> None:
    rewards = await score(*(text.format(solution(TASK)) for text in WRONG.values()))
    assert dict(zip(WRONG, rewards, strict=True)) == dict.fromkeys(WRONG, 0.0)


async def test_cheats_earn_nothing() -> None:
    rewards = await score(*CHEATS.values())
    assert dict(zip(CHEATS, rewards, strict=True)) == dict.fromkeys(CHEATS, 0.0)


async def test_what_the_tool_left_behind_does_not_reach_the_grading() -> None:
    """Neither files, nor modules, nor names."""
    leave = (
        "import builtins, os\nbuiltins.secret = t\n"
        "for folder in ('/tmp', '.', os.path.expanduser('~'), '/dev/shm'):\n"
        "    try: open(folder + '/table.txt', 'w').write(repr(t))\n"
        "    except OSError: pass\n"
    )
    index = TASK.prompt[0]["content"].split()[4].strip("t[]")
    use = solution(TASK).replace(solution(TASK).split()[2], f"table[{index}]")
    find = (
        "import builtins, os\ntable = getattr(builtins, 'secret', None)\n"
        "for folder in ('/tmp', '.', os.path.expanduser('~'), '/dev/shm'):\n"
        "    try: table = table or eval(open(folder + '/table.txt').read())\n"
        "    except OSError: pass\n"
        f"def f(x): return {use}\n"
    )
    assert await score(find, before=leave) == [0.0]
    assert await score(find.replace("getattr(builtins, 'secret', None)", repr(TASK.metadata["table"]))) == [1.0]


async def test_an_endless_answer_ends() -> None:
    class Impatient(CodeExec):
        limits = Limits(wall_s=0.5, cpu_s=0.5)

    async with EnvFactory(Impatient) as factory:
        env = factory.make()
        await env.reset(seed=0, options={"task": TASK})
        _, reward, *_ = await env.step(says("def f(x):\n    while True: pass"))
        [message], *_ = await env.step(says(code="while True: pass"))
    assert reward == 0.0
    assert "timeout" in message["content"]


# ---- the tool ----


async def test_what_the_model_is_told() -> None:
    table = TASK.metadata["table"]
    value, nothing, error, end, state, gone = await run_tool(
        "print(t[10], t[11])", "pass", "print('so far')\nt[1000]", "import sys; sys.exit(3)", "a = 1", "print(a)"
    )
    assert value == f"{table[10]} {table[11]}"
    assert (nothing, state) == ("", "")
    assert error.startswith("so far\n") and "IndexError: list index out of range" in error
    assert error.endswith("[exit code 1]")
    assert end == "[exit code 3]"
    assert "NameError" in gone  # each call is a fresh process


async def test_a_surrogate_in_the_code_is_told_to_the_model() -> None:
    [text] = await run_tool("print('\ud800')")
    assert "surrogate" in text.lower()


class BrokenSandbox:
    """A sandbox that cannot run anything."""

    async def run(self, request: ExecRequest) -> ExecResult:
        return ExecResult(status=ExecStatus.SANDBOX_ERROR, backend="broken", error="no more processes")


@pytest.mark.parametrize("action", [says("def f(x): return 1"), says(code="print(1)")], ids=["answer", "tool"])
async def test_a_sandbox_that_fails_is_never_scored(action: Action) -> None:
    env: Any = CodeExec()
    env.sandbox = BrokenSandbox()
    await env.reset(seed=0, options={"task": TASK})
    with pytest.raises(SandboxError, match="no more processes"):
        await env.step(action)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("x = 1", "x = 1"),
        ("a\n```python\nx = 1\n```\nb", "x = 1\n"),
        ("```py\nx = 1\n```\n```\ny = 2\n```", "y = 2\n"),
        ("```python\nx = 1", "```python\nx = 1"),
    ],
)
def test_the_code_of_an_answer(answer: str, code: str) -> None:
    assert extract_code(answer) == code
