"""WorkspaceEnv: the tools of a workspace, and a verdict that is taken where the agent never was."""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

from contrib.common.task_audit import KnownCheat
from contrib.workspaces.contract import LOOPBACK, Network, UnpackedImage, WorkspaceFileError, WorkspaceLimits
from contrib.workspaces.env.cheats import KNOWN
from contrib.workspaces.env.obstacles import task_faults
from contrib.workspaces.env.output import READ_LINES, describe, matches, number_lines, replace_once
from contrib.workspaces.images.cache import in_thread
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.shell import Shell
from contrib.workspaces.machines.snapshot import Snapshot
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.env import StepResult
from forge_env.core.tools import reward, tool
from forge_env.core.types import Action
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.deadlines import queued

MAX_FILE_BYTES = 2**20
"""Largest file that the tools read or write."""
_SEARCH_RESULTS = 100
_SEARCH_SECONDS = 30.0
_MAX_COMMAND_SECONDS = 600.0


class WorkspaceEnv(ToolEnv):
    """A model with a shell and files. Subclasses say which image, which files, and what the work is worth.

    The workspace is opened at the first call of a tool. The verdict is taken when the agent has ended: its processes
    are killed, `collect` reads what it made, the workspace is closed, and `grade` runs in a fresh one (`open_fresh`).
    What the agent has left running, replaced or installed is not there.
    """

    shared: ClassVar = {"workspaces": "contrib.workspaces.open:open_workspaces"}
    time_spent_by = "model"
    known_cheats: ClassVar[Sequence[KnownCheat]] = KNOWN
    workspace_limits: ClassVar[WorkspaceLimits] = WorkspaceLimits()
    network: ClassVar[Network] = LOOPBACK
    command_seconds: ClassVar[float] = 60.0
    """Time limit of one command of the shell, unless the model asks for another."""
    seconds_left: float = math.inf
    """Time that the agent has left, where the task limits it: no command takes longer."""

    workspaces: Workspaces
    listeners: tuple[int, ...] = ()
    """Ports of the agent's workspace that whoever plays the episode serves, see `Network.listeners`."""
    _workspace: Workspace | None = None
    _shell: Shell | None = None
    _verdict: Mapping[str, Any] | None = None

    # What a subclass defines.

    def image(self) -> UnpackedImage | Snapshot:
        """Return the image of the agent's workspace; may block, it runs in a thread."""
        raise NotImplementedError(f"{type(self).__name__} has no image: define image()")

    async def prepare(self, workspace: Workspace) -> None:
        """Put the files of the task into a new workspace of the agent."""

    async def collect(self, workspace: Workspace) -> Any:
        """Read what the agent made, for `grade`; its processes have ended. Nothing else of the workspace is kept."""

    async def grade(self, copies: Any, answer: str) -> tuple[float, Mapping[str, Any]]:
        """The reward of the collected files, and facts for `Episode.info`.

        Open a fresh workspace with `open_fresh`. `copies` is None if the agent opened no workspace.
        """
        raise NotImplementedError(f"{type(self).__name__} has no grade()")

    @property
    def agent_user(self) -> str | int | None:
        """The user of the agent's commands and files; None is the image's."""
        return None

    @property
    def agent_env(self) -> Mapping[str, str]:
        return {}

    @property
    def agent_network(self) -> Network:
        return self.network

    @property
    def mcp_servers(self) -> Mapping[str, Mapping[str, Any]]:
        """The MCP servers of the task by name, for a program in the agent's workspace, which connects to them itself.

        Each has a "command" with "args", or the "type" http or sse with a "url" and "headers".
        """
        return {}

    @property
    def workdir(self) -> str:
        """Where the shell begins, and what relative paths are relative to."""
        return "/"

    # What the model calls.

    @tool(timeout=_MAX_COMMAND_SECONDS + 30.0, max_output=20_000)
    async def shell(self, command: str, timeout: float = 0.0) -> str:
        """Run a command in a shell that keeps its folder and variables.

        Args:
            command: one or more lines.
            timeout: seconds; 0 is the default.
        """
        if not 0 <= timeout <= _MAX_COMMAND_SECONDS:
            raise ValueError(f"timeout is {timeout:g}; it is at most {_MAX_COMMAND_SECONDS:g} seconds")
        workspace = await self.open()
        if self._shell is None:
            self._shell = await workspace.open_shell(user=self.agent_user, env=self.agent_env, cwd=self.workdir)
        seconds = min(timeout or self.command_seconds, max(self.seconds_left, 0.1))
        return describe(await self._shell.run(command, timeout_s=seconds), seconds)

    @tool(max_output=20_000)
    async def read(self, path: str, start: int = 1, lines: int = READ_LINES) -> str:
        """Read lines of a text file, with their numbers.

        Args:
            path: absolute or relative.
            start: number of the first line.
            lines: how many.
        """
        text = await self._text(path)
        return number_lines(text, path, start, max(lines, 1))

    @tool
    async def write(self, path: str, text: str) -> str:
        """Write a text file."""
        data = text.encode("utf-8", "replace")
        await self._put(path, data)
        return f"[{path} has {len(data)} bytes now]"

    @tool
    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace a passage of a file that occurs exactly once.

        Args:
            path: absolute or relative.
            old: the passage as it stands, with its white space.
            new: what takes its place.
        """
        text = replace_once(await self._text(path), old, new, path)
        await self._put(path, text.encode("utf-8", "replace"))
        return "[replaced]"

    @tool(timeout=_SEARCH_SECONDS + 30.0, max_output=20_000)
    async def search(self, pattern: str, path: str = ".") -> str:
        """Search files for a pattern, an extended regular expression.

        Args:
            pattern: of grep -E.
            path: a file or folder.
        """
        workspace = await self.open()
        command = f"grep -rnIE -e {shlex.quote(pattern)} -- {shlex.quote(path)} | head -n {_SEARCH_RESULTS + 1}"
        result = await workspace.exec(
            command, user=self.agent_user, cwd=self.workdir, timeout_s=_SEARCH_SECONDS, env=self.agent_env
        )
        if not result.stdout and not result.stderr:
            return "[no line matches]"
        return describe(replace(result, stdout=matches(result.stdout, _SEARCH_RESULTS)), _SEARCH_SECONDS)

    # How it runs.

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        await self.close()
        self._verdict = None
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Action) -> StepResult:
        """Take one action; after the final answer `info["verdict"]` has the facts of `grade`."""
        with task_faults():
            observation, total, terminated, truncated, info = await super().step(action)
        if terminated and self._verdict is not None:
            info["verdict"] = dict(self._verdict)
        return observation, total, terminated, truncated, info

    async def close(self) -> None:
        await self._close_workspace()

    async def _close_workspace(self) -> None:
        workspace, self._workspace, self._shell = self._workspace, None, None
        if workspace is not None:
            await workspace.close()

    async def open(self) -> Workspace:
        if self._workspace is None:
            network = replace(self.agent_network, listeners=self.listeners)
            workspace = await self.open_fresh(network=network)
            try:
                async with queued():
                    await self.prepare(workspace)
            except BaseException:
                await workspace.close()
                raise
            self._workspace = workspace
        return self._workspace

    async def open_fresh(
        self, image: UnpackedImage | Snapshot | None = None, *, network: Network | None = None
    ) -> Workspace:
        """Open a workspace with nothing of the agent's in it; close it in a `finally`."""
        async with queued():  # the start of a workspace does not count as the model's time
            image_files = await in_thread(self.image) if image is None else image
            return await self.workspaces.open(
                image_files, limits=self.workspace_limits, network=self.network if network is None else network
            )

    @reward
    async def verdict(self, answer: str) -> float:
        copies = None
        try:
            if self._workspace is not None:
                await self._workspace.end_processes()
                copies = await self.collect(self._workspace)
        except BaseException:
            await self._close_workspace()
            raise
        closing = asyncio.create_task(self._close_workspace())  # while the verifier works
        try:
            value, self._verdict = await self.grade(copies, answer)
        finally:
            await closing
        return value

    async def _text(self, path: str) -> str:
        workspace = await self.open()
        return (await workspace.get(self._absolute(path), max_bytes=MAX_FILE_BYTES)).decode("utf-8", "replace")

    async def _put(self, path: str, data: bytes) -> None:
        """Write a file; one that exists keeps its mode."""
        if len(data) > MAX_FILE_BYTES:
            raise WorkspaceFileError(f"the text has {len(data)} bytes; a file has at most {MAX_FILE_BYTES}")
        workspace, place = await self.open(), self._absolute(path)
        stat = await workspace.exec(["stat", "-c", "%a", "--", place], user="0")
        mode = int(stat.stdout, 8) & 0o777 if stat.ok and stat.stdout.strip().isdigit() else 0o644
        await workspace.put(place, data, mode=mode, user=self.agent_user)

    def _absolute(self, path: str) -> str:
        return str(PurePosixPath(self.workdir) / path)
