"""A shell that stays: commands go to its standard input, and it reports the end of each through a pipe of its own."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from contrib.workspaces.contract import CommandResult, WorkspaceLimits
from contrib.workspaces.machines.box import GRACE_S, Answer, Box
from contrib.workspaces.machines.command import OnOutput, Outputs, Watched, result_of
from forge_env.core.errors import SandboxError
from forge_env.core.sandbox import ExecStatus
from sandboxes.host.streams import machine_faults

SHELLS = [["/bin/bash", "--noprofile", "--norc"], ["/bin/sh"]]
_REPORT_FD = 3
_MAX_REPORT = 4096
_LAST_WORD_S = 0.5
"""Seconds that a shell has to go on after everything below it was killed, before it is killed, too."""


class Shell:
    """A shell that keeps its working directory, variables, functions and background processes.

    Commands run one after another. A command gets no standard input. One that passes its time limit is killed with
    every process below the shell; the shell itself goes on, unless it is the shell that hangs. Created by
    `Workspace.open_shell`.

    Args:
        request: how to start the shell: user, environment, working directory.
        live_box: returns the workspace as it runs now, after a snapshot another one than before.
        on_output: called with the name of a stream and every chunk of it.
    """

    def __init__(
        self,
        request: dict[str, Any],
        limits: WorkspaceLimits,
        counters: Callable[[], Watched],
        live_box: Callable[[], Awaitable[Box]],
        on_output: OnOutput | None = None,
    ) -> None:
        self._request = request | {"argvs": SHELLS}
        self._limits, self._counters, self._live_box, self._on_output = limits, counters, live_box, on_output
        self._process: _Process | None = None
        self._has_started = self._is_closed = False
        self._one_at_a_time = asyncio.Lock()

    async def run(self, command: str, *, timeout_s: float | None = None) -> CommandResult:
        """Run a command line, or several lines. The command cannot make it raise.

        Raises:
            SandboxError: the workspace failed, or is closed.
        """
        async with self._one_at_a_time:
            if self._is_closed:
                raise SandboxError("the shell is closed")
            try:
                text = shlex.quote(command).encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as failure:  # as `exec` answers what no program can be given
                error = f"{SHELLS[-1][0]}: {failure}\n"
                size = len(error)
                return CommandResult(status=ExecStatus.NONZERO, exit_code=126, stderr=error, stderr_bytes=size)
            is_new = await self._ensure_started()
            assert self._process is not None
            result = await self._process.run(text, timeout_s or self._limits.wall_s, self._counters())
            return replace(result, state_lost=True, in_new_shell=True) if is_new else result

    async def close(self) -> None:
        """End the shell and the processes of its session. Idempotent."""
        self._is_closed = True
        if self._process is not None:
            await self._process.close()

    async def start(self) -> None:
        """Raises UserError if the workspace refuses to start it."""
        await self._ensure_started()
        assert self._process is not None
        result = await self._process.run(b":", self._limits.wall_s, self._counters())
        if not result.ok:
            raise SandboxError(f"a shell did not start: {result.stderr.strip() or result.status}")

    async def _ensure_started(self) -> bool:
        """Start the shell unless it runs; return whether an earlier one was lost."""
        if self._process is not None and self._process.alive:
            return False
        if self._process is not None:
            await self._process.close()
        box = await self._live_box()
        with machine_faults():
            self._process = _Process(box, self._request, self._limits, self._on_output)
        was_lost, self._has_started = self._has_started, True
        return was_lost


class _Process:
    def __init__(
        self, box: Box, request: dict[str, Any], limits: WorkspaceLimits, on_output: OnOutput | None = None
    ) -> None:
        self._box, self._loop = box, asyncio.get_running_loop()
        self._is_killed = False
        with ExitStack() as undo, ExitStack() as files:
            self._outputs = Outputs(limits, self._kill, on_output)
            undo.callback(self._outputs.close)
            self._stdin, guest_stdin = socket.socketpair()
            undo.callback(self._stdin.close)
            files.callback(guest_stdin.close)
            self._stdin.setblocking(False)
            self._report, guest_report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            undo.callback(os.close, self._report)
            files.callback(os.close, guest_report)
            os.set_blocking(guest_report, True)
            fds = [guest_stdin.fileno(), self._outputs.stdout.write_fd, self._outputs.stderr.write_fd, guest_report]
            self._number, self._answer = box.start(request, fds)
            undo.pop_all()
        self._outputs.close_write_ends()
        self._text = b""
        self._nonce = b""
        self._code: asyncio.Future[int | None] = self._loop.create_future()
        self._loop.add_reader(self._report, self._read_report)
        self._answer.add_done_callback(lambda _: self._on_end())

    @property
    def alive(self) -> bool:
        return self._box.alive and not self._is_killed and not self._answer.done()

    async def run(self, text: bytes, timeout_s: float, counters: Watched) -> CommandResult:
        begin, timed_out = time.monotonic(), False

        def time_out() -> None:
            nonlocal timed_out
            timed_out = True
            self._box.kill(self._number, only_below=True)
            self._loop.call_later(_LAST_WORD_S, self._kill_unless, code)

        self._outputs.stdout.restart()
        self._outputs.stderr.restart()
        self._nonce = os.urandom(8).hex().encode()
        self._code = code = self._loop.create_future()
        deadline = self._loop.call_later(timeout_s, time_out)
        try:
            await self._send(text)
            exit_code = await code
        except BaseException:
            self._kill()
            raise
        finally:
            deadline.cancel()
        self._outputs.stdout.pause()
        self._outputs.stderr.pause()
        wall_s = time.monotonic() - begin
        if exit_code is None:
            answer = await self._box.answer_within(self._answer, GRACE_S)
            failure, out = self._box.failure, self._outputs
            return result_of(
                answer, out, counters, timed_out=timed_out, wall_s=wall_s, state_lost=True, failure=failure
            )
        answer = Answer(status=exit_code << 8)
        result = result_of(answer, self._outputs, counters, timed_out=timed_out, wall_s=wall_s)
        return replace(result, exit_code=None) if result.status is ExecStatus.TIMEOUT else result

    async def close(self) -> None:
        self._kill()
        future = asyncio.shield(self._answer)
        try:
            async with asyncio.timeout(GRACE_S):
                await future
        except TimeoutError:
            await self._box.end()

    async def _send(self, text: bytes) -> None:
        """Send a command as one line of the shell: it has no standard input, and not the pipe of reports."""
        line = b"eval %b </dev/null %d>&-\n" % (text, _REPORT_FD)
        report = b'printf "%%s %%d\\n" %b "$?" >&%d\n' % (self._nonce, _REPORT_FD)
        try:
            await self._loop.sock_sendall(self._stdin, line + report)
        except OSError:
            pass  # it has just ended: `_on_end` answers

    def _kill(self) -> None:
        self._is_killed = True  # it takes a while to end, and must get no other command meanwhile
        self._box.kill(self._number)

    def _kill_unless(self, code: asyncio.Future[int | None]) -> None:
        if not code.done():
            self._kill()

    def _read_report(self) -> None:
        try:
            data = os.read(self._report, _MAX_REPORT)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._report)
            return
        *lines, self._text = (self._text + data).split(b"\n")
        self._text = self._text[-_MAX_REPORT:]
        for line in lines:
            nonce, _, code = line.partition(b" ")
            if nonce == self._nonce and code.isdigit() and not self._code.done():
                self._code.set_result(int(code) & 0xFF)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._report)
        os.close(self._report)
        self._stdin.close()
        self._outputs.close()
        if not self._code.done():
            self._code.set_result(None)
