"""The "namespace" sandbox: Linux namespaces, seccomp and resource limits, by our own system calls.

Each request runs in a fork of a warm interpreter (see `guest.py`), in pid, mount, ipc, uts and network namespaces of
its own, as a user of its own, on a read-only root that holds only what Python needs, with a small private /tmp.

A session (see `session.py`) is such a fork that stays and serves one cell after the other.

Not covered: memory is limited per process and not per snippet (RLIMIT_AS), so `processes` processes may use as many
times `memory_bytes`; the CPU limit has a grain of one second, and is per process; what a session's cell leaves running
in the background is not stopped between cells, and ends with the session; holes in the kernel itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

from forge_env.errors import SandboxError, UserError
from forge_env.sandbox import DEFAULT_LIMITS, Capabilities, ExecRequest, ExecResult, ExecStatus, Limits
from sandboxes.interpreter import Spec
from sandboxes.selftest import check_isolation
from sandboxes.session import NamespaceSession
from sandboxes.streams import CappedPipe, sealed_files
from sandboxes.zygote import Ended, Zygote, encode, guest_limits, whole_cpu_s

DEFAULT_PREIMPORT = (
    "ast", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "threading",
    "typing",
)  # fmt: skip
_MAX_SLOTS, _MAX_SESSIONS = 128, 896  # together as many as the zygote has user ids
_SESSION_WAIT_S = 60.0
_FLOOD_FACTOR = 16
_REPORT_BYTES = 64 * 2**10 + 6  # started byte, frame kind, length and the largest value
_GRACE_S = 10.0
"""How long the zygote may take to answer once a snippet was killed, before it is taken for dead itself."""


async def open_namespace_sandbox(
    *, slots: int | None = None, max_sessions: int = 256, preimport: tuple[str, ...] = DEFAULT_PREIMPORT
) -> NamespaceSandbox:
    """Open the sandbox and prove that it isolates (once per process).

    Args:
        slots: requests and cells of sessions that run at once; twice the number of CPUs by default. The others wait.
        max_sessions: sessions that are open at once; more wait a minute for one to be closed. Each takes three file
            descriptors and a few MB.
        preimport: standard library modules that are loaded already when a snippet starts.

    Raises:
        UserError: `slots` or `max_sessions` is out of range.
        SandboxUnavailable: the kernel does not let us isolate, or a canary got out.
    """
    slots = slots if slots is not None else 2 * (os.cpu_count() or 1)
    if not 1 <= slots <= _MAX_SLOTS:
        raise UserError(f"slots must be between 1 and {_MAX_SLOTS}, not {slots}.")
    if not 1 <= max_sessions <= _MAX_SESSIONS:
        raise UserError(f"max_sessions must be between 1 and {_MAX_SESSIONS}, not {max_sessions}.")
    zygote = await Zygote.start(preimport=preimport)
    sandbox = NamespaceSandbox(zygote, slots=slots, max_sessions=max_sessions, preimport=preimport)
    try:
        sandbox.capabilities = await check_isolation(sandbox)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


class NamespaceSandbox:
    """A `Sandbox` with one zygote, `slots` places and the sessions. Made by `open_namespace_sandbox`."""

    capabilities: Capabilities

    def __init__(self, zygote: Zygote, *, slots: int, max_sessions: int, preimport: tuple[str, ...]) -> None:
        self._zygote = zygote
        self._preimport = preimport
        self._starting = asyncio.Lock()
        self._closed = False
        self._slots = _filled(range(slots))
        self._session_slots = _filled(range(slots, slots + max_sessions))
        self._max_sessions = max_sessions
        self._sessions: set[NamespaceSession] = set()

    async def run(self, request: ExecRequest | str) -> ExecResult:
        """Run `request` in a fresh state; `wall_s` starts when a slot is free. Cancellation kills the snippet.

        Raises:
            TypeError, ValueError: the arguments of the call are no plain JSON data.
            SandboxError: the sandbox is closed.
        """
        if isinstance(request, str):
            request = ExecRequest(code=request)
        inputs = encode(request)
        slot = await self._slots.get()
        try:
            result, may_retry = await self._attempt(request, inputs, slot)
            if may_retry:
                result, _ = await self._attempt(request, inputs, slot)
            return result
        finally:
            self._slots.put_nowait(slot)

    async def open_session(
        self, *, setup: str = "", limits: Limits = DEFAULT_LIMITS, echo: bool = False
    ) -> NamespaceSession:
        """Open a session, whose directory is /tmp. A cell takes a slot while it runs; `wall_s` starts when it has one.

        Raises:
            SandboxError: the set-up raised, `max_sessions` are open, or the sandbox is closed.
        """
        slot = await self._free_session_slot()

        def free() -> None:
            self._sessions.discard(session)
            self._session_slots.put_nowait(slot)

        spec = Spec(setup=setup, limits=limits, echo=echo)
        session = NamespaceSession(spec, slot, zygote=self._live_zygote, places=self._slots, free=free)
        self._sessions.add(session)
        try:
            await session.reset()
        except BaseException:
            await session.close()
            raise
        return session

    async def close(self) -> None:
        """End every process of this sandbox; requests in flight answer SANDBOX_ERROR. Idempotent."""
        self._closed = True
        async with self._starting:  # not while a new zygote starts, which would outlive us
            await self._zygote.close()
        for session in tuple(self._sessions):
            await session.close()

    async def _free_session_slot(self) -> int:
        try:
            async with asyncio.timeout(_SESSION_WAIT_S):
                return await self._session_slots.get()
        except TimeoutError:
            raise SandboxError(
                f"{self._max_sessions} sessions are open and none was closed in {_SESSION_WAIT_S:g} s; close sessions "
                "that are done, or open the sandbox with a larger max_sessions"
            ) from None

    async def _attempt(self, request: ExecRequest, inputs: tuple[bytes, bytes], slot: int) -> tuple[ExecResult, bool]:
        """Return the result, and whether it is only that the zygote failed before any foreign code ran."""
        zygote = await self._live_zygote()
        try:
            with Execution(zygote, request.limits) as execution:
                return await execution.run(request, inputs, slot)
        except OSError as error:
            raise SandboxError(f"the namespace sandbox could not start a snippet: {error}") from error

    async def _live_zygote(self) -> Zygote:
        async with self._starting:
            if self._closed:
                raise SandboxError("the namespace sandbox is closed")
            if not self._zygote.alive:
                await self._zygote.close()
                self._zygote = await Zygote.start(preimport=self._preimport)
            return self._zygote


class Execution:
    """One attempt at one request."""

    def __init__(self, zygote: Zygote, limits: Limits) -> None:
        self._zygote = zygote
        self._limits = limits
        self._number = 0
        self._timed_out = False
        self._pipes: list[CappedPipe] = []

    def __enter__(self) -> Execution:
        try:
            for cap in (_REPORT_BYTES, self._limits.output_bytes, self._limits.output_bytes):
                self._pipes.append(CappedPipe(cap, _FLOOD_FACTOR * max(cap, 1), self._kill))
        except BaseException:
            self._close_pipes()
            raise
        self._report, self._stdout, self._stderr = self._pipes
        return self

    def __exit__(self, *_: object) -> None:
        self._close_pipes()

    async def run(self, request: ExecRequest, inputs: tuple[bytes, bytes], slot: int) -> tuple[ExecResult, bool]:
        """Return the result, and whether the zygote failed before any foreign code ran."""
        begin = time.monotonic()
        with sealed_files(*inputs) as (body, *stdin):
            order = {"slot": slot, "limits": guest_limits(self._limits)}
            self._number, ended = self._zygote.submit(order, [body, *(pipe.write_fd for pipe in self._pipes), *stdin])
        for pipe in self._pipes:
            pipe.close_write_end()
        end = await self._wait(ended)
        wall_s = time.monotonic() - begin
        self._close_pipes()
        return self._result(request, end, wall_s), bool(end.failure) and not self._started

    @property
    def _started(self) -> bool:
        """Whether foreign code began: the guest's first byte, written before it."""
        return self._report.data.startswith(b"S")

    def _close_pipes(self) -> None:
        for pipe in self._pipes:
            pipe.close()

    async def _wait(self, ended: asyncio.Future[Ended]) -> Ended:
        """Wait for the end, which the deadline brings about. When cancelled, wait until the snippet is dead."""
        deadline = asyncio.get_running_loop().call_later(self._limits.wall_s, self._time_out)
        try:
            return await self._bounded(ended, self._limits.wall_s + _GRACE_S)
        except asyncio.CancelledError:
            self._kill()
            await self._bounded(ended, _GRACE_S)
            raise
        finally:
            deadline.cancel()

    async def _bounded(self, ended: asyncio.Future[Ended], timeout_s: float) -> Ended:
        done, _ = await asyncio.wait([ended], timeout=timeout_s)
        if not done:
            self._zygote.kill_all()  # resolves `ended`
        return await ended

    def _time_out(self) -> None:
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        self._zygote.kill(self._number)

    def _result(self, request: ExecRequest, end: Ended, wall_s: float) -> ExecResult:
        error = end.failure or self._setup_error()
        exit_code = os.waitstatus_to_exitcode(end.status)
        value = _value(self._report.data) if request.call is not None and not error else None
        status = ExecStatus.SANDBOX_ERROR if error else self._status(request, end, exit_code, value)
        return ExecResult(
            status=status,
            backend="namespace",
            exit_code=exit_code if exit_code >= 0 and not error else None,
            signal=-exit_code if exit_code < 0 and not error else None,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            truncated_stdout=self._stdout.truncated,
            truncated_stderr=self._stderr.truncated,
            value=value if status is ExecStatus.OK else None,
            wall_s=wall_s,
            cpu_s=end.cpu_s,
            peak_memory_bytes=end.peak_memory_bytes,
            error=error,
        )

    def _setup_error(self) -> str:
        if self._started:
            return ""
        if self._report.data.startswith(b"E"):
            return self._report.data[1:].decode("utf-8", "replace")
        if self._timed_out:
            return "the snippet was not ready to start within wall_s"
        return "the snippet's process ended before it was ready to start"

    def _status(self, request: ExecRequest, end: Ended, exit_code: int, value: str | None) -> ExecStatus:
        if self._stdout.flooded or self._stderr.flooded or self._report.flooded:
            return ExecStatus.OUTPUT_LIMIT
        if exit_code < 0:
            return self._signal_status(-exit_code, end.cpu_s)
        if exit_code == 0:
            return ExecStatus.OK if request.call is None or value is not None else ExecStatus.NONZERO
        claims = {b"M": ExecStatus.MEMORY, b"P": ExecStatus.PIDS}
        return claims.get(self._report.data[-1:], ExecStatus.NONZERO)

    def _signal_status(self, number: int, cpu_s: float) -> ExecStatus:
        out_of_cpu = number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_s >= whole_cpu_s(self._limits))
        if out_of_cpu or (number == signal.SIGKILL and self._timed_out):
            return ExecStatus.TIMEOUT
        return ExecStatus.SIGNALED


def _filled(numbers: range) -> asyncio.LifoQueue[int]:
    queue: asyncio.LifoQueue[int] = asyncio.LifoQueue()
    for number in reversed(numbers):
        queue.put_nowait(number)
    return queue


def _value(report: bytes) -> str | None:
    """Return the JSON text of one complete frame that ends the report, else None."""
    if report[1:2] != b"V" or len(report) < 6:
        return None
    length = int.from_bytes(report[2:6], "little")
    return report[6:].decode("ascii", "replace") if len(report) == 6 + length else None
