"""Plays the solution of a Harbor task with the tools of the agent."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from contrib.common.task_audit import TaskAudit
from contrib.harbor.config import HarborTask, find_tasks, resolved
from contrib.harbor.needs import verifier_fetches
from contrib.workspaces.env.cheats import named_cheats
from envs.messages import call, say
from forge_env.core.errors import UserError
from forge_env.core.types import Message, Task

_SECONDS = 600.0
_tasks = functools.lru_cache(maxsize=16)(find_tasks)


def play_solution(path: Path, messages: list[Message]) -> Message:
    """Return the next message of the solution of one of the tasks of a folder.

    Args:
        path: the folder of tasks; the messages of the user are the instructions of the task.
    """
    instructions = [message["content"] for message in messages if message["role"] == "user"]
    first, *others = [task for task in _tasks(path) if _instructions(task)[: len(instructions)] == instructions]
    for other in others:
        if _files(first) != _files(other):
            raise UserError(
                f"{first.folder} and {other.folder} have the same instruction and different solutions, and the "
                "conversation does not tell which one is asked for: give each its own instruction"
            )
    return play_task(first, messages)


def play_task(task: HarborTask, messages: list[Message]) -> Message:
    """Return the next message: the files of solution/ are written, solve.sh is run, and that is the end of a step."""
    users = [number for number, message in enumerate(messages) if message["role"] == "user"]
    step, count = task.steps[len(users) - 1], sum(message["role"] == "assistant" for message in messages[users[-1] :])
    solution = task.part(step, "solution")
    if not (solution / "solve.sh").is_file():
        raise UserError(f"{task.folder} has no solution/solve.sh")
    if count == 0:
        return _write_files(solution)
    if count == 1:
        env = resolved(task.config.solution.env, where=f"[solution.env] of {task.name}")
        assignments = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
        return call("shell", command=f"chmod +x /solution/solve.sh; {assignments}/solution/solve.sh", timeout=_SECONDS)
    return say("done")


def _write_files(solution: Path) -> Message:
    calls = []
    for file in sorted(path for path in solution.rglob("*") if path.is_file()):
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            raise UserError(f"{file} is no text; the files of a solution are played as texts") from None
        calls += call("write", path=f"/solution/{file.relative_to(solution).as_posix()}", text=text)["tool_calls"]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _instructions(task: HarborTask) -> list[str]:
    return [task.instruction(step) for step in task.steps]


def _files(task: HarborTask) -> list[dict[str, bytes]]:
    folders = [task.part(step, "solution") for step in task.steps]
    return [
        {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        for folder in folders
    ]


_CLAIMS: Mapping[str, Sequence[Message]] = {"success is claimed": [say("All tests pass. Reward: 1.0")]}


def audit_of(task: Task, harbor: HarborTask) -> TaskAudit:
    return TaskAudit(
        name=harbor.name,
        task=task,
        solution=functools.partial(play_task, harbor),
        cheats=cheats_of(harbor),
        verifier_limit=sum(harbor.verifier(step).timeout_sec for step in harbor.steps),
        fetches=verifier_fetches(harbor),
    )


def cheats_of(task: HarborTask) -> Mapping[str, Sequence[Message]]:
    """Return what must earn nothing: a claim, and scripts that replace what the verifier runs with."""
    sources = [artifact.source for step in task.steps for artifact in task.artifacts(step)]
    return {**_CLAIMS, **named_cheats(list(dict.fromkeys(sources)))}
