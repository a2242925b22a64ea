"""The "namespace" sandbox: Linux namespaces, seccomp and resource limits, set by system calls.

Every request runs in a fork of a warm interpreter (see `guest.py`), in separate pid, mount, ipc, uts and network
namespaces, as a separate user, on a read-only root with only the files that Python needs, and with a small private
/tmp. A session (see `session.py`) is such a fork that stays alive and serves one cell after another.

A control group (see `cgroups.py`) limits memory, processes and CPU share of everything that a snippet starts, if the
machine has control groups. Otherwise memory is limited per process. The CPU limit counts whole seconds, and is per
process. docs/sandboxes.md says what else is not covered.

bubblewrap is not used for the outer ring: the ring takes a few system calls (`guest_kernel.enter_minimal_root`).
bubblewrap would take one more process and could not give snippets separate user ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from forge_env.core.sandbox import DEFAULT_LIMITS, Capabilities, ExecRequest, ExecResult, Limits
from forge_env.utils.deadlines import queued
from sandboxes.host.cgroup_slots import SlotGroup
from sandboxes.host.cgroups import Groups, open_groups
from sandboxes.host.execution import Execution
from sandboxes.host.interpreter import Spec
from sandboxes.host.packages import NO_PACKAGES
from sandboxes.host.restarted import Restarted
from sandboxes.host.selftest import check_isolation
from sandboxes.host.session import NamespaceSession, session_slot
from sandboxes.host.warm_slots import SlotStats, WarmSlots
from sandboxes.host.zygote import Driver, Zygote, encode

DEFAULT_PREIMPORT = (
    "ast", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "threading",
    "typing",
)  # fmt: skip
_MAX_SLOTS, _MAX_SESSIONS = 128, 896  # together as many as the zygote has user ids
_IDS = _MAX_SLOTS + _MAX_SESSIONS
_DEFAULT_WARM = 8
_SPARES = 4  # one spare slot for every four, so that one can be replaced while the others are busy
_WARM_UP = ExecRequest(code="pass", limits=Limits(wall_s=30.0, cpu_s=30.0))


async def open_namespace_sandbox(
    *,
    slots: int | None = None,
    warm: int | None = None,
    max_sessions: int = 256,
    preimport: tuple[str, ...] = DEFAULT_PREIMPORT,
    packages: tuple[str, ...] = (),
    cgroups: bool = True,
) -> NamespaceSandbox:
    """Open the sandbox and check that it isolates (once per process).

    Args:
        slots: concurrent requests and cells; by default twice the CPUs that this process may use, at most 128. Further
            ones wait, and run in the order in which they came.
        warm: slots that are started before the sandbox is open, and kept; `slots`, but at most 8, by default. More are
            started in the background, ahead of demand.
        max_sessions: open sessions; a further one waits up to a minute until one is closed. A session takes three file
            descriptors and a few MB.
        preimport: standard library modules that are loaded before a snippet starts.
        packages: installed packages that snippets may import, for example "numpy", by module or distribution name.
            Their requirements are visible, too; other installed packages are not. The named packages are loaded before
            a snippet starts, which makes every run a little slower.
        cgroups: limit every snippet as a whole if the machine has control groups; otherwise each of its processes.
    """
    slots = slots if slots is not None else min(_MAX_SLOTS, 2 * len(os.sched_getaffinity(0)))
    if not 1 <= slots <= _MAX_SLOTS:
        raise UserError(f"slots must be between 1 and {_MAX_SLOTS}, not {slots}.")
    warm = warm if warm is not None else min(slots, _DEFAULT_WARM)
    if not 0 <= warm <= slots:
        raise UserError(f"warm must be between 0 and slots, which is {slots}, not {warm}.")
    if not 1 <= max_sessions <= _MAX_SESSIONS:
        raise UserError(f"max_sessions must be between 1 and {_MAX_SESSIONS}, not {max_sessions}.")
    visible = NO_PACKAGES
    if packages:
        from sandboxes.host.find_packages import find_packages  # needs a library that a container does not have

        visible = find_packages(packages)

    async def start() -> Zygote:
        return await Zygote.start(preimport=preimport, packages=visible)

    async def open_with(groups: Groups | str) -> NamespaceSandbox:
        try:
            zygote = await start()
        except BaseException:
            if isinstance(groups, Groups):
                groups.close()
            raise
        sandbox = NamespaceSandbox(zygote, groups, slots=slots, warm=warm, max_sessions=max_sessions, start=start)
        try:
            await sandbox.warm_up()
            sandbox.capabilities = await check_isolation(sandbox, groups)
            await sandbox.warm_up()  # the self-test may have used up slots
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    groups = open_groups() if cgroups else "control groups are switched off (cgroups=False)"
    try:
        return await open_with(groups)
    except SandboxUnavailable as error:
        if isinstance(groups, str):
            raise
        return await open_with(f"control groups do not work here: {error}")  # reported in the capabilities


@dataclass(slots=True, eq=False)
class _Slot:
    """A slot for one-shot requests: a control group, a helper of the zygote in it, and a network namespace."""

    number: int
    zygote: Driver | None = None
    """In which the slot was warmed up; None if it is not warm."""


class NamespaceSandbox:
    """A `Sandbox` with one zygote, `slots` slots and the sessions. Created by `open_namespace_sandbox`.

    Args:
        groups: the control groups, which are closed with the sandbox, or the reason for having none.
        warm: slots that are kept warm. None: runs share nothing that could be warmed up.
    """

    capabilities: Capabilities

    def __init__(
        self,
        zygote: Driver,
        groups: Groups | str,
        *,
        slots: int,
        max_sessions: int,
        start: Callable[[], Awaitable[Driver]],
        warm: int | None = None,
        backend: str = "namespace",
    ) -> None:
        self._zygote = Restarted(zygote, start, closed=f"the {backend} sandbox is closed")
        self._backend = backend
        self._groups = groups if isinstance(groups, Groups) else None
        self._removing = asyncio.Lock()
        self._is_closed = False
        self._at_once = asyncio.Semaphore(slots)
        most = min(slots + slots // _SPARES, _IDS - max_sessions)
        self._warms_up = warm is not None
        self._numbers = list(reversed(range(most)))  # of slots that are not started
        self._slots: WarmSlots[_Slot] = WarmSlots(
            backend, start=self._start_slot, end=self._end_slot, is_warm=self._is_warm, warm=warm or 0, most=most
        )
        self._session_slots: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for number in reversed(range(most, most + max_sessions)):
            self._session_slots.put_nowait(number)
        self._first_session = most
        self._max_sessions = max_sessions
        self._sessions: set[NamespaceSession] = set()

    @property
    def slot_stats(self) -> SlotStats:
        return self._slots.stats

    async def warm_up(self) -> None:
        """Wait until the slots that are kept are warm.

        A slot that cannot be warmed up counts, too: the first request in it meets the same error, and reports it.
        """
        await self._slots.fill()

    async def run(self, request: ExecRequest | str) -> ExecResult:
        """Run `request` in a fresh state; `wall_s` starts when a slot is free. Cancellation kills the snippet."""
        if isinstance(request, str):
            request = ExecRequest(code=request)
        inputs = encode(request)
        async with queued():
            await self._at_once.acquire()
        try:
            slot = await self._slots.take()
            try:
                result, may_retry = await self._attempt(request, inputs, slot)
                if may_retry:
                    result, _ = await self._attempt(request, inputs, slot)
                return result
            finally:
                self._slots.give_back(slot)
        finally:
            self._at_once.release()

    async def open_session(
        self, *, setup: str = "", limits: Limits = DEFAULT_LIMITS, echo: bool = False
    ) -> NamespaceSession:
        """Open a session with the working directory /tmp. A cell takes a slot; `wall_s` starts when it has one."""
        slot = await session_slot(self._session_slots.get, self._max_sessions)
        try:
            group = self._group(slot)
        except SandboxError:
            self._session_slots.put_nowait(slot)
            raise

        def free() -> None:
            self._sessions.discard(session)
            self._session_slots.put_nowait(slot)

        spec = Spec(setup=setup, limits=limits, echo=echo)
        session = NamespaceSession(spec, slot, self._backend, self._zygote.live, group, self._at_once, free)
        self._sessions.add(session)
        try:
            await session.reset()
        except BaseException:
            await session.close()
            raise
        return session

    async def close(self) -> None:
        """End every process of this sandbox; requests in flight answer SANDBOX_ERROR. Idempotent."""
        self._is_closed = True
        self._slots.shut()
        await self._zygote.close()
        await self._slots.close()
        for session in tuple(self._sessions):
            await session.close()
        if self._groups is not None:
            async with self._removing:  # one after another, if it is closed twice
                await asyncio.to_thread(self._groups.close)  # it may wait for processes that have just ended

    def _group(self, slot: int) -> SlotGroup | None:
        """The control group of a slot, None if there are none. Raises SandboxError."""
        if self._is_closed:
            raise SandboxError(f"the {self._backend} sandbox is closed")
        try:
            one_shot = slot < self._first_session
            return self._groups.slot(slot, keep_open=one_shot) if self._groups is not None else None
        except OSError as error:
            raise SandboxError(f"the {self._backend} sandbox could not make a control group: {error}") from error

    async def _start_slot(self) -> _Slot:
        """Start a slot and make it warm, by one execution that does nothing, with the limits of most requests."""
        slot = _Slot(self._numbers.pop())
        if self._warms_up:
            with contextlib.suppress(SandboxError, UserError):  # the first request in it meets it, too, and reports it
                await self._attempt(_WARM_UP, encode(_WARM_UP), slot)
        return slot

    def _end_slot(self, slot: _Slot) -> None:
        self._numbers.append(slot.number)  # its group is kept for the next one with this number

    def _is_warm(self, slot: _Slot) -> bool:
        return not self._warms_up or (slot.zygote is self._zygote.process and slot.zygote.alive)

    async def _attempt(self, request: ExecRequest, inputs: tuple[bytes, bytes], slot: _Slot) -> tuple[ExecResult, bool]:
        """Return the result, and whether the zygote failed before any untrusted code ran."""
        slot.zygote = None
        zygote = await self._zygote.live()
        try:
            with Execution(self._backend, zygote, request.limits, self._group(slot.number)) as execution:
                try:
                    return await execution.run(request, inputs, slot.number), execution.may_retry
                finally:
                    slot.zygote = zygote if execution.left_slot_warm else None
        except OSError as error:
            raise SandboxError(f"the {self._backend} sandbox could not start a snippet: {error}") from error
