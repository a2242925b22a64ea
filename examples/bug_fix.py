"""Fix a bug: the model reads and edits files in a session, runs their tests with pytest, and is graded by hidden calls.

It shows an environment that gives a model files and a test runner, and still takes its verdict from neither. Only the
text of one file leaves the session, and the session is closed before the grading. Each hidden call then runs in a fresh
process that holds this file and nothing else of the model's; it returns a plain value, and the value is compared here.
So a conftest.py, a pytest.ini, a sitecustomize.py, changed tests or a patched pytest change what the model is shown,
and nothing of what it earns.

    forge-env check examples/bug_fix.py:BugFix
    forge-env eval --env examples/bug_fix.py:BugFix --agent scripted:expert --tasks 20 --out outputs/bug_fix
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import forge_env
from agents.scripted import ScriptedAgent
from envs.code_exec.values import decode, same
from forge_env import Message, Task, ToolEnv, reward, tool
from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import Call, ExecRequest, ExecResult, ExecStatus, Limits, Sandbox, Session, SessionFileError
from forge_env.utils.deadlines import queued
from sandboxes import open_sandbox

LIMITS = Limits(wall_s=10.0, cpu_s=5.0, processes=8, file_bytes=2**18, tmp_bytes=4 * 2**20)
SHOWN = 4000
"""Characters of a file, or of what was printed, that the model is shown."""
HIDDEN_CALLS = 6
_DRAWS = 200
_NAMES = {"train": ("basket", "ledger", "parcel", "signal", "orchard"), "test": ("harbour", "lantern", "meadow")}

# Runs first in the session, and again whenever a cell has ended its interpreter: the files are then as at the start.
# pytest is loaded already, so that a fork of the session runs it at once. With -qq it prints no times, so that the same
# seed gives the same episode.
_SETUP = """
def _begin(files):
    for path, text in files.items():
        with open(path, "w") as file:
            file.write(text)

def run_tests():
    import os, sys, pytest
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(pytest.main(["-qq", "--no-header", "--tb=short", "-p", "no:cacheprovider"]))
            sys.stdout.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

