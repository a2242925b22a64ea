"""A session of the namespace sandbox: one interpreter at a time. Its state lasts from cell to cell."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeVar

from forge_env.core.errors import SandboxError
from forge_env.core.sandbox import ExecResult, ExecStatus, SessionFileError
from forge_env.utils.deadlines import queued
from sandboxes.host.cgroup_slots import SlotGroup
from sandboxes.host.interpreter import Answer, Interpreter, Spec
from sandboxes.host.streams import machine_faults
from sandboxes.host.zygote import Driver, ExitReport

T = TypeVar("T")
SESSION_WAIT_S = 60.0
_MAX_PATH_BYTES = 1024
_REFUSALS = {
    errno.ENOENT: "there is no such file",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.EISDIR: "it is a folder",
    errno.ELOOP: "it is a symbolic link",
    errno.EINVAL: "it is not a regular file",
    errno.ENXIO: "it is not a regular file",
    errno.EFBIG: "it is larger than file_bytes",
    errno.ENOSPC: "the session's directory is full",
}


async def session_slot(take: Callable[[], Awaitable[T]], max_sessions: int) -> T:
    """Take the place of a session, which another one may have to leave first. Raises SandboxError."""
    try:
        async with asyncio.timeout(SESSION_WAIT_S), queued():
            return await take()
    except TimeoutError:
        raise SandboxError(
            f"{max_sessions} sessions are open and none was closed in {SESSION_WAIT_S:g} s; close sessions that are "
            "done, or open the sandbox with a larger max_sessions"
        ) from None


@dataclass(eq=False)
class NamespaceSession:
    """A `Session`. Created by `NamespaceSandbox.open_session`.

    Args:
        at_once: limits the cells and one-shot requests that run at once.
        free: called once, when the session is closed and every process of it is gone.
    """

    spec: Spec
    slot: int
    backend: str
    live_zygote: Callable[[], Awaitable[Driver]]
    group: SlotGroup | None
    at_once: asyncio.Semaphore
    """Limits the cells and one-shot requests that run at once."""
    free: Callable[[], None]
    """Called once, when the session is closed and every process of it is gone."""

    def __post_init__(self) -> None:
        self._one_request = asyncio.Lock()
        self._interpreter: Interpreter | None = None
        self._has_lost_state = False  # state was lost, and no result has reported it yet
        self._is_closed = False

    async def run(self, code: str, *, stdin: str = "") -> ExecResult:
        async with self._running():
            try:
                interpreter = await self._live()
            except SandboxError as error:
                self._require_open()
                failure = ExecResult(status=ExecStatus.SANDBOX_ERROR, backend=self.backend, error=str(error))
                return self._with_state_lost(failure)
            begin = time.monotonic()
            answer = await interpreter.run(code, stdin)
            result = _result(interpreter, answer, time.monotonic() - begin)
            return self._with_state_lost(replace(result, backend=self.backend))

    async def put(self, path: str, data: bytes) -> None:
        name = _inside(path)
        if len(data) > self.spec.limits.file_bytes:
            raise SessionFileError(f"{path!r} has {len(data)} bytes; file_bytes is {self.spec.limits.file_bytes}")
        async with self._running():
            interpreter = await self._live()
            _require_done(path, interpreter, await interpreter.put(name, data))

    async def get(self, path: str) -> bytes:
        name = _inside(path)
        async with self._running():
            interpreter = await self._live()
            answer, data = await interpreter.get(name)
            _require_done(path, interpreter, answer)
            return data

    async def reset(self) -> None:
        """Start a fresh interpreter. Raises SandboxError if the set-up raises or the session is closed."""
        async with self._running():
            await self._stop()
            await self._start()
            self._has_lost_state = False

    async def close(self) -> None:
        """End every process of the session. The kill is sent before the first wait. Idempotent."""
        interpreter = self._interpreter
        if not self._is_closed:
            self._is_closed = True
            if interpreter is None:
                self.free()
            else:
                interpreter.kill("the session was closed")
                interpreter.when_ended(self.free)
        if interpreter is not None:
            await interpreter.wait_for_end()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Wait for earlier requests of the session, and until the sandbox may run one more."""
        async with self._one_request:
            self._require_open()
            async with queued():
                await self.at_once.acquire()
            try:
                self._require_open()
                with machine_faults():
                    yield
            finally:
                self.at_once.release()

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError("the session is closed")

    async def _live(self) -> Interpreter:
        if self._interpreter is not None:
            if self._interpreter.idle():
                return self._interpreter
            self._has_lost_state = True  # it ended, or sent unrequested data, since the last result
            await self._stop()
        return await self._start()

    async def _stop(self) -> None:
        if self._interpreter is not None:
            self._interpreter.kill()
            await self._interpreter.wait_for_end()

    async def _start(self) -> Interpreter:
        """Start an interpreter; try again if the first try failed only because the zygote died."""
        zygote = await self.live_zygote()
        interpreter, failure = await self._try_to_start(zygote)
        if failure and not zygote.alive:
            interpreter, failure = await self._try_to_start(await self.live_zygote())
        if failure:
            raise SandboxError(failure)
        return interpreter

    async def _try_to_start(self, zygote: Driver) -> tuple[Interpreter, str]:
        self._require_open()
        try:
            self._interpreter = interpreter = Interpreter(zygote, self.slot, self.spec, self.group)
        except OSError as error:
            raise SandboxError(f"the {self.backend} sandbox could not start a session: {error}") from error
        return interpreter, await interpreter.ready()

    def _with_state_lost(self, result: ExecResult) -> ExecResult:
        is_over = self._interpreter is None or self._interpreter.end is not None
        state_lost, self._has_lost_state = self._has_lost_state or is_over, False
        if is_over:
            self._interpreter = None
        return replace(result, state_lost=state_lost)


