"""The program of one episode: a process with its own folder. Its output is kept up to a bound."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from contrib.common.guard import guarded
from contrib.common.programs import read_tail, stop
from contrib.external.confined import check_shown, confine, installation, listener_of
from contrib.external.output import TAIL_BYTES, ProgramOutput
from contrib.external.scoring import Result, read_result, text_of
from forge_env.core.errors import EnvError, SandboxUnavailable, UserError

RESULT = "result.json"
"""The file in its folder that the program writes its result to."""
STOP_SECONDS = 10.0
DRAIN_SECONDS = 1.0
"""How long its output is read after its end: the pipes stay open only if a process that it started still runs."""


def command_of(text: str, *, is_inside: bool = False) -> list[str]:
    """Split a command line.

    Args:
        is_inside: whether it runs in a workspace; programs are not looked up there.
    """
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise UserError(f"the command {text!r} is no command line: {error}") from None
    if not command:
        raise UserError("the command is empty: name the program that runs in every episode, as 'python my_agent.py'")
    is_in_cwd = os.sep in command[0] and not os.path.isabs(command[0])  # wherever that will be
    if not is_inside and shutil.which(command[0]) is None and not is_in_cwd:
        raise UserError(f"the command {text!r} cannot be started: there is no program {command[0]!r}")
    return command


class Program(ProgramOutput):
    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.listener: socket.socket | None = None
        """A listener in the network of its sandbox, for the gateway to serve."""
        self._process = process
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        self._reading = [
            asyncio.create_task(read_tail(stream, self._tails[name], TAIL_BYTES)) for name, stream in streams.items()
        ]

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        folder: Path,
        variables: Mapping[str, str],
        cwd: str,
        stdin: Path,
        sandbox_port: int | None = None,
    ) -> Program:
        """Start a command. All processes that it starts end with it, with `close`, and with this process.

        Args:
            folder: for its files; `close` removes it.
            variables: environment variables in addition to this process's.
            stdin: the file that it reads.
            sandbox_port: run it in a sandbox; the sandbox's network has one listener, at this port.
        """
        if sandbox_port is None:
            return await cls._start(command, folder, cwd, stdin, _environment(variables))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                descriptor, cwd = theirs.fileno(), cwd or os.getcwd()
                paths = shown_to(command, cwd)
                guarded_command = confine(
                    command, control=descriptor, paths=paths, folder=folder, cwd=cwd, port=sandbox_port
                )
                program = await cls._start(
                    guarded_command, folder, cwd, stdin, _sparse_environment(variables, folder), descriptor
                )
            try:
                program.listener = await listener_of(ours)
            except BaseException as error:
                await program.close()
                if isinstance(error, SandboxUnavailable):
                    raise EnvError(str(error)) from error
                raise
        return program

    @classmethod
    async def _start(
        cls,
        command: Sequence[str],
        folder: Path,
        cwd: str,
        stdin: Path,
        environment: Mapping[str, str],
        *descriptors: int,
    ) -> Program:
        with stdin.open("rb") as stdin_file:
            process = await asyncio.create_subprocess_exec(
                *guarded(command, folder=folder),
                stdin=stdin_file,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=cwd or None,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,
            )
        return cls(process, folder)

    async def wait_for_end(self) -> int:
        """Wait for its end; return the exit code, 128 and more for a signal."""
        await asyncio.gather(*(asyncio.shield(task) for task in self._reading))
        code = await self._process.wait()
        self.exit_code = code if code >= 0 else 128 - code
        return self.exit_code

    def result(self, last_words: str) -> Result:
        """See `read_result`."""
        file = self.folder / RESULT
        return read_result(text_of(file) if os.path.lexists(file) else None, self.tail("stdout"), last_words)

    async def close(self) -> None:
        """End it and all processes that it started, and remove its folder. May be called again."""
        try:
            await stop(self._process, STOP_SECONDS)  # the guard, which kills what does not end by itself
            await asyncio.wait(self._reading, timeout=DRAIN_SECONDS)
        finally:
            for reading in self._reading:
                reading.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)
            shutil.rmtree(self.folder, ignore_errors=True)


def shown_to(command: Sequence[str], cwd: str) -> list[str]:
    """The folders that a program in a sandbox can read, in addition to the system's."""
    cwd = cwd or os.getcwd()
    program = os.path.join(cwd, shutil.which(command[0]) or command[0])
    paths = [cwd, *installation(program)]
    check_shown(paths)
    return paths


def new_folder() -> Path:
    """A private folder for the files of one program."""
    return Path(tempfile.mkdtemp(prefix="forge_env_external_"))


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this process and of the program, without those that show our packages to its interpreter.

    Our packages are named agents and envs, like the packages of several agent frameworks.
    """
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {**own, **variables}


def _sparse_environment(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables of a program in a sandbox: none of this process that could be a secret, and no proxy."""
    prefixes = ("OPENAI_", "ANTHROPIC_", "FORGE_ENV_", "TMPDIR", "PYTHONUNBUFFERED")
    rest = {name: value for name, value in variables.items() if name.startswith(prefixes)}
    path, language = os.environ.get("PATH", os.defpath), os.environ.get("LANG", "C.UTF-8")
    return {"PATH": path, "LANG": language, "HOME": str(folder), **rest}