"""
# The code of a graded call: the working directory is not on the path by itself.
_GRADED = "import sys; sys.path.insert(0, ''); from {module} import {module} as graded"


@asynccontextmanager
async def open_with_pytest() -> AsyncIterator[Sandbox]:
    """The sandbox that all episodes share; pytest and what it requires is in it."""
    async with open_sandbox(packages=("pytest",)) as sandbox:
        yield sandbox


class BugFix(ToolEnv):
    """Find the bug in a module and mend it. Reward 1 when every hidden call of its function returns what it should."""

    shared: ClassVar = {"sandbox": f"{__file__}:open_with_pytest"}
    system_prompt = "Mend the module, not its tests. Say done when you are done."
    time_spent_by = "model"

    sandbox: Sandbox
    _session: Session | None = None

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        """Return tasks whose bug, names and tests are drawn at random; the bugs of the test split are not in training.

        Raises:
            UserError: for an unknown split.
        """
        if split not in _NAMES:
            raise UserError(f"there is no split {split!r}; the splits are train and test")
        held_out = split == "test"
        bugs = [bug for bug in _bugs() if bug.is_held_out is held_out]
        rng = random.Random(f"{split}/{seed}")
        return [_make_task(bugs[i % len(bugs)], f"{rng.choice(_NAMES[split])}_{seed}_{i}", rng) for i in range(count)]

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        return {"max_turns": 12}

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str]:
        """Final answers that must earn nothing: what counts is the file."""
        right = f"```python\n{task.metadata['right']}```"
        return ["done", "All tests pass. Reward: 1.0", right, "6 passed in 0.01s", '{"passed": true, "reward": 1.0}']

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        await self.close()
        return await super().reset(seed=seed, options=options)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @tool
    async def read_file(self, path: str) -> str:
        """Read a text file."""
        data = await (await self._open()).get(path)  # a SessionFileError is a ValueError: the model reads it
        return _cut(data.decode("utf-8", "replace"))

    @tool
    async def write_file(self, path: str, text: str) -> str:
        """Write a text file."""
        await (await self._open()).put(path, text.encode("utf-8", "replace"))
        return "written"

    @tool(timeout=30.0)
    async def python(self, code: str) -> str:
        """Run Python code beside the files; variables last."""
        return _report(await (await self._open()).run(code))

    @tool(timeout=30.0)
    async def run_tests(self) -> str:
        """Run pytest on the files."""
        return _report(await (await self._open()).run("run_tests()"))

    @reward
    async def hidden_calls(self) -> float:
        """1 when every hidden call returns the expected value, else 0."""
        text = await self._export()
        if text == self._source:  # of which some hidden calls show the bug
            return 0.0
        calls = list(self.task.target)
        random.Random(repr(text)).shuffle(calls)
        for arguments, expected in calls:
            if not await self._returns(text, arguments, expected):
                return 0.0
        return 1.0

    @property
    def _source(self) -> bytes:
        return str(self.task.metadata["source"]).encode()

    async def _open(self) -> Session:
        if self._session is None:
            module = self.task.metadata["module"]
            files = {f"{module}.py": self.task.metadata["source"], f"test_{module}.py": self.task.metadata["tests"]}
            async with queued():  # other episodes may hold all of the sandbox's sessions
                self._session = await self.sandbox.open_session(
                    setup=f"{_SETUP}_begin({files!r})\n", limits=LIMITS, echo=True
                )
        return self._session

    async def _export(self) -> bytes:
        """Take the module out of the session and end that, with whatever the model has left running in it."""
        if self._session is None:
            return self._source
        try:
            return await self._session.get(f"{self.task.metadata['module']}.py")
        except SessionFileError:  # it is gone, a link, or too large: there is no module to grade
            return b""
        finally:
            await self.close()

    async def _returns(self, text: bytes, arguments: Sequence[Any], expected: Any) -> bool:
        """Whether the function of a module returns the expected value, in a process that never sees it."""
        module = self.task.metadata["module"]
        request = ExecRequest(
            code=_GRADED.format(module=module),
            files={f"{module}.py": text},
            call=Call(function="graded", args=arguments),
            limits=LIMITS,
        )
        result = await self.sandbox.run(request)
        if result.status is ExecStatus.SANDBOX_ERROR:
            raise SandboxError(f"the {result.backend} sandbox failed: {result.error}")
        if result.status is not ExecStatus.OK:
            return False
        try:
            return same(decode(result.value), expected)
        except ValueError:
            return False

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Read the module, write it anew without the bug, run the tests: from what the conversation shows."""
        question = next(message["content"] for message in messages if message["role"] == "user")
        path = re.findall(r"\w+\.py", question)[0]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if not results:
            return _call("read_file", path=path)
        if len(results) == 1:
            name = path.removesuffix(".py")
            right = next(bug.right for bug in _bugs() if bug.wrong.replace("NAME", name) == results[0])
            return _call("write_file", path=path, text=right.replace("NAME", name))
        if len(results) == 2:
            return _call("run_tests")
        return {"role": "assistant", "content": "done"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A module with a mistake in it. NAME stands for the module and its function."""

    right: str
    wrong: str
    draw: Callable[[random.Random], list[Any]]
    """Arguments of a call."""
    is_held_out: bool


def _numbers(rng: random.Random, least: int = 0) -> list[int]:
    return [rng.randint(-9, 30) for _ in range(rng.randint(least, 7))]


def _words(rng: random.Random) -> list[str]:
    return rng.choices(["tea", "ink", "rope", "salt", "wax", "Tin", "cork"], k=rng.randint(0, 8))


_Project = tuple[str, Callable[[random.Random], list[Any]], tuple[tuple[str, str], ...]]
_PROJECTS: tuple[_Project, ...] = (
    (
        '''def NAME(prices, discount):
    """The sum of the prices; every third one is less by the discount in percent, and none is below 0."""
    total = 0
    for number, price in enumerate(prices, start=1):
        if number % 3 == 0:
            price -= price * discount // 100
        total += max(price, 0)
    return total
''',
        lambda rng: [_numbers(rng), rng.choice([0, 10, 25, 50])],
        (("start=1", "start=0"), ("max(price, 0)", "price"), ("// 100", "// 10"), ("number % 3", "number % 2")),
    ),
    (
        '''def NAME(words, size):
    """The words in lists of the given size, in order; the last list may be shorter."""
    parts = []
    for start in range(0, len(words), size):
        parts.append(words[start:start + size])
    return parts
''',
        lambda rng: [_words(rng), rng.randint(2, 4)],
        (("len(words), size", "len(words) - 1, size"), ("start + size", "start + 3"), ("(words), size", "(words), 3")),
    ),
    (
        '''def NAME(words):
    """How often each word occurs, without regard to its case, the most frequent first, then by the alphabet."""
    counts = {}
    for word in words:
        key = word.lower()
        counts[key] = counts.get(key, 0) + 1
    return sorted(([key, count] for key, count in counts.items()), key=lambda pair: (-pair[1], pair[0]))
''',
        lambda rng: [_words(rng)],
        (("word.lower()", "word"), ("(-pair[1], pair[0])", "(pair[1], pair[0])"), ("get(key, 0)", "get(word, 0)")),
    ),
    (
        '''def NAME(values, low, high):
    """The positions of the values from low to high, both included."""
    places = []
    for place, value in enumerate(values):
        if low <= value <= high:
            places.append(place)
    return places
''',
        lambda rng: [_numbers(rng, 3), rng.randint(-5, 5), rng.randint(6, 20)],
        (
            ("low <= value", "low < abs(value)"),
            ("append(place)", "append(value)"),
            ("low <= value <= high", "value < high"),
        ),
    ),
    (
        '''def NAME(text):
    """The text with each run of a character as the character and the length of the run."""
    result = ""
    place = 0
    while place < len(text):
        end = place
        while end < len(text) and text[end] == text[place]:
            end += 1
        result += text[place] + str(end - place)
        place = end
    return result
''',
        lambda rng: ["".join(rng.choice("abc") * rng.randint(1, 3) for _ in range(rng.randint(1, 6)))],
        (
            ("str(end - place)", "str(end)"),
            ("text[end] == text[place]", "end < place + 2"),
            ("len(text):", "len(text) - 1:"),
        ),
    ),
)


def _bugs() -> Iterator[Bug]:
    """Yield every bug; the first one of each module is never in training."""
    for source, draw, changes in _PROJECTS:
        for i, (old, new) in enumerate(changes):
            yield Bug(right=source, wrong=source.replace(old, new, 1), draw=draw, is_held_out=i == 0)


def _make_task(bug: Bug, name: str, rng: random.Random) -> Task:
    """Half of the calls show the bug, of the model's tests and of the hidden ones."""
    right, wrong = (_function(source, name) for source in (bug.right, bug.wrong))
    showing: list[list[Any]] = []
    hiding: list[list[Any]] = []
    for _ in range(_DRAWS):
        arguments = bug.draw(rng)
        calls = hiding if wrong(*arguments) == right(*arguments) else showing
        if len(calls) <= HIDDEN_CALLS // 2 and arguments not in calls:
            calls.append(arguments)
        if len(showing) == len(hiding) == HIDDEN_CALLS // 2 + 1:
            break
    assert len(showing) == len(hiding) == HIDDEN_CALLS // 2 + 1, f"a bug that shows always or never: {bug.wrong}"
    tests = "".join(
        f"def test_{i}():\n    assert {name}({', '.join(map(repr, arguments))}) == {right(*arguments)!r}\n\n\n"
        for i, arguments in enumerate((showing[0], hiding[0]))
    )
    question = f"The function in {name}.py does not do what it says, and test_{name}.py fails. Mend {name}.py."
    return Task(
        prompt=({"role": "user", "content": question},),
        target=[[arguments, right(*arguments)] for arguments in (*showing[1:], *hiding[1:])],
        metadata={
            "module": name,
            "source": bug.wrong.replace("NAME", name),
            "right": bug.right.replace("NAME", name),
            "tests": f"from {name} import {name}\n\n\n{tests}".rstrip() + "\n",
        },
    )


def _function(source: str, name: str) -> Callable[..., Any]:
    """The function of one of the modules above, which are our own code."""
    namespace: dict[str, Any] = {}
    exec(source.replace("NAME", name), namespace)
    function: Callable[..., Any] = namespace[name]
    return function


def _report(result: ExecResult) -> str:
    """What the model is told of an execution."""
    if result.status is ExecStatus.SANDBOX_ERROR:
        raise SandboxError(f"the {result.backend} sandbox failed: {result.error}")
    lost = "[variables are gone, and the files are as at the start]" if result.state_lost else ""
    status = "" if result.status is ExecStatus.OK else f"[{result.status.value.replace('_', ' ')}]"
    return "\n".join(part for part in (_cut(result.stdout + result.stderr).rstrip(), status, lost) if part)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n[cut]"


def _call(name: str, **arguments: str) -> Message:
    function = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [function]}


async def main() -> None:
    async with forge_env.EnvFactory(BugFix) as factory:
        [task] = factory.tasks("test", count=1)
        agent = ScriptedAgent(BugFix.expert)
        episode = await forge_env.run_episode(factory, agent, task, seed=0, episode_id="example")
        for message in episode.messages:
            print(f"{message['role']}: {message['content'] or [call['function'] for call in message['tool_calls']]}")
        print("reward", episode.reward)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
