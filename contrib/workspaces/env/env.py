"""workspace: tasks from a file, each an instruction, an image with files, and a command that verifies.

    forge-env eval --env workspace --option data=tasks.jsonl --option image=host:pytest --agent ...

The rows are described in `contrib.workspaces.env.rows`. Image, files and set-up of a task are prepared once in a
process. When
the agent ends, its processes are killed and what it made is copied, without links and special files, into a fresh
workspace of the same beginning. The verifier's files and its command appear only there. Its exit code is the verdict,
so it is the verifier's business to keep submitted code in a process that cannot decide it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contrib.workspaces.contract import LOOPBACK, CommandResult, Network, NetworkMode, WorkspaceLimits
from contrib.workspaces.env.cheats import workspace_cheats
from contrib.workspaces.env.obstacles import may_be_work, obstacle
from contrib.workspaces.env.output import shorten
from contrib.workspaces.env.prepared_env import Beginning, PreparedEnv
from contrib.workspaces.env.rows import Row, read_row, row_of
from contrib.workspaces.env.solutions import note_solution, play_noted
from contrib.workspaces.env.submission import Copies, Wanted, copy_in, copy_out, put_texts, run_program
from contrib.workspaces.machines.workspace import Workspace
from envs.data_tasks import data_tasks
from envs.messages import call, say
from forge_env.core.errors import EnvError, UserError
from forge_env.core.sandbox import ExecStatus
from forge_env.core.types import Message, Task

_MB = 2**20
_SETUP_SECONDS = 600.0
_SHOWN = 2000


class WorkspaceTasks(PreparedEnv):
    """Instructions to follow in a workspace. Reward 1 when the task's verifier ends with exit code 0."""

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0, data: str = "") -> Sequence[Task]:
        """Return tasks of a file.

        Args:
            split: "train" or "test" by content, or "all"; with {split} in `data` it is a file for each.
            count: how many.
            seed: which ones, and in which order.
            data: the file; its rows are described in `contrib.workspaces.env.rows`.
        """
        if not data:
            raise UserError("the environment workspace needs a file of tasks: --option data=tasks.jsonl")
        return data_tasks(data, split, count=count, seed=seed, make=read_row)

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """Commands and verifiers may take ten minutes; a verifier may run twice."""
        return {"max_turns": 50, "step_seconds": 660.0, "episode_seconds": 3600.0, "scoring_seconds": 1260.0}

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str | Sequence[Message]]:
        """Return claims, and scripts that replace what verifiers run with: they must earn nothing."""
        return ["done", "All tests pass. Reward: 1.0", *workspace_cheats()]

    @classmethod
    def can_demonstrate(cls, task: Task) -> bool:
        return bool(task.target.get("solution"))

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        return play_noted(messages)

    @property
    def workdir(self) -> str:
        return self._row.workdir

    @property
    def agent_env(self) -> Mapping[str, str]:
        return self._row.env

    @property
    def agent_user(self) -> str | None:
        return self._row.user or None

    @property
    def agent_network(self) -> Network:
        hosts = tuple(self._row.allowed_hosts)
        return Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=hosts) if hosts else LOOPBACK

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        observation = await super().reset(seed=seed, options=options)
        row = self._row = row_of(self.task)
        solution = [call("shell", command=row.solution, timeout=_SETUP_SECONDS), say("done")] if row.solution else []
        note_solution(self.task, solution)
        return observation

    def beginning(self) -> Beginning:
        row = self._row
        return Beginning(
            image=row.image,
            key=json.dumps(row.model_dump(include=_PREPARED), sort_keys=True),
            prepare=lambda workspace, _: _prepare(workspace, row),
            limits=WorkspaceLimits(memory_bytes=row.memory_mb * _MB, disk_bytes=row.disk_mb * _MB, cpus=row.cpus),
        )

    async def collect(self, workspace: Workspace) -> Copies:
        row = self._row
        places = [Wanted(path=path, exclude=row.exclude) for path in row.places]
        return await copy_out(workspace, places, skip=True)

    async def grade(self, work: Copies | None, answer: str) -> tuple[float, Mapping[str, Any]]:
        copies = work or Copies()
        try:
            if copies.problem:
                return 0.0, {"passed": False, "reason": copies.problem}
            result = await self._verify(copies, answer)
            if self._obstacle(result) and (reason := self._obstacle(await self._verify(Copies(), ""))):
                raise EnvError(f"the verifier of the task {self._row.title} cannot run, whatever was done: {reason}")
        finally:
            await copies.close()
        reason = "" if result.ok else f"the verifier ended with exit code {result.exit_code}"
        if result.status not in (ExecStatus.OK, ExecStatus.NONZERO):
            reason = f"the verifier was ended: {result.status.value.replace('_', ' ')}"
        facts: dict[str, Any] = {
            "passed": result.ok,
            "reason": reason,
            "output": shorten((result.stdout + result.stderr).strip(), _SHOWN),
        }
        return float(result.ok), facts | ({"left_out": list(copies.left_out[:20])} if copies.left_out else {})

    def _obstacle(self, result: CommandResult) -> str:
        row = self._row
        return obstacle(result, may_be_work(row.instruction, row.counts, path=row.env.get("PATH", "")))

    async def _verify(self, copies: Copies, answer: str) -> CommandResult:
        """Run the verifier on what an agent has made; without copies in an untouched workspace."""
        row, data = self._row, answer.encode("utf-8", "replace")
        workspace = await self.open_fresh()
        try:
            for path, copy in copies.by_path.items():
                if copy.is_dir():  # what the agent has deleted is gone
                    await run_program(workspace, ["find", path, "-xdev", "-type", "f", "-delete"])
            await copy_in(workspace, copies)
            await put_texts(workspace, {row.place(path): text for path, text in row.verifier_files.items()})
            return await workspace.exec(
                row.verifier, user="0", env=row.env, cwd=row.workdir, timeout_s=row.verifier_seconds, stdin=data
            )
        finally:
            await workspace.close()


_PREPARED = {"workdir", "files", "setup", "env", "user", "memory_mb", "disk_mb", "cpus"}


async def _prepare(workspace: Workspace, row: Row) -> None:
    """Put the files into a workspace that agent and verifier of a task begin with."""
    owner = row.user or None
    await run_program(workspace, ["mkdir", "-p", "--", row.workdir])
    if owner:
        await run_program(workspace, ["chown", owner, "--", row.workdir])
    await put_texts(workspace, {row.place(path): text for path, text in row.files.items()}, user=owner)
    if row.setup:
        result = await workspace.exec(row.setup, user="0", env=row.env, cwd=row.workdir, timeout_s=_SETUP_SECONDS)
        if not result.ok:
            output = shorten((result.stderr or result.stdout).strip(), 300)
            raise UserError(f"the set-up of the task {row.title} fails: {output}")
