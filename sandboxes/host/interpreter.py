"""The host's handle on the interpreter of one session (`guest_session.py`), which answers requests until it ends."""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from forge_env.core.sandbox import Limits
from sandboxes.host.cgroup_slots import GroupUsage, SlotGroup
from sandboxes.host.controlled import NO_ROOM
from sandboxes.host.streams import CappedPipe, sealed_file, sealed_files
from sandboxes.host.zygote import Driver, ExitReport, encode_body, guest_limits, whole_cpu_s

_ANSWER = struct.Struct("<IBcdq")  # guest_session.py packs it
_MAX_FRAME = 4096
_FLOOD_FACTOR = 16
_START_S = 10.0
_GRACE_S = 10.0
"""Seconds that the zygote may take to end a killed interpreter before it is treated as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    setup: str
    limits: Limits
    echo: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The guest's answer to one request. Untrusted code can forge it; only its types and ranges are checked."""

    code: int
    """Exit code of a cell, or errno of a file request."""
    exhausted: bytes
    """b"M" for memory, b"P" for processes."""
    cpu_s: float
    peak_memory_bytes: int


class Interpreter:
    """A started interpreter. Use: construct, `await ready()`, requests one at a time until `end` is set.

    It is killed when a request passes its deadline, is cancelled, floods its output, or gets a malformed answer. In all
    cases its resources are freed when the zygote reports the end of its last process.
    """

    def __init__(self, zygote: Driver, slot: int, spec: Spec, group: SlotGroup | None = None) -> None:
        self.end: ExitReport | None = None
        self.failure = ""
        """What broke in the sandbox itself."""
        self.timed_out = False
        self.answered_cpu_s = 0.0
        """CPU seconds of the answered requests."""
        self.group_usage = GroupUsage()
        """Counts of the control group, after the end."""
        self._zygote = zygote
        self._group = group
        self._limits = spec.limits
        self._was_killed = False
        self._requests = 0
        self._loop = asyncio.get_running_loop()
        self._last_resort: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[bytes | None] = self._loop.create_future()
        with ExitStack() as undo:
            self._open_streams(undo)
            self._submit(slot, spec)
            undo.pop_all()

    @property
    def is_flooded(self) -> bool:
        return self.stdout.is_flooded or self.stderr.is_flooded

    def idle(self) -> bool:
        """Whether it is alive and has sent nothing unrequested."""
        if self.end is not None:
            return False
        try:
            self._control.recv(1, socket.MSG_PEEK)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    async def ready(self) -> str:
        """Wait until the set-up has run; return the error, or "" for none."""
        frame = await self._exchange(max(_START_S, self._limits.wall_s))
        if frame == b"S" and not self._was_killed:
            return ""
        self.kill()
        end = await self.wait_for_end()
        if frame is not None:
            return frame[1:].decode("utf-8", "replace")
        if end.failure or self.failure:
            return end.failure or self.failure
        return "the session was not ready in time" if self.timed_out else "the session's process ended in its set-up"

    async def run(self, code: str, stdin: str) -> Answer | None:
        """Run a cell; `stdout` and `stderr` then hold its output. None if the interpreter ended."""
        self.stdout.restart()
        self.stderr.restart()
        # An empty cell needs a file, too.
        contents = (code.encode("utf-8", "surrogatepass") or b"\n", stdin.encode("utf-8", "replace"))
        with sealed_files(*contents) as fds:
            return await self._ask({"do": "run", "cpu_s": whole_cpu_s(self._limits)}, fds)

    async def put(self, path: str, data: bytes) -> Answer | None:
        fd = sealed_file(data)
        try:
            return await self._ask({"do": "put", "path": path}, [fd])
        finally:
            os.close(fd)

    async def get(self, path: str) -> tuple[Answer | None, bytes]:
        """Return the answer and at most `file_bytes` bytes, and kill an interpreter that sends more."""
        cap = self._limits.file_bytes
        pipe = CappedPipe(cap, cap, self.kill)
        try:
            answer = await self._ask({"do": "get", "path": path, "max_bytes": cap}, [pipe.write_fd])
        finally:
            pipe.close()
        return answer, pipe.data

    def kill(self, failure: str = "") -> None:
        """Kill every process of the session; `failure` is the reason if the code is not to blame."""
        self._was_killed = True
        self.failure = self.failure or failure
        if self.end is None and self._last_resort is None:
            self._zygote.kill(self._number)
            self._last_resort = self._loop.call_later(_GRACE_S, self._zygote.kill_all)

    async def wait_for_end(self) -> ExitReport:
        """Wait until every process of the session is gone. The wait is bounded after `kill`."""
        await asyncio.wait([self._exit_report])
        return self._exit_report.result()

    def when_ended(self, action: Callable[[], None]) -> None:
        self._exit_report.add_done_callback(lambda _: action())

    def _open_streams(self, undo: ExitStack) -> None:
        self._control, self._guest_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(self._control.close)
        undo.callback(self._guest_control.close)
        # A bound socket: untrusted code cannot bind it to a name of the host's network namespace.
        self._guest_control.bind("")
        self._control.setblocking(False)
        cap = self._limits.output_bytes
        self.stdout = CappedPipe(cap, _FLOOD_FACTOR * max(cap, 1), self.kill)
        undo.callback(self.stdout.close)
        self.stderr = CappedPipe(cap, _FLOOD_FACTOR * max(cap, 1), self.kill)
        undo.callback(self.stderr.close)

    def _submit(self, slot: int, spec: Spec) -> None:
        # No hard CPU limit: an interpreter serves any number of cells, and every cell raises the soft limit.
        limits = guest_limits(spec.limits, in_group=self._group is not None) | {"cpu_kill_s": resource.RLIM_INFINITY}
        order: dict[str, Any] = {"slot": slot, "limits": limits, "session": True}
        joins: list[int] = []
        if self._group is not None:
            self._group.begin(self._limits, extra_processes=0)
            joins = self._group.join_files()
            order["groups"] = len(joins)
        body = encode_body({"setup": spec.setup, "echo": spec.echo})
        try:
            with sealed_files(body) as (body_fd,):
                fds = [body_fd, self._guest_control.fileno(), self.stdout.write_fd, self.stderr.write_fd, *joins]
                self._number, self._exit_report = self._zygote.submit(order, fds)
        finally:
            for fd in joins:
                os.close(fd)
        self._guest_control.close()
        self.stdout.close_write_end()
        self.stderr.close_write_end()
        self._exit_report.add_done_callback(self._on_end)

    def _on_end(self, exit_report: asyncio.Future[ExitReport]) -> None:
        self.end = exit_report.result()
        if self._group is not None:
            try:
                self.group_usage = self._group.end()
            except OSError as error:
                self.failure = self.failure or f"the control group could not be read: {error}"
        if self._last_resort is not None:
            self._last_resort.cancel()
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self.stdout.close()
        self.stderr.close()
        if not self._answer.done():
            self._answer.set_result(None)

    async def _ask(self, message: dict[str, Any], fds: Sequence[int]) -> Answer | None:
        self._requests += 1
        frame = await self._exchange(self._limits.wall_s, message | {"number": self._requests}, fds)
        answer = None if frame is None else _parse(frame, self._requests)
        if answer is None:
            self.kill()
        if answer is None or self._was_killed:
            await self.wait_for_end()
            return None
        self.answered_cpu_s += answer.cpu_s
        return answer

    async def _exchange(
        self, wall_s: float, message: dict[str, Any] | None = None, fds: Sequence[int] = ()
    ) -> bytes | None:
        """Send `message`, if any, and return the next frame; None if the interpreter ended first."""
        if self.end is not None:
            return None
        self._answer = self._loop.create_future()
        self._loop.add_reader(self._control.fileno(), self._receive)
        deadline = self._loop.call_later(wall_s, self._time_out)
        try:
            if message is not None:
                self._send(message, fds)
            frame = await self._answer
        except BaseException:
            self.kill()
            await self.wait_for_end()
            raise
        finally:
            deadline.cancel()
        self.stdout.pause()
        self.stderr.pause()
        return frame

    def _send(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)
        except OSError as error:  # it has just died, or untrusted code has closed its end or does not read
            self.kill(f"the session cannot be told: {error.strerror}" if error.errno in NO_ROOM else "")

    def _receive(self) -> None:
        """Read one frame; further data stays in the socket, which has a limited size."""
        try:
            frame = self._control.recv(_MAX_FRAME)
        except BlockingIOError:
            return
        except OSError:
            frame = b""
        self._loop.remove_reader(self._control.fileno())
        # No frame: it has ended, or it has become another program, which may run until the deadline.
        if frame and not self._answer.done():
            self._answer.set_result(frame)

    def _time_out(self) -> None:
        self.timed_out = True
        self.kill()


def _parse(frame: bytes, number: int) -> Answer | None:
    """Return None for anything but a well-formed answer to request `number`."""
    if len(frame) != _ANSWER.size:
        return None
    answer_number, code, exhausted, cpu_s, peak = _ANSWER.unpack(frame)
    if answer_number != number or not math.isfinite(cpu_s) or cpu_s < 0 or peak < 0:
        return None
    return Answer(code=code, exhausted=exhausted, cpu_s=cpu_s, peak_memory_bytes=peak)
