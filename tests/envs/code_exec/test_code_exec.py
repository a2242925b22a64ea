"""code_exec in the real sandbox: the expert solves it, and no cheat earns anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from agents.scripted import ScriptedAgent
from envs.code_exec import CodeExec, extract_code
from forge_env.core.episode import Episode
from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import Call, Capabilities, ExecRequest, ExecResult, ExecStatus, Limits
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task, ToolCall
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import GroupSpec, run_episode, run_group

TASK = CodeExec.tasks(count=1)[0]
LIMITS = EpisodeLimits()
shared_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def factory() -> AsyncIterator[EnvFactory]:
    async with EnvFactory(CodeExec) as opened:
        yield opened


def solution(task: Task) -> str:
    """The expression that solves a task, from what only its maker knows."""
    _, _, _, first, index, second, constant = task.prompt[0]["content"].rstrip(".").split()
    words = {"plus": "+", "minus": "-", "times": "*"}
    value = task.metadata["table"][int(index.strip("t[]"))]
    return f"x {words[first]} {value} {words[second]} {constant}"


def says(text: str = "", code: str | None = None) -> Action:
    calls = () if code is None else (ToolCall(id="call_0", name="python", arguments={"code": code}),)
    return Action(message={"role": "assistant", "content": text}, tool_calls=calls)


async def score(factory: EnvFactory, *answers: str, before: str | None = None) -> list[float]:
    """The reward of each answer, each in an episode of its own; `before` runs in the tool first."""
    rewards = []
    for answer in answers:
        env = factory.make()
        await env.reset(seed=0, options={"task": TASK})
        if before is not None:
            await env.step(says(code=before))
        _, reward, terminated, _, _ = await env.step(says(answer))
        assert terminated
        rewards.append(reward)
    return rewards


async def run_tool(factory: EnvFactory, *snippets: str, **options: Any) -> list[str]:
    env = factory.make(**options)
    await env.reset(seed=0, options={"task": TASK})
    said = [(await env.step(says(code=code)))[0][0]["content"] for code in snippets]
    await env.close()
    return said


async def expert_plays(factory: EnvFactory, task: Task, seed: int = 0) -> Episode:
    agent = ScriptedAgent(CodeExec.expert)
    return await run_episode(factory, agent, task, seed=seed, episode_id=str(seed), limits=LIMITS)


@shared_loop
async def test_without_its_tool_the_expert_earns_nothing(factory: EnvFactory) -> None:
    group = await run_group(
        factory,
        ScriptedAgent(CodeExec.expert),
        GroupSpec(task=TASK, count=4, seed=0, group_id="g", env_options={"use_tools": False}),
        limits=LIMITS,
    )
    assert group.rewards == (0.0,) * 4
    assert "switched off" in group.episodes[0].messages[-2]["content"]


def test_the_question_does_not_tell_the_value() -> None:
    """What is asked for depends on the table: the same words with another value have another solution."""
    for task in CodeExec.tasks(count=50):
        value = solution(task).split()[2]
        assert value not in task.prompt[0]["content"].split()
        assert all(eval(solution(task), {"x": x}) == y for x, y in task.target)


@shared_loop
@pytest.mark.parametrize("level", [1, 2, 3, 4])
async def test_the_expert_solves_every_level(factory: EnvFactory, level: int) -> None:
    tasks = [task for split in ("train", "test") for task in CodeExec.tasks(split, count=5, level=level)]
    for i, task in enumerate(tasks):
        result = await expert_plays(factory, task, seed=i)
        assert (result.outcome, result.reward) == (Outcome.SCORED, 1.0), result.messages
        enforced = result.info["sandbox"]
        assert enforced["seccomp"] is True and enforced["memory_limit"], "what the sandbox enforces is on record"
    assert len({task.metadata["operation"] for task in tasks}) >= 2


async def test_level_4_needs_the_session() -> None:
    """The expert's later calls use the rows that an earlier one read."""
    async with make("code_exec", level=4, stateful=False) as factory:
        result = await expert_plays(factory, factory.tasks(count=1)[0])
    assert (result.outcome, result.reward) == (Outcome.SCORED, 0.0)
    assert any("NameError: name 'rows' is not defined" in message["content"] for message in result.messages)


