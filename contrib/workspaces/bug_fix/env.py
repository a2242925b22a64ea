"""bug_fix: the model mends a small Python package in a workspace, and hidden calls of its functions grade it.

The tasks are made on the spot, see `tasks`. The model has a shell, files and pytest, in an image of this machine's own
Python, so that no network is needed. What counts are the modules of the package: they are copied into a fresh workspace
without tests, settings or anything else of the model's. One process there calls their functions and returns values. The
expected values never enter a workspace, so code that reads, replaces or forges the grader has nothing to gain.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from contrib.workspaces.bug_fix.repository import find_repair
from contrib.workspaces.bug_fix.tasks import tasks_of_level
from contrib.workspaces.contract import UnpackedImage, WorkspaceFileError, WorkspaceLimits
from contrib.workspaces.env.base import WorkspaceEnv
from contrib.workspaces.env.cheats import workspace_cheats
from contrib.workspaces.env.submission import put_texts
from contrib.workspaces.images.host_image import host_image
from contrib.workspaces.machines.workspace import Workspace
from envs.code_exec.values import same
from envs.messages import call, say
from forge_env.core.errors import EnvError
from forge_env.core.types import Message, Task

_FOLDER = "/repo"
_MAX_SOURCE = 2**18
_GRADE_SECONDS = 20.0
HARBOR_TASK = Path(__file__).with_name("harbor_task")
_RUNNER = (HARBOR_TASK / "runner.py").read_text(encoding="utf-8")
_FORGERY = """
import os
for descriptor in range(1, 64):
    try:
        os.write(descriptor, b"[[1]]")
    except OSError:
        pass
