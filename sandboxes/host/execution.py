"""One attempt at one request: its inputs, its outputs, and its end as the kernel reports it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

from forge_env.core.sandbox import ExecRequest, ExecResult, ExecStatus, Limits
from sandboxes.host.cgroup_slots import GroupUsage, SlotGroup
from sandboxes.host.streams import CappedPipe, sealed_files
from sandboxes.host.zygote import Driver, ExitReport, guest_limits, whole_cpu_s

_FLOOD_FACTOR = 16
_EXTRA_PROCESSES = 2  # in a slot's control group: its helper, and the init of the snippet
_REPORT_BYTES = 64 * 2**10 + 6  # started byte, frame kind, length and the largest value
_GRACE_S = 10.0
"""Seconds that the zygote may take to report a killed snippet before it is treated as dead."""
_READY_S = 5.0
"""Seconds beyond `wall_s` that a busy machine may take to start a snippet; `wall_s` then counts from its start."""
_READY_POLL_S = 0.02


class Execution:
    def __init__(self, backend: str, zygote: Driver, limits: Limits, group: SlotGroup | None) -> None:
        self._backend = backend
        self._zygote = zygote
        self._group = group
        self._limits = limits
        self._number = 0
        self._timed_out = False
        self._end: ExitReport | None = None
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

    @property
    def left_slot_warm(self) -> bool:
        """Whether the next run in the slot waits for nothing: the slot has its helper and its network."""
        return self._end is not None and not self._end.failure and not self._end.spent

    @property
    def may_retry(self) -> bool:
        """Whether the zygote failed before any untrusted code ran."""
        return self._end is not None and bool(self._end.failure) and not self._has_begun

    async def run(self, request: ExecRequest, inputs: tuple[bytes, bytes], slot: int) -> ExecResult:
        """Run `request` in `slot`; the properties above then tell what to do next. Raises OSError."""
        begin = time.monotonic()
        order = {"slot": slot, "limits": guest_limits(self._limits, in_group=self._group is not None)}
        if self._group is not None:
            self._zygote.open_helper(slot, self._group)
            self._group.begin(self._limits, extra_processes=_EXTRA_PROCESSES)
        with sealed_files(*inputs) as (body, *stdin):
            fds = [body, *(pipe.write_fd for pipe in self._pipes), *stdin]
            self._number, exit_report = self._zygote.submit(order, fds)
        for pipe in self._pipes:
            pipe.close_write_end()
        end = await self._wait(exit_report)
        wall_s = time.monotonic() - begin
        self._close_pipes()
        return self._result(request, end, self._usage(slot, end), wall_s)

    def _usage(self, slot: int, end: ExitReport) -> GroupUsage:
        if self._group is None:
            return GroupUsage()
        use = self._group.end()
        if end.failure:
            self._zygote.close_helper(slot)
        elif use.processes > 1:  # only the helper may be in the group: anything else would be a bug, so all are killed
            self._zygote.kill_all()
        return use

    @property
    def _has_begun(self) -> bool:
        """Whether untrusted code began: the guest writes its first byte before it."""
        return self._report.data.startswith(b"S")

    def _close_pipes(self) -> None:
        for pipe in self._pipes:
            pipe.close()

    async def _wait(self, exit_report: asyncio.Future[ExitReport]) -> ExitReport:
        """Wait for the end, at the latest at the deadline. After a cancellation, wait until the snippet is dead."""
        wall_s = self._limits.wall_s
        deadline = asyncio.create_task(self._time_out())
        try:
            return await self._wait_at_most(exit_report, 2 * wall_s + _READY_S + _GRACE_S)
        except asyncio.CancelledError:
            self._kill()
            await self._wait_at_most(exit_report, _GRACE_S)
            raise
        finally:
            deadline.cancel()

    async def _wait_at_most(self, exit_report: asyncio.Future[ExitReport], timeout_s: float) -> ExitReport:
        done, _ = await asyncio.wait([exit_report], timeout=timeout_s)
        if not done:
            self._zygote.kill_all()  # resolves `exit_report`
        self._end = await exit_report
        return self._end

    async def _time_out(self) -> None:
        """Kill the snippet after `wall_s`: of its own time, where the machine was so busy that it began late."""
        await asyncio.sleep(self._limits.wall_s)
        if not self._has_begun:
            last = time.monotonic() + _READY_S
            while not self._has_begun and time.monotonic() < last:
                await asyncio.sleep(_READY_POLL_S)
            if self._has_begun:
                await asyncio.sleep(self._limits.wall_s)
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        self._zygote.kill(self._number)

    def _result(self, request: ExecRequest, end: ExitReport, use: GroupUsage, wall_s: float) -> ExecResult:
        error = end.failure or self._setup_error()
        if use.host_out_of_memory:
            error = "the machine ran out of memory although the snippet was within its limit"
        elif self._has_begun and use.memory_exceeded:
            error = ""  # the kernel may have killed the slot's helper as well
        exit_code = os.waitstatus_to_exitcode(end.status)
        value = _value(self._report.data) if request.call is not None and not error else None
        status = ExecStatus.SANDBOX_ERROR if error else self._status(request, end, use, exit_code, value)
        return ExecResult(
            status=status,
            backend=self._backend,
            exit_code=exit_code if exit_code >= 0 and not error else None,
            signal=-exit_code if exit_code < 0 and not error else None,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            truncated_stdout=self._stdout.truncated,
            truncated_stderr=self._stderr.truncated,
            value=value if status is ExecStatus.OK else None,
            wall_s=wall_s,
            cpu_s=end.cpu_s,
            peak_memory_bytes=use.peak_bytes or end.peak_memory_bytes,
            error=error,
        )

    def _setup_error(self) -> str:
        if self._has_begun:
            return ""
        if self._report.data.startswith(b"E"):
            return self._report.data[1:].decode("utf-8", "replace")
        if self._timed_out:
            return f"the snippet was not ready to start within wall_s and {_READY_S:g} s more"
        return "the snippet's process ended before it was ready to start"

    def _status(
        self, request: ExecRequest, end: ExitReport, use: GroupUsage, exit_code: int, value: str | None
    ) -> ExecStatus:
        if self._stdout.is_flooded or self._stderr.is_flooded or self._report.is_flooded:
            return ExecStatus.OUTPUT_LIMIT
        if use.memory_exceeded and (exit_code or end.failure) and not self._timed_out:
            return ExecStatus.MEMORY
        if exit_code < 0:
            is_killed = exit_code == -signal.SIGKILL
            out_of_cpu = exit_code == -signal.SIGXCPU or (is_killed and end.cpu_s >= whole_cpu_s(self._limits))
            return ExecStatus.TIMEOUT if out_of_cpu or (is_killed and self._timed_out) else ExecStatus.SIGNALED
        if exit_code == 0:
            return ExecStatus.OK if request.call is None or value is not None else ExecStatus.NONZERO
        if use.processes_exceeded:
            return ExecStatus.PIDS
        claims = {b"M": ExecStatus.MEMORY, b"P": ExecStatus.PIDS}
        return claims.get(self._report.data[-1:], ExecStatus.NONZERO)


def _value(report: bytes) -> str | None:
    """Return the JSON text if the report ends with one complete frame, else None."""
    if report[1:2] != b"V" or len(report) < 6:
        return None
    text = report[6:].decode("ascii", "replace")
    try:
        json.loads(text)  # forged text may be invalid, or nested too deeply to decode
    except (ValueError, RecursionError):
        return None
    return text if len(report) == 6 + int.from_bytes(report[2:6], "little") else None
