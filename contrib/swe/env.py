"""swe:PATH: tasks in the shape of SWE-bench, from a file; see `contrib.swe.rows`.

    forge-env eval --env swe:tasks.jsonl --agent ...

The agent works on the repository at the base commit. When it ends, its processes are killed, and what counts of its
changes is applied in a fresh workspace. The test patch is applied after it, and pytest runs the tests of the task. The
reward is 1 when all of FAIL_TO_PASS and PASS_TO_PASS pass, as `contrib.swe.verdict.passing_tests` says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from contrib.common.task_audit import TaskAudit
from contrib.swe.cheats import KNOWN_CHEATS, named_cheats_of
from contrib.swe.repository import limits_of, prepare_repository
from contrib.swe.rows import Instance, instance_of, read_instance
from contrib.swe.verdict import Outcome, Submission, collect_patch, run_tests
from contrib.workspaces.env.prepared_env import Beginning, PreparedEnv
from contrib.workspaces.env.rows import DEFAULT_IMAGE
from contrib.workspaces.env.solutions import note_solution, play_noted, play_solution
from contrib.workspaces.machines.workspace import Workspace
from envs.data_tasks import data_tasks
from envs.messages import call, say
from forge_env.core.env import Env
from forge_env.core.errors import EnvError, UserError
from forge_env.core.types import Message, Task

_LISTED = 20
_PREPARED = {"snapshot", "base_commit", "workdir", "setup", "memory_mb", "disk_mb", "cpus"}


class Swe(PreparedEnv):
    """Base of the classes of `resolve`: solve a problem in a repository. Reward 1 when the task's tests pass."""

    made_of: ClassVar[Sequence[str]] = ("contrib.swe", "contrib.workspaces.images.dockerfile")
    command_seconds = 120.0
    known_cheats = KNOWN_CHEATS
    path: ClassVar[str] = ""
    """The file of tasks; set by `resolve`."""

    def __init__(self, *, use_tools: bool = True, image: str = DEFAULT_IMAGE) -> None:
        """Make an instance.

        Args:
            image: of the tasks that name none; it needs git, Python and pytest.
        """
        super().__init__(use_tools=use_tools, image=image)

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        """Return tasks of the file; a tenth of them, by their content, is "test", the others are "train"."""
        return data_tasks(cls.path, split, count=count, seed=seed, make=_reader(cls.path))

    @classmethod
    def all_tasks(cls) -> Sequence[Task]:
        """Return every task of the file. Raises as `tasks`."""
        return data_tasks(cls.path, "all", count=None, seed=None, make=_reader(cls.path))

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """An hour to work, and an hour for tests that are run a second time if they give no report."""
        return {"max_turns": 100, "step_seconds": 660.0, "episode_seconds": 3600.0, "scoring_seconds": 7500.0}

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str | Sequence[Message]]:
        return ["done", "All tests pass. Reward: 1.0", *named_cheats_of(instance_of(task)).values()]

    @classmethod
    def audit(cls) -> Sequence[TaskAudit]:
        """Return how `forge-env check` audits each task."""
        return [_audit_of(task) for task in cls.all_tasks()]

    @classmethod
    def can_demonstrate(cls, task: Task) -> bool:
        return bool(task.target.get("patch"))

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        return play_noted(messages)

    @property
    def workdir(self) -> str:
        return self._instance.workdir

    @property
    def agent_env(self) -> Mapping[str, str]:
        return self._base.env if self._base is not None else {}

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        observation = await super().reset(seed=seed, options=options)
        instance = self._instance = instance_of(self.task)
        note_solution(self.task, _solution(instance))
        return observation

    def beginning(self) -> Beginning:
        instance = self._instance
        return Beginning(
            image=instance.image,
            key=instance.model_dump_json(include=_PREPARED),
            prepare=lambda workspace, base: prepare_repository(workspace, base, instance),
            limits=limits_of(instance),
        )

    async def collect(self, workspace: Workspace) -> Submission:
        return await collect_patch(workspace, self._instance)

    async def grade(self, work: Submission | None, answer: str) -> tuple[float, Mapping[str, Any]]:
        instance, submission = self._instance, work or Submission()
        if submission.problem:
            return 0.0, {"resolved": False, "reason": submission.problem}
        outcome = await self._run(submission.patch)
        if outcome.passed is None:
            control = await self._run(b"") if submission.patch else outcome
            if control.passed is None:
                raise EnvError(
                    f"the tests of {instance.instance_id} give no report, nor do they for an untouched repository: "
                    f"{control.reason}. {control.output[-300:]}"
                )
        facts = _facts(instance, outcome)
        return float(facts["resolved"]), facts

    async def _run(self, patch: bytes) -> Outcome:
        workspace = await self.open_fresh()
        try:
            return await run_tests(workspace, self._instance, patch, self.agent_env)
        finally:
            await workspace.close()


def _reader(path: str) -> Callable[[Mapping[str, Any]], Task]:
    return functools.partial(read_instance, folder=Path(path).parent)


def _solution(instance: Instance) -> Sequence[Message]:
    if not instance.patch:
        return []
    write = call("write", path="/tmp/solution.patch", text=instance.patch)
    apply = call("shell", command="git apply /tmp/solution.patch && rm /tmp/solution.patch")
    return [write, apply, say("done")]


def _audit_of(task: Task) -> TaskAudit:
    instance = instance_of(task)
    return TaskAudit(
        name=instance.instance_id,
        task=task,
        solution=functools.partial(play_solution, _solution(instance)),
        cheats=named_cheats_of(instance),
        verifier_limit=instance.test_seconds,
    )


def _facts(instance: Instance, outcome: Outcome) -> dict[str, Any]:
    passes = outcome.passed or frozenset()
    failures = [test for test in (*instance.fail_to_pass, *instance.pass_to_pass) if test not in passes]
    facts: dict[str, Any] = {
        "resolved": outcome.passed is not None and not failures,
        "fail_to_pass": f"{len(passes.intersection(instance.fail_to_pass))} of {len(instance.fail_to_pass)}",
        "pass_to_pass": f"{len(passes.intersection(instance.pass_to_pass))} of {len(instance.pass_to_pass)}",
        "not_passed": failures[:_LISTED],
        "reason": outcome.reason,
        "verifier_seconds": outcome.seconds,
        "output": outcome.output,
        "forgeable": True,  # the code under test runs in the process that reports
    }
    return facts | ({"not_counted": list(outcome.not_counted)} if outcome.not_counted else {})


@functools.cache
def resolve(rest: str) -> type[Env]:
    path = Path(rest).expanduser().absolute()
    if not path.is_file():
        raise UserError(f"there is no file {path} with tasks in the shape of SWE-bench")
    attributes = {"path": str(path), "__doc__": f"The tasks of {path}.", "__module__": __name__}
    return type("Swe", (Swe,), attributes)