def test_the_expert_says_what_it_cannot_solve() -> None:
    with pytest.raises(UserError, match="not those of a data set"):
        CodeExec.expert([{"role": "user", "content": "Write a compiler."}])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 5}, "no level 5; the levels are 1, 2, 3 and 4"),
        ({"level": "two"}, "'two'"),
        ({"data": "nowhere.jsonl"}, "there is no file nowhere.jsonl"),
    ],
)
def test_mistakes_in_the_options_of_tasks(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make("code_exec", **options).tasks(count=1)


def test_seconds_out_of_range() -> None:
    with pytest.raises(UserError, match="seconds of code_exec is 100.0; it is above 0 and at most 60"):
        CodeExec(seconds=100.0)


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


@shared_loop
@pytest.mark.parametrize(("answers", "reward"), [(RIGHT, 1.0), (WRONG, 0.0), (CHEATS, 0.0)])
async def test_answers_have_their_reward(factory: EnvFactory, answers: dict[str, str], reward: float) -> None:
    texts = answers if answers is CHEATS else {k: text.format(solution(TASK)) for k, text in answers.items()}
    rewards = await score(factory, *texts.values())
    assert dict(zip(answers, rewards, strict=True)) == dict.fromkeys(answers, reward)


@shared_loop
@pytest.mark.parametrize(("level", "partial_credit"), [(1, False), (3, False), (4, True)])
async def test_the_cheats_that_the_environment_names_earn_nothing(
    factory: EnvFactory, level: int, partial_credit: bool
) -> None:
    by_kind = {t.target["tests"][0]["type"] if level > 1 else "": t for t in CodeExec.tasks(count=20, level=level)}
    assert len(by_kind) == (2 if level == 3 else 1)
    for task in by_kind.values():
        cheats = CodeExec.cheats(task)
        assert len(cheats) > 15
        env = factory.make(partial_credit=partial_credit)
        for cheat in cheats:
            await env.reset(seed=0, options={"task": task})
            _, reward, *_ = await env.step(says(cheat))
            assert reward == 0.0, cheat


@shared_loop
async def test_why_an_answer_failed_is_in_the_info(factory: EnvFactory) -> None:
    """And not in what the model sees."""
    env = factory.make()
    for answer, reason in (
        ("", "the answer is empty"),
        ("def f(x): return 1", "returned [1, 1] for"),
        ("def f(x): return 1 / 0", "nonzero: ZeroDivisionError: division by zero"),
        ("def f(x) return 1", "SyntaxError"),
        ("def f(x): return {1}", "type set cannot be returned"),
    ):
        await env.reset(seed=0, options={"task": TASK})
        observation, reward, _, _, info = await env.step(says(answer))
        assert (list(observation), reward) == ([], 0.0)
        assert info["tests"]["passed"] == 0 and reason in info["tests"]["reason"]
    await env.reset(seed=0, options={"task": TASK})
    *_, info = await env.step(says(f"def f(x): return {solution(TASK)}"))
    assert info["tests"] == {"passed": 1, "total": 1, "reason": ""}


@shared_loop
async def test_partial_credit_is_the_share_of_the_tests(factory: EnvFactory) -> None:
    task = next(t for t in CodeExec.tasks(count=20, level=3) if t.metadata["operation"] == "unique")
    answer = "def f(xs): return []"  # right for the empty list, and where nothing is large enough
    right = sum(test["accepted"] == ["[]"] for test in task.target["tests"])
    assert 0 < right < len(task.target["tests"])
    for partial_credit, expected in ((False, 0.0), (True, right / len(task.target["tests"]))):
        env = factory.make(partial_credit=partial_credit)
        for seed in range(8):  # of the order of the tests: without partial credit the first that fails ends them
            await env.reset(seed=seed, options={"task": task})
            _, reward, *_ = await env.step(says(answer))
            assert reward == expected


@shared_loop
async def test_what_the_tool_left_behind_does_not_reach_the_grading(factory: EnvFactory) -> None:
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
    assert await score(factory, find, before=leave) == [0.0]
    assert await score(factory, find.replace("getattr(builtins, 'secret', None)", repr(TASK.metadata["table"]))) == [
        1.0
    ]


UNREADABLE = {
    "an integer that is too large for a float": '{"complex": [1%s, 0]}' % ("0" * 400),
    "an integer of too many digits": "9" * 5000,
    "nested too deeply to decode": "[" * 30_000 + "]" * 30_000,
    "nested as deeply as decodes": "[" * 450 + "]" * 450,
    "not a number": "[NaN, Infinity, -Infinity]",
    "a surrogate": '"\\ud800"',
    "keys twice": '{"dict": [[1, 2], [1, 3]], "dict": [[[1], 2]]}',
    "an unhashable member": '{"set": [{"dict": []}]}',
    "no pairs": '{"dict": [1, [2, 3, 4]]}',
    "no JSON": "[1,",
    "no UTF-8": "\x80\xff",
}


@shared_loop
@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
async def test_what_an_answer_writes_in_place_of_its_value_is_never_a_fault(factory: EnvFactory, text: str) -> None:
    """The answer knows the descriptor and the form of the report, and writes it itself."""
    code = (
        f"import os, struct\ntext = {text!r}.encode('latin-1')\n"
        "os.write(3, b'V' + struct.pack('<I', len(text)) + text)\nos._exit(0)"
    )
    call = {"type": "call", "function": "f", "args": "1", "accepted": ["2"]}
    tasks = [TASK, *(replace(TASK, target={"tests": [test | how]}) for test, how in (
        (call, {}), (call, {"compare": "json"}), (call, {"compare": "equal"}),
        (call, {"compare": "truth", "accepted": ["False"]}), (call, {"compare": "close", "abs_tol": 1.0}),
    ))]  # fmt: skip
    for task in tasks:
        result = await run_episode(
            factory, ScriptedAgent(lambda messages: {"role": "assistant", "content": code}), task,
            seed=0, episode_id="e", limits=LIMITS,
        )  # fmt: skip
        assert (result.outcome, result.reward) == (Outcome.SCORED, 0.0), result.error
        result.to_json().encode()


async def test_an_endless_answer_ends() -> None:
    class Impatient(CodeExec):
        sandbox_limits = Limits(wall_s=0.3)

    async with EnvFactory(Impatient) as factory:
        env = factory.make()
        await env.reset(seed=0, options={"task": TASK})
        _, reward, *_ = await env.step(says("def f(x):\n    while True: pass"))
        [message], *_ = await env.step(says(code="while True: pass"))
    assert reward == 0.0
    assert "timeout" in message["content"]


@shared_loop
@pytest.mark.parametrize("limit", ["episode_seconds", "step_seconds"])
async def test_code_that_stalls_is_the_models_own_doing(factory: EnvFactory, limit: str) -> None:
    """It is truncated with its reward, so that stalling is worth no more than a wrong answer."""

    def stalls(messages: list[Message]) -> Message:
        arguments = {"code": "while True: pass"}
        call = {"type": "function", "function": {"name": "python", "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    limits = EpisodeLimits(**{limit: 0.7})
    result = await run_episode(factory, ScriptedAgent(stalls), TASK, seed=0, episode_id="", limits=limits)
    assert (result.outcome, result.reward, result.ended_by) == (Outcome.TRUNCATED, 0.0, limit)


@shared_loop
async def test_what_the_model_is_told(factory: EnvFactory) -> None:
    table = TASK.metadata["table"]
    value, nothing, error, end, unreadable, surrogate = await run_tool(
        *(factory, "print(t[10], t[11])", "pass", "print('so far')\nt[1000]", "import sys; sys.exit(3)"),
        *("def f(:\n  pass", "print('\ud800')"),
    )
    assert value == f"{table[10]} {table[11]}"
    assert nothing == ""
    assert error.startswith("so far\n") and "IndexError: list index out of range" in error
    assert error.endswith("[exit code 1]")
    assert end == "[exit code 3]"
    assert "SyntaxError: invalid syntax" in unreadable and "def f(:" in unreadable
    assert "surrogate" in surrogate.lower()


STATE = ("a = 1; open('note.txt', 'w').write('kept')", "print(a, open('note.txt').read(), len(t))")


@shared_loop
async def test_variables_and_files_last_for_the_episode_or_until_the_interpreter_ends(factory: EnvFactory) -> None:
    """A cell that ends it takes what earlier cells built; what the task provides is there again."""
    _, kept, killed, after = await run_tool(
        factory, *STATE, "import os; os._exit(7)", "print('a' in globals(), len(t))"
    )
    assert kept == "1 kept 100"
    assert killed == "[exit code 7]\n[variables and files are gone]"
    assert after == "False 100"
    assert "NameError: name 'a' is not defined" in (await run_tool(factory, *STATE, stateful=False))[1]


@shared_loop
async def test_episodes_share_nothing(factory: EnvFactory) -> None:
    first, second = factory.make(), factory.make()
    for env in (first, second):
        await env.reset(seed=0, options={"task": TASK})
    await first.step(says(code=STATE[0]))
    [message], *_ = await second.step(says(code=STATE[1]))
    assert "NameError" in message["content"]
    await first.reset(seed=0, options={"task": TASK})  # an episode anew
    [message], *_ = await first.step(says(code=STATE[1]))
    assert "NameError" in message["content"]
    await first.close()
    await first.close()
    await second.close()


@shared_loop
async def test_a_cancelled_call_leaves_the_session_usable_and_closed_at_the_end(factory: EnvFactory) -> None:
    env = factory.make()
    await env.reset(seed=0, options={"task": TASK})
    await env.step(says(code="a = 1"))
    waiting = asyncio.ensure_future(env.step(says(code="while True: pass")))
    for _ in range(100):  # turns of the loop, by which the code is on its way
        await asyncio.sleep(0)
    await asyncio.wait([waiting], timeout=0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    [message], *_ = await env.step(says(code="print('a' in globals())"))
    assert message["content"] == "False\n[variables and files are gone]"
    await env.close()


# The tool tells the answer what only it knows, one bit by each file that both may read: locked or not.
_TELL = """
import fcntl, os
names = sorted(n for n in os.listdir(os.path.dirname(os.__file__)) if n.endswith(".py"))[:10]
held = [open(os.path.join(os.path.dirname(os.__file__), n), "rb") for n in names]
for bit, file in enumerate(held):
    if {value} >> bit & 1: fcntl.flock(file, fcntl.LOCK_EX)
"""
_HEAR = """
import fcntl, os
names = sorted(n for n in os.listdir(os.path.dirname(os.__file__)) if n.endswith(".py"))[:10]
def is_locked(name):
    with open(os.path.join(os.path.dirname(os.__file__), name), "rb") as file:
        try: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError: return True
    return False
def f(x):
    value = sum(1 << bit for bit, name in enumerate(names) if is_locked(name))
    return {solution}
"""


@shared_loop
async def test_nothing_of_the_tool_lives_while_its_answer_is_graded(factory: EnvFactory) -> None:
    first, value, second, constant = solution(TASK).split()[1:]
    blind = _HEAR.format(solution=f"x {first} value {second} {constant}")
    tell = _TELL.format(value=value)
    env = factory.make()
    await env.reset(seed=0, options={"task": TASK})
    [answer], *_ = await env.step(says(code=tell))
    assert answer["content"] == "", "the tool has taken its locks"
    # The control: while the tool lives, an answer that is run elsewhere hears of them.
    x, expected = TASK.target[0]
    heard = await env.sandbox.run(ExecRequest(code=blind, call=Call(function="f", args=[x])))
    assert heard.value == json.dumps(expected)
    _, reward, terminated, _, info = await env.step(says(blind))
    assert terminated and reward == 0.0 and info["tests"]["passed"] == 0
    assert (await score(factory, f"def f(x): return {solution(TASK)}", before=tell)) == [1.0]


class BrokenSandbox:
    """A sandbox that cannot run anything."""

    missing = ("pid_namespace", "mount_namespace", "network_namespace", "ipc_namespace", "seccomp", "uid_drop")
    capabilities = Capabilities(backend="broken", memory_limit="none", **dict.fromkeys(missing, False))

    async def run(self, request: ExecRequest) -> ExecResult:
        return ExecResult(status=ExecStatus.SANDBOX_ERROR, backend="broken", error="no more processes")

    async def open_session(self, **settings: Any) -> BrokenSandbox:
        return self

    async def close(self) -> None:
        pass


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
