"""One command in a workspace: its inputs, its capped outputs, its time limit, and its end as the kernel reports it."""

from __future__ import annotations

import asyncio
import errno
import functools
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from contrib.workspaces.contract import CommandResult, WorkspaceLimits
from contrib.workspaces.machines.box import GRACE_S, Answer, Box
from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import ExecStatus
from forge_env.core.sandbox import Limits as GroupLimits
from sandboxes.host.cgroup_slots import GroupUsage, SlotGroup
from sandboxes.host.streams import CappedPipe, sealed_file

OnOutput = Callable[[str, bytes], None]

FLOOD_FACTOR = 64
_MOST_ARGUMENT = 2**17 - 1
"""Bytes of one argument or one variable of a program: MAX_ARG_STRLEN of the kernel, without the zero at its end."""
SCRIPT = "/proc/self/fd/3"
_AS_SCRIPT = b"exec 3<&-; "
"""Before a script: the shell has opened it anew by its name, and its programs are not to read it."""
_EXTRA_PROCESSES = 1  # pid 1


def script_of(command: str) -> bytes:
    """Return a command line that is too long for an argument, as a script; b"" for any other."""
    if len(command) <= _MOST_ARGUMENT // 4 or "\0" in command:  # a character has four bytes at most
        return b""
    try:
        return os.fsencode(command)
    except UnicodeEncodeError:  # as an argument it is refused
        return b""


def why_no_environment(environment: Mapping[str, str]) -> str:
    """Return why no program can have these variables, in a sentence; "" if one can."""
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            return f"the environment variable {name!r} has a name or value that no process can have"
        if (size := len(f"{name}={value}".encode("utf-8", "replace"))) > _MOST_ARGUMENT:
            most = f"a variable of a program has {_MOST_ARGUMENT:,} at most"
            return f"the environment variable {name!r} has {size:,} bytes, and {most}: put its value into a file"
    return ""


class Watched:
    """The control group of a workspace, whose counters say why a command failed. None: there is no group."""

    def __init__(self, group: SlotGroup | None, limits: WorkspaceLimits) -> None:
        self._group = group
        # What is written is in memory, so the group holds both.
        memory = limits.memory_bytes + limits.disk_bytes
        self._limits = GroupLimits(memory_bytes=memory, processes=limits.processes)
        self._begin()
        if group is not None:
            group.allow_cpus(limits.cpus)

    def usage(self) -> GroupUsage:
        """Return what has happened since the last call."""
        if self._group is None:
            return GroupUsage()
        try:
            usage = self._group.end()
            self._begin()
        except OSError as error:
            raise SandboxError(f"the control group of a workspace could not be read: {error}") from error
        return usage

    def _begin(self) -> None:
        if self._group is not None:
            self._group.begin(self._limits, extra_processes=_EXTRA_PROCESSES)


class Outputs:
    """The two streams of a command or a shell. Use as a context, or `close()` it.

    Args:
        on_flood: called when one has carried far more than is kept.
        on_output: called with the name of a stream and every chunk of it. With it there is no flood: what is written is
            for whoever takes it.
    """

    def __init__(self, limits: WorkspaceLimits, on_flood: Any, on_output: OnOutput | None = None) -> None:
        cap = limits.output_bytes

        def pipe(name: str) -> CappedPipe:
            if on_output is None:
                return CappedPipe(cap, FLOOD_FACTOR * cap, on_flood)
            return CappedPipe(cap, math.inf, on_flood, functools.partial(on_output, name))

        self.stdout = pipe("stdout")
        try:
            self.stderr = pipe("stderr")
        except BaseException:
            self.stdout.close()
            raise

    @property
    def is_flooded(self) -> bool:
        return self.stdout.is_flooded or self.stderr.is_flooded

    def close_write_ends(self) -> None:
        self.stdout.close_write_end()
        self.stderr.close_write_end()

    def close(self) -> None:
        self.stdout.close()
        self.stderr.close()

    def fields(self) -> dict[str, Any]:
        return {
            "stdout": self.stdout.text(),
            "stderr": self.stderr.text(),
            "truncated_stdout": self.stdout.truncated,
            "truncated_stderr": self.stderr.truncated,
            "stdout_bytes": self.stdout.total,
            "stderr_bytes": self.stderr.total,
        }


