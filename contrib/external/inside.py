"""A program in a workspace: the gateway is all that it reaches, and the verifier of its task sees what it leaves.

The gateway serves a listener in the network of the workspace, at the port that it has outside. There is no other way
out, unless the task itself allows hosts. When the program has ended, so have all of its processes, before anything is
read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from contrib.common.json_text import decoded
from contrib.external.mcp_config import MCP, mcp_files
from contrib.external.output import ProgramOutput
from contrib.external.program import RESULT
from contrib.external.rooms import FILES, Rooms
from contrib.external.scoring import MAX_RESULT, Result, read_result
from contrib.external.session import ProgramSession
from contrib.external.setup import ProgramSetup
from contrib.external.start_program import TASK, describe, prompt_of, variables_of
from contrib.workspaces.contract import CommandResult, Network, WorkspaceFileError
from contrib.workspaces.env.base import WorkspaceEnv
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import EnvError, SandboxError, UserError
from forge_env.core.sandbox import ExecStatus
from forge_env.core.types import Action, EpisodeLimits, Message, Task
from forge_env.utils.deadlines import queued

_FOLDER = PurePosixPath("/tmp/forge_env_program")
_NOT_PROXIED = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")  # and nothing of this machine's own
_SECONDS = 30 * 86_400.0  # the limits of the episode end a program
_CLOSE_SECONDS = 30.0
_NOT_EXITED = {
    ExecStatus.MEMORY: "was killed: it used more memory than the workspace has",
    ExecStatus.PIDS: "was killed: it started more processes than the workspace allows",
}


@dataclass(slots=True, kw_only=True)
class Room:
    """The workspace of one episode, and the environment that it belongs to, if any."""

    workspace: Workspace
    env: WorkspaceEnv | None = None

    @property
    def surroundings(self) -> dict[str, Any]:
        """User, variables and folder of the program."""
        env = self.env
        if env is None:
            return {"user": self.workspace.image.user or None, "env": {}, "cwd": None}
        return {"user": env.agent_user, "env": dict(env.agent_env), "cwd": env.workdir}

    async def close(self) -> None:
        await (self.env.close() if self.env is not None else self.workspace.close())


class InsideProgram(ProgramOutput):
    """A running program. From `start_inside`.

    Args:
        room: where it runs; `close` closes it.
        listener: at the gateway's port, in the network of the workspace.
    """

    def __init__(self, room: Room, listener: socket.socket, command: Sequence[str], prompt: str, env: Any) -> None:
        super().__init__()
        self.room = room
        self.listener: socket.socket | None = listener
        self._ending = ""
        self._file: str | None = None
        self._problem = ""
        self._running = asyncio.create_task(self._run(command, prompt, env))

    async def wait_for_end(self) -> int:
        """Wait for its end; return the exit code, 128 and more for a signal."""
        return await asyncio.shield(self._running)

    def ending(self, code: int) -> str:
        return self._ending or super().ending(code)

    def result(self, last_words: str) -> Result:
        """See `read_result`."""
        if self._problem:
            raise EnvError(self._problem)
        return read_result(self._file, self.tail("stdout"), last_words)

    async def close(self) -> None:
        """End it with all its processes, and close its workspace. May be called again."""
        try:
            if not self._running.done():
                with contextlib.suppress(SandboxError):
                    await self.room.workspace.end_processes()
                await asyncio.wait([self._running], timeout=_CLOSE_SECONDS)
        finally:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await self.room.close()

    async def _run(self, command: Sequence[str], prompt: str, env: dict[str, str]) -> int:
        workspace, surroundings = self.room.workspace, self.room.surroundings
        surroundings["env"] |= env
        try:
            result = await workspace.exec(
                command,
                stdin=prompt.encode("utf-8", "replace"),
                timeout_s=_SECONDS,
                on_output=self.note,
                **surroundings,
            )
        except UserError as error:
            raise EnvError(f"the program cannot be started: {error}") from error
        if not result.started:
            raise EnvError(f"the program cannot be started: {result.stderr.strip()[:300]}")
        if not result.state_lost:
            await workspace.end_processes()
            await self._read_result(workspace)
        self._ending = _NOT_EXITED.get(result.status, "")
        self.exit_code = _code(result)
        return self.exit_code

    async def _read_result(self, workspace: Workspace) -> None:
        place = str(_FOLDER / RESULT)
        if not (await workspace.exec(["test", "-e", place], user="0", cwd="/")).ok:
            return
        try:
            self._file = decoded(await workspace.get(place, max_bytes=MAX_RESULT))
        except WorkspaceFileError as error:
            self._problem = f"the result file of the program cannot be read: {error}"


def _code(result: CommandResult) -> int:
    if result.exit_code is not None:
        return result.exit_code
    return 128 + (result.signal or 9)


async def start_inside(
    setup: ProgramSetup, session: ProgramSession, task: Task, seed: int, limits: EpisodeLimits
) -> InsideProgram:
    """Open the workspace of an episode, and start its program there."""
    assert setup.rooms is not None
    async with queued():  # preparing a workspace does not count as the program's time
        room = await _open_room(setup.rooms, setup.gateway.port, task, seed, limits)
        try:
            if setup.rooms.files is not None:
                await room.workspace.put_tree(setup.rooms.files, FILES, user=room.surroundings["user"])
            return await start_in_room(setup, session, room, task, task.prompt, seed)
        except BaseException as error:
            await room.close()
            if isinstance(error, WorkspaceFileError):
                raise EnvError(f"the program's files cannot be put into its workspace: {error}") from error
            raise


async def start_in_room(
    setup: ProgramSetup, session: ProgramSession, room: Room, task: Task, messages: Sequence[Message], seed: int
) -> InsideProgram:
    """Start the program in a workspace, with the last message of the user as its prompt."""
    workspace, user = room.workspace, room.surroundings["user"]
    await workspace.exec(["rm", "-rf", str(_FOLDER)], user="0", cwd="/")
    await workspace.exec(["mkdir", "-p", "-m", "700", str(_FOLDER)], user="0", cwd="/")
    if user not in (None, "", "0", 0, "root"):
        await workspace.exec(["chown", str(user), str(_FOLDER)], user="0", cwd="/")
    # Metadata of tasks with workspaces may have what their agents are not to see.
    description = describe(task, {} if room.env is not None else task.metadata, seed)
    await workspace.put(str(_FOLDER / TASK), description.encode("utf-8", "replace"), user=user)
    variables = variables_of(setup, session, _FOLDER, seed) | _NOT_PROXIED
    if room.env is not None and (servers := room.env.mcp_servers):
        variables["FORGE_ENV_MCP"] = str(_FOLDER / MCP)
        for name, text in mcp_files(servers).items():
            await workspace.put(str(_FOLDER / name), text.encode("utf-8", "replace"), user=user)
    prompt = prompt_of(messages)
    listener = workspace.listener(setup.gateway.port).dup()  # the gateway closes it when the session ends
    listener.setblocking(False)
    return InsideProgram(
        room, listener, [word.replace("{prompt}", prompt) for word in setup.command], prompt, variables
    )


async def _open_room(rooms: Rooms, port: int, task: Task, seed: int, limits: EpisodeLimits) -> Room:
    if rooms.factory is None:
        assert rooms.workspaces is not None and rooms.image is not None
        return Room(workspace=await rooms.workspaces.open(rooms.image, network=Network(listeners=(port,))))
    env = await rooms.factory.construct(seconds=limits.step_seconds)
    assert isinstance(env, WorkspaceEnv)
    try:
        env.listeners = (port,)
        await env.reset(seed=seed, options={"task": task, "limits": limits})
        return Room(workspace=await env.open(), env=env)
    except BaseException:
        await env.close()
        raise


async def score_inside(room: Room, answer: str) -> tuple[float, dict[str, float], dict[str, Any], Sequence[Message]]:
    """Let the environment of the task take a final answer.

    Returns:
        The reward, its breakdown, facts of the verdict, and the messages of the task's next step; none at its end.
    """
    assert room.env is not None
    messages, reward, terminated, _, info = await room.env.step(
        Action(message={"role": "assistant", "content": answer})
    )
    facts = {"verdict": info["verdict"]} if "verdict" in info else {}
    return reward, dict(info.get("rewards", {})), facts, () if terminated else messages
