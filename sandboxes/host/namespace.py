"""The "namespace" sandbox: Linux namespaces, seccomp and resource limits, by our own system calls.

Each request runs in a fork of a warm interpreter (see `guest.py`), in pid, mount, ipc, uts and network namespaces of
its own, as a user of its own, on a read-only root that holds only what Python needs, with a small private /tmp.

A session (see `session.py`) is such a fork that stays and serves one cell after the other.

Memory, processes and CPU share of all that a snippet starts are limited by a control group (see `cgroups.py`) where
the machine offers one. Where it does not, the capabilities say "rlimit": then memory is limited per process, so that
`processes` processes may use as many times `memory_bytes`.

Not covered: the CPU limit has a grain of one second, and is per process (the wall-clock limit holds for all); what a
session's cell leaves running in the background is not stopped between cells, and ends with the session; what time and
the counts of the whole machine tell of other runs, and locks of files of the shared root among runs that live at the
same time (docs/sandboxes.md, "Between runs"); holes in the kernel itself.

bubblewrap is not used for the outer ring, even where it is installed: the same ring takes a few system calls of our own
(`guest_kernel.enter_minimal_root`), and bubblewrap would take one more process, could not give the snippets user ids of
their own inside it, and started by root with --uid it leaves the outer user root, whose files stay readable.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from forge_env.core.sandbox import DEFAULT_LIMITS, Capabilities, ExecRequest, ExecResult, Limits
from forge_env.utils.deadlines import queued
from sandboxes.host.cgroup_slots import Slot
from sandboxes.host.cgroups import Groups, open_groups
from sandboxes.host.execution import Execution
from sandboxes.host.interpreter import Spec
from sandboxes.host.packages import find_packages
from sandboxes.host.selftest import check_isolation
from sandboxes.host.session import NamespaceSession
from sandboxes.host.zygote import Driver, Zygote, encode

DEFAULT_PREIMPORT = (
    "ast", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "threading",
    "typing",
)  # fmt: skip
_MAX_SLOTS, _MAX_SESSIONS = 128, 896  # together as many as the zygote has user ids
_SESSION_WAIT_S = 60.0


async def open_namespace_sandbox(
    *,
    slots: int | None = None,
    max_sessions: int = 256,
    preimport: tuple[str, ...] = DEFAULT_PREIMPORT,
    packages: tuple[str, ...] = (),
    cgroups: bool = True,
) -> NamespaceSandbox:
    """Open the sandbox and prove that it isolates (once per process).

    Args:
        slots: requests and cells of sessions that run at once; twice the number of CPUs by default. The others wait.
        max_sessions: sessions that are open at once; more wait a minute for one to be closed. Each takes three file
            descriptors and a few MB.
        preimport: standard library modules that are loaded already when a snippet starts.
        packages: installed packages that snippets may import, for example "numpy", by the name of a module or of a
            distribution. What they require is there as well, and nothing else that is installed. The named ones are
            loaded when a snippet starts, which makes every run a little dearer.
        cgroups: limit each snippet as a whole where the machine offers control groups; without, each of its processes.

    Raises:
        UserError: `slots` or `max_sessions` is out of range, or a package is not installed or cannot be imported.
        SandboxUnavailable: the kernel does not let us isolate, or a canary got out.
    """
    slots = slots if slots is not None else 2 * (os.cpu_count() or 1)
    if not 1 <= slots <= _MAX_SLOTS:
        raise UserError(f"slots must be between 1 and {_MAX_SLOTS}, not {slots}.")
    if not 1 <= max_sessions <= _MAX_SESSIONS:
        raise UserError(f"max_sessions must be between 1 and {_MAX_SESSIONS}, not {max_sessions}.")
    found = find_packages(packages)

    async def start() -> Zygote:
        return await Zygote.start(preimport=preimport, packages=found)

    async def open_with(groups: Groups | str) -> NamespaceSandbox:
        try:
            zygote = await start()
        except BaseException:
            if isinstance(groups, Groups):
                groups.close()
            raise
        sandbox = NamespaceSandbox(zygote, groups, slots=slots, max_sessions=max_sessions, start=start)
        try:
            sandbox.capabilities = await check_isolation(sandbox, groups)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    groups = open_groups() if cgroups else "control groups were not asked for (cgroups=False)"
    try:
        return await open_with(groups)
    except SandboxUnavailable as error:
        if isinstance(groups, str):
            raise
        return await open_with(f"those that could be made were of no use: {error}")  # the capabilities tell


class NamespaceSandbox:
    """A `Sandbox` with one zygote, `slots` places and the sessions. Made by `open_namespace_sandbox`.

    Args:
        zygote: what starts the processes.
        groups: the control groups, which are closed with the sandbox, or why there are none.
        start: starts another zygote when the last one died; by default one with the modules in `preimport`.
        backend: its name in results.
    """

    capabilities: Capabilities

    def __init__(
        self,
        zygote: Driver,
        groups: Groups | str,
        *,
        slots: int,
        max_sessions: int,
        preimport: tuple[str, ...] = DEFAULT_PREIMPORT,
        start: Callable[[], Awaitable[Driver]] | None = None,
        backend: str = "namespace",
    ) -> None:
        self._zygote = zygote
        self._start = start or (lambda: Zygote.start(preimport=preimport))
        self._backend = backend
        self._groups = groups if isinstance(groups, Groups) else None
        self._starting = asyncio.Lock()
        self._closed = False
        self._slots = _filled(range(slots))
        self._session_slots = _filled(range(slots, slots + max_sessions))
        self._first_session = slots
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
        async with queued():
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
        try:
            group = self._group(slot)
        except SandboxError:
            self._session_slots.put_nowait(slot)
            raise

        def free() -> None:
            self._sessions.discard(session)
            self._session_slots.put_nowait(slot)

        spec = Spec(setup=setup, limits=limits, echo=echo)
        session = NamespaceSession(
            spec, slot, backend=self._backend, zygote=self._live_zygote, groups=group, places=self._slots, free=free
        )
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
        if self._groups is not None:
            self._groups.close()

    def _group(self, slot: int) -> Slot | None:
        """Return the control group of a slot, None where there are none. Raises SandboxError."""
        if self._closed:
            raise SandboxError(f"the {self._backend} sandbox is closed")
        try:
            one_shot = slot < self._first_session
            return self._groups.slot(slot, keep_open=one_shot) if self._groups is not None else None
        except OSError as error:
            raise SandboxError(f"the {self._backend} sandbox could not make a control group: {error}") from error

    async def _free_session_slot(self) -> int:
        try:
            async with asyncio.timeout(_SESSION_WAIT_S):
                async with queued():
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
            with Execution(self._backend, zygote, request.limits, self._group(slot)) as execution:
                return await execution.run(request, inputs, slot)
        except OSError as error:
            raise SandboxError(f"the {self._backend} sandbox could not start a snippet: {error}") from error

    async def _live_zygote(self) -> Driver:
        async with queued(), self._starting:  # the sandbox's own processes: a start has a deadline of its own
            if self._closed:
                raise SandboxError(f"the {self._backend} sandbox is closed")
            if not self._zygote.alive:
                await self._zygote.close()
                self._zygote = await self._start()
            return self._zygote


def _filled(numbers: range) -> asyncio.LifoQueue[int]:
    queue: asyncio.LifoQueue[int] = asyncio.LifoQueue()
    for number in reversed(numbers):
        queue.put_nowait(number)
    return queue
