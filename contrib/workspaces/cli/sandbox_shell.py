"""`forge-env sandbox shell IMAGE`: a workspace that is opened by hand."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from contrib.common.sizes import size_in_bytes
from contrib.workspaces.contract import LOOPBACK, CommandResult, Network, NetworkMode, WorkspaceLimits
from contrib.workspaces.machines.shell import Shell
from contrib.workspaces.machines.workspace import Workspace
from forge_env.cli.output import note
from forge_env.core.errors import UserError
from forge_env.core.sandbox import ExecStatus
from forge_env.utils.targets import load

if TYPE_CHECKING:
    _Backend = str
else:
    _Backend = Literal[("auto", *load("sandboxes.settings:WORKSPACE_BACKENDS"))]
_ENDED = (ExecStatus.OK, ExecStatus.NONZERO)


def shell(
    image: Annotated[str, typer.Argument(help="host, host:PACKAGES, a path, or the name of an image that was pulled.")],
    backend: Annotated[_Backend, typer.Option(help="What the workspace runs in.")] = "auto",
    user: Annotated[str, typer.Option(help="User of the commands; the image's by default.")] = "",
    allow: Annotated[list[str] | None, typer.Option(help="Host that it may reach by HTTP(S). May be repeated.")] = None,
    memory: Annotated[str, typer.Option(help="Memory limit, for example 512M.")] = "2G",
    disk: Annotated[str, typer.Option(help="Limit of what is written, for example 1G.")] = "1G",
    timeout: Annotated[float, typer.Option(help="Seconds that one command may take.")] = 600.0,
) -> int:
    """Open a workspace from an image, with the shell that an agent has: commands in, output as it comes.

    A command gets no standard input and no terminal. Ctrl-C ends the command, `exit` or Ctrl-D the workspace. Piped
    input runs as one script. The exit code is the last command's.
    """
    if timeout <= 0:
        raise UserError(f"--timeout is {timeout:g}; it must be above 0")
    limits = WorkspaceLimits(
        memory_bytes=size_in_bytes(memory, "--memory"), disk_bytes=size_in_bytes(disk, "--disk"), wall_s=timeout
    )
    network = Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=tuple(allow)) if allow else LOOPBACK
    image_folder = load("contrib.workspaces.images.resolve:find_image")(image)
    open_workspace = load("contrib.workspaces.open:open_workspace")
    # The loop runs during commands only: between them the main thread waits for a line, and Ctrl-C is its own.
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        workspace = runner.run(
            stack.enter_async_context(open_workspace(image_folder, backend, limits=limits, network=network))
        )
        try:
            return _converse(runner, workspace, user or None)
        finally:
            runner.run(stack.aclose())


def _converse(runner: asyncio.Runner, workspace: Workspace, user: str | None) -> int:
    """Run what is typed until the shell ends; returns the last exit code."""
    shell = runner.run(_open(workspace, user))
    if not sys.stdin.isatty():
        return _code(runner.run(shell.run(sys.stdin.read())))
    import readline  # noqa: F401  (lines can be edited and fetched again)

    code = 0
    while True:
        try:
            line = input("workspace$ ")
        except EOFError:
            sys.stdout.write("\n")
            return code
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            continue
        try:
            result = runner.run(shell.run(line))
        except KeyboardInterrupt:
            note("the command was ended; a new shell begins, without the variables of the old one")
            shell, code = runner.run(_open(workspace, user)), 130
            continue
        code = _code(result)
        if result.state_lost and result.status in _ENDED:
            return code
        if result.state_lost:
            shell = runner.run(_open(workspace, user))


async def _open(workspace: Workspace, user: str | None) -> Shell:
    return await workspace.open_shell(user=user, on_output=_show)


def _show(stream: str, data: bytes) -> None:
    file = sys.stdout if stream == "stdout" else sys.stderr
    file.buffer.write(data)
    file.flush()


def _code(result: CommandResult) -> int:
    if result.status not in _ENDED:
        note(f"the command was ended: {result.status.value.replace('_', ' ')}")
    return (128 + (result.signal or 9)) if result.exit_code is None else result.exit_code