def _inside(path: str) -> str:
    """Return the normalised path. Raises SessionFileError if it leads out of the directory."""
    parts = PurePosixPath(path).parts
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:  # half of a surrogate pair
        size = 0
    if not size or not parts or parts[0].startswith("/") or ".." in parts or "\0" in path:
        raise SessionFileError(f"{path!r} is no relative path inside the session's directory")
    if size > _MAX_PATH_BYTES:
        raise SessionFileError(f"a path may have {_MAX_PATH_BYTES} bytes; this one begins with {path[:40]!r}")
    return "/".join(parts)


def _require_done(path: str, interpreter: Interpreter, answer: Answer | None) -> None:
    if answer is None:
        failure = interpreter.end.failure if interpreter.end else ""
        if failure or interpreter.failure:
            raise SandboxError(interpreter.failure or failure)
        raise SessionFileError(f"{path!r}: the code in the session prevented an answer; its state is lost")
    if answer.code:
        raise SessionFileError(f"{path!r}: {_REFUSALS.get(answer.code) or os.strerror(answer.code)}")


def _result(interpreter: Interpreter, answer: Answer | None, wall_s: float) -> ExecResult:
    end = interpreter.end
    output = ExecResult(
        status=ExecStatus.OK,
        backend="",
        stdout=interpreter.stdout.text(),
        stderr=interpreter.stderr.text(),
        truncated_stdout=interpreter.stdout.truncated,
        truncated_stderr=interpreter.stderr.truncated,
        wall_s=wall_s,
    )
    if answer is not None:
        claims = {b"M": ExecStatus.MEMORY, b"P": ExecStatus.PIDS}
        status = claims.get(answer.exhausted, ExecStatus.NONZERO) if answer.code else ExecStatus.OK
        cpu_s, peak = answer.cpu_s, answer.peak_memory_bytes
        return replace(output, status=status, exit_code=answer.code, cpu_s=cpu_s, peak_memory_bytes=peak)
    assert end is not None, "an interpreter that does not answer has ended"
    return _end_result(output, interpreter, end)


def _end_result(output: ExecResult, interpreter: Interpreter, end: ExitReport) -> ExecResult:
    failure = interpreter.failure or end.failure
    if interpreter.group_usage.host_out_of_memory:
        failure = "the machine ran out of memory although the session was within its limit"
    if failure:
        return replace(output, status=ExecStatus.SANDBOX_ERROR, error=failure)
    exit_code = os.waitstatus_to_exitcode(end.status)
    return replace(
        output,
        status=_status(interpreter, exit_code),
        exit_code=exit_code if exit_code >= 0 else None,
        signal=-exit_code if exit_code < 0 else None,
        cpu_s=max(0.0, end.cpu_s - interpreter.answered_cpu_s),
        peak_memory_bytes=end.peak_memory_bytes,
    )


def _status(interpreter: Interpreter, exit_code: int) -> ExecStatus:
    if interpreter.is_flooded:
        return ExecStatus.OUTPUT_LIMIT
    if interpreter.group_usage.memory_exceeded and exit_code and not interpreter.timed_out:
        return ExecStatus.MEMORY
    if exit_code == -signal.SIGXCPU or (interpreter.timed_out and exit_code == -signal.SIGKILL):
        return ExecStatus.TIMEOUT
    if exit_code < 0:
        return ExecStatus.SIGNALED
    return ExecStatus.NONZERO if exit_code else ExecStatus.OK