async def run_command(
    box: Box,
    request: dict[str, Any],
    stdin: bytes | int,
    timeout_s: float,
    limits: WorkspaceLimits,
    counters: Watched,
    on_output: OnOutput | None = None,
    script: bytes = b"",
) -> CommandResult:
    """Run a command to its end; a script is its file `SCRIPT`.

    Raises UserError if the workspace refuses it, and SandboxError if it fails.
    """
    number, timed_out = 0, False

    def kill() -> None:
        box.kill(number)

    def time_out() -> None:
        nonlocal timed_out
        timed_out = True
        kill()

    begin = time.monotonic()
    with ExitStack() as cleanup:
        outputs = Outputs(limits, kill, on_output)
        cleanup.callback(outputs.close)
        if isinstance(stdin, int):
            source = os.dup(stdin)
        else:
            source = sealed_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        fds = [source, outputs.stdout.write_fd, outputs.stderr.write_fd]
        with ExitStack() as files:
            files.callback(os.close, source)
            if script:
                fds.append(sealed_file(_AS_SCRIPT + script))
                files.callback(os.close, fds[-1])
            number, future = box.start(request, fds)
        outputs.close_write_ends()
        answer = await answer_of(box, number, future, timeout_s, time_out)
    wall_s = time.monotonic() - begin
    return result_of(answer, outputs, counters, timed_out=timed_out, wall_s=wall_s, failure=box.failure)


async def answer_of(
    box: Box, number: int, future: asyncio.Future[Answer | None], timeout_s: float, time_out: Callable[[], None]
) -> Answer | None:
    """Wait for the end, at the latest a while after `time_out` was called. A cancellation kills the command."""
    deadline = asyncio.get_running_loop().call_later(timeout_s, time_out)
    try:
        return await box.answer_within(future, timeout_s + GRACE_S)
    except asyncio.CancelledError:
        box.kill(number)
        await box.answer_within(future, GRACE_S)
        raise
    finally:
        deadline.cancel()


def result_of(
    answer: Answer | None,
    outputs: Outputs,
    counters: Watched,
    *,
    timed_out: bool,
    wall_s: float,
    state_lost: bool = False,
    failure: str = "",
) -> CommandResult:
    """Return the result of a command that has ended; `answer` is None if its workspace ended first.

    Args: failure: what broke in the sandbox, which says nothing about the command.
    """
    fields = outputs.fields() | {"wall_s": wall_s, "state_lost": state_lost or answer is None}
    if answer is None and failure:
        raise SandboxError(f"the workspace ended while a command ran in it: {failure}")
    if answer is None:
        return _workspace_ended(fields, counters, timed_out=timed_out)
    if answer.is_refused:
        raise UserError(f"a command cannot be run: {answer.reason}")
    if answer.start_errno and answer.start_errno != errno.EAGAIN and not counters.usage().memory_exceeded:
        raise SandboxError(no_room(answer))
    if answer.start_errno:
        status = ExecStatus.PIDS if answer.start_errno == errno.EAGAIN else ExecStatus.MEMORY
        return CommandResult(status=status, **fields)
    code = os.waitstatus_to_exitcode(answer.status)
    usage = counters.usage() if code else GroupUsage()
    if usage.host_out_of_memory:
        raise SandboxError("the machine ran out of memory although the workspace was within its limit")
    fields |= {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None, "cpu_s": answer.cpu_s}
    fields["started"] = answer.has_started
    return CommandResult(status=_status_of(code, usage, outputs, timed_out=timed_out), **fields)


def no_room(answer: Answer) -> str:
    """Return why the machine, and not a limit of the workspace, kept pid 1 from starting a process."""
    return f"the machine has no room for another process of the workspace: {os.strerror(answer.start_errno)}"


def _status_of(code: int, usage: GroupUsage, outputs: Outputs, *, timed_out: bool) -> ExecStatus:
    """Args: code: exit code, or minus the signal."""
    if outputs.is_flooded:
        return ExecStatus.OUTPUT_LIMIT
    if timed_out:
        return ExecStatus.TIMEOUT
    if not code:
        return ExecStatus.OK
    if usage.memory_exceeded:
        return ExecStatus.MEMORY
    if usage.processes_exceeded:
        return ExecStatus.PIDS
    return ExecStatus.SIGNALED if code < 0 else ExecStatus.NONZERO


def _workspace_ended(fields: dict[str, Any], counters: Watched, *, timed_out: bool) -> CommandResult:
    if counters.usage().memory_exceeded:
        return CommandResult(status=ExecStatus.MEMORY, signal=signal.SIGKILL, **fields)
    if timed_out:
        return CommandResult(status=ExecStatus.TIMEOUT, **fields)
    raise SandboxError("the workspace ended while a command ran in it")