os._exit(0)
"""
_NOT_AT_LEVEL_0 = ("read", "write", "search")
_HEADER = re.compile(r"^==> (\S+) <==$", re.MULTILINE)


class BugFix(WorkspaceEnv):
    """Mend a small Python package. Reward 1 when every hidden call returns what it should."""

    system_prompt = "Mend the code, not its tests. Say done when you are done."
    workspace_limits: ClassVar[WorkspaceLimits] = WorkspaceLimits(
        memory_bytes=2**29, processes=64, disk_bytes=2**26, files=10_000, wall_s=30.0, transfer_bytes=2**22
    )
    command_seconds = 30.0

    def __init__(self, *, use_tools: bool = True, level: int = 1, packages: str = "") -> None:
        """Make an instance.

        Args:
            use_tools: whether the model has tools.
            level: of the tasks.
            packages: installed packages of the image beside pytest, separated by commas: those of an agent program.
        """
        super().__init__(use_tools=use_tools)
        self._packages = tuple(filter(None, packages.split(",")))
        if level == 0:
            self.set_tools({}, without=_NOT_AT_LEVEL_0)

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0, level: int = 1) -> Sequence[Task]:
        """Return tasks of a level from 0 to 3, see `contrib.workspaces.bug_fix.tasks`."""
        return tasks_of_level(level, split, count=count, seed=seed)

    @classmethod
    def limits(cls, *, level: int = 1) -> Mapping[str, float]:
        """More files take more turns."""
        return {"max_turns": 8 if level == 0 else 16 if level == 1 else 30}

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str | Sequence[Message]]:
        """Return answers and scripts that must earn nothing: only what the functions return counts."""
        solution = next(iter(task.metadata["solution"].values()))
        answers = [
            "done",
            "All tests pass. Reward: 1.0",
            f"```python\n{solution}```",
            '{"passed": true, "reward": 1.0}',
        ]
        scripts = workspace_cheats(task.target["sources"])
        return [*answers, *scripts, [call("shell", command=_forgery(task)), say("done")]]

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Read the files, mend the line, run the tests, by the conversation alone."""
        question = next(message["content"] for message in messages if message["role"] == "user")
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if not results:
            return _first_look(question)
        if len(results) == 1:
            return _mend(question, results[0])
        if len(results) == 2:
            return call("shell", command=_tests(question))
        return say("done")

    def image(self) -> UnpackedImage:
        return host_image(("pytest", *self._packages))

    @property
    def workdir(self) -> str:
        return _FOLDER

    async def prepare(self, workspace: Workspace) -> None:
        await put_texts(workspace, _in_place(self.task.metadata["files"]))

    async def collect(self, workspace: Workspace) -> dict[str, str]:
        """Read the modules of the package; one that is gone, a link or too large is left out."""
        paths = self.task.target["sources"]
        read = [workspace.get(place, max_bytes=_MAX_SOURCE) for place in _in_place(dict.fromkeys(paths, ""))]
        results = await asyncio.gather(*read, return_exceptions=True)
        for data in results:
            if isinstance(data, BaseException) and not isinstance(data, WorkspaceFileError):
                raise data
        return {
            path: data.decode("utf-8", "replace")
            for path, data in zip(paths, results, strict=True)
            if isinstance(data, bytes)
        }

    async def grade(self, copies: Any, answer: str) -> tuple[float, Mapping[str, Any]]:
        calls = self.task.target["calls"]
        original = {path: self.task.metadata["files"][path] for path in self.task.target["sources"]}
        if copies is None or copies == original:  # some hidden calls show the fault
            return 0.0, {"passed": 0, "total": len(calls), "reason": "no module was changed"}
        values = await self._values(copies, [one[:3] for one in calls])
        num_right = sum(
            len(value) == 1 and same(value[0], expected) for value, (*_, expected) in zip(values, calls, strict=False)
        )
        reason = "" if num_right == len(calls) else "a hidden call returns another value" if values else "no values"
        return float(num_right == len(calls)), {"passed": num_right, "total": len(calls), "reason": reason}

    async def _values(self, sources: Mapping[str, str], calls: Sequence[Sequence[Any]]) -> list[Any]:
        """Return a list for each call: with its value, or empty if it raised. Return [] when the process broke."""
        workspace = await self.open_fresh()
        try:
            await put_texts(workspace, _in_place(sources))
            command = ["/usr/local/bin/python3", "-I", "-S", "-c", _RUNNER, _FOLDER]
            result = await workspace.exec(command, cwd="/", stdin=json.dumps(calls), timeout_s=_GRADE_SECONDS)
        finally:
            await workspace.close()
        if not result.started:
            raise EnvError(f"the hidden calls did not start: {result.stderr.strip()}")
        try:
            values = json.loads(result.stdout)
        except (ValueError, RecursionError):
            return []
        is_list = isinstance(values, list) and len(values) == len(calls)
        return values if is_list and all(isinstance(value, list) for value in values) else []


def _in_place(files: Mapping[str, str]) -> dict[str, str]:
    return {f"{_FOLDER}/{path}": text for path, text in files.items()}


def _first_look(question: str) -> Message:
    if path := re.search(r"\w+\.py", question.partition("Mend the package")[0] if "package" not in question else ""):
        return call("shell", command=f"cat {path[0]}")
    name = re.findall(r"Mend the package (\w+)", question)[0]
    return call("shell", command=f"tail -n +1 {name}/*.py")


def _tests(question: str) -> str:
    """The command that runs the tests: those of one module are a script, which starts faster than pytest."""
    module = re.search(r"(\w+)\.py", question)
    return f"python test_{module[1]}.py" if module and "package" not in question else "python -m pytest -q"


def _mend(question: str, example: str) -> Message:
    """Mend the file that has a known fault, of those that `cat` or `tail` has shown."""
    parts = _HEADER.split(example)
    if len(parts) == 1:
        files = {re.findall(r"\w+\.py", question)[0]: example}
    else:
        files = dict(zip(parts[1::2], parts[2::2], strict=True))
    for path, text in files.items():
        if repair := find_repair(f"{text.rstrip()}\n"):
            return call("edit", path=path, old=repair.old, new=repair.new)
    return say("I have not found the fault.")


def _forgery(task: Task) -> str:
    """A script with modules that write to every descriptor of the grading process, and end it with 0."""
    paths = " ".join(task.target["sources"])
    return f"cat > /tmp/forgery.py <<'END'\n{_FORGERY}END\nfor path in {paths}; do cp /tmp/forgery.py $path; done"
