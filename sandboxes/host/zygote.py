"""The host's handle on one zygote process (`guest.py`): start it, submit requests, receive their exit reports."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from forge_env.core.errors import SandboxUnavailable, UserError
from forge_env.core.sandbox import ExecRequest, Limits
from sandboxes.guest.seccomp import seccomp_filter
from sandboxes.host.cgroup_slots import SlotGroup
from sandboxes.host.controlled import GUEST, Controlled, why_not
from sandboxes.host.packages import NO_PACKAGES, Packages, cannot_import

BACKSTOP_PROCESSES = 16
BODY_PREFIX = struct.Struct("<Q")
"""Length of the JSON at the start of a request; guest_snippet.py unpacks it."""
NO_FILES: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport:
    """The kernel's report on one snippet, or `failure`: what broke in the sandbox itself."""

    status: int = 0
    """Wait status, as `os.waitpid` returns it."""
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    spent: bool = False
    """The network namespace of the slot was discarded: the next run there waits for a new one."""
    failure: str = ""


def encode(request: ExecRequest) -> tuple[bytes, bytes]:
    """Return the input of the guest: the request without its limits, and the standard input."""
    call = request.call and {"function": request.call.function, "args": list(request.call.args)}
    body = {"code": request.code, "setup": request.setup, "call": call}
    return encode_body(body, request.contents()), request.stdin.encode("utf-8", "replace")


def encode_body(body: dict[str, Any], files: Mapping[str, bytes] = NO_FILES) -> bytes:
    """Return the input of `guest_snippet.begin`: the length of the JSON, the JSON, the contents of the files."""
    text = json.dumps(body | {"files": [[path, len(data)] for path, data in files.items()]}).encode()
    return b"".join((BODY_PREFIX.pack(len(text)), text, *files.values()))


def guest_limits(limits: Limits, *, in_group: bool = False) -> dict[str, int]:
    """Return the limits that the kernel enforces, as the guest sets them.

    Args: in_group: a control group enforces memory and processes, and reports when a limit is hit.
    """
    cpu_s = whole_cpu_s(limits)
    return {
        "cpu_s": cpu_s,
        "cpu_kill_s": cpu_s + 1,
        "memory_bytes": limits.memory_bytes,
        "memory_is_counted": int(in_group),
        "processes": limits.processes + (BACKSTOP_PROCESSES if in_group else 0),
        "file_bytes": limits.file_bytes,
        "tmp_bytes": limits.tmp_bytes,
    }


def whole_cpu_s(limits: Limits) -> int:
    return max(1, math.ceil(limits.cpu_s))  # RLIMIT_CPU counts whole seconds


class Driver(Protocol):
    """Starts and ends the processes of a backend, as `Zygote` does."""

    alive: bool
    reason: str

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]: ...
    def kill(self, number: int) -> None: ...
    def kill_all(self) -> None: ...
    def open_helper(self, slot: int, groups: SlotGroup) -> None: ...
    def close_helper(self, slot: int) -> None: ...
    async def close(self) -> None: ...


class Zygote(Controlled[ExitReport]):
    """A running zygote. Create one with `await Zygote.start(...)`; end it with `await zygote.close()`."""

    program = GUEST / "guest.py"
    who = "the zygote"
    end = ExitReport
    end_key = "run"
    close_s = 5.0

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        super().__init__(process, control)
        self._helpers: dict[int, socket.socket] = {}  # by slot
        self._last: dict[int, int] = {}  # the last run of each slot
        self._numbers = 0
        self._importing = ""  # the module that the zygote is importing
        self._packages = NO_PACKAGES

    @classmethod
    async def start(cls, *, preimport: tuple[str, ...], packages: Packages = NO_PACKAGES) -> Zygote:
        zygote = cls._spawn()
        zygote._packages = packages
        names = {"preimport": [*preimport, *packages.imports], "packages": list(packages.paths)}
        await zygote._begin({**names, "filter": base64.b64encode(seccomp_filter()).decode()})
        return zygote

    def _refusal(self, answer: dict[str, Any]) -> UserError:
        if answer.get("errno") is not None:
            return SandboxUnavailable(why_not(answer["failed"]))
        if self._importing:
            return cannot_import(self._importing, answer["failed"], answer.get("missing"), self._packages.imports)
        return SandboxUnavailable(f"namespace sandbox: its first process did not start: {answer['failed']}.")

    def open_helper(self, slot: int, groups: SlotGroup) -> None:
        """Start the helper of `slot` in its control groups, unless it runs. Raises OSError."""
        if slot in self._helpers:
            return
        fds = groups.join_files()
        try:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with its:
                self._send({"helper": slot}, [its.fileno(), *fds])  # if it cannot be sent, the helper's socket ends
        finally:
            for fd in fds:
                os.close(fd)
        ours.setblocking(False)
        self._helpers[slot], self._last[slot] = ours, 0
        self._loop.add_reader(ours.fileno(), self._receive, ours, partial(self.close_helper, slot))

    def close_helper(self, slot: int) -> None:
        """End the helper of `slot`, with its run; the next run there gets a new one."""
        helper = self._helpers.pop(slot, None)
        if helper is not None:
            self._loop.remove_reader(helper.fileno())
            helper.close()
            self._take({"run": self._last[slot], "failed": "the helper of the slot has ended"})

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]:
        """Start one snippet; return its number and the future of its exit report, which never raises."""
        self._numbers += 1
        self._last[order["slot"]] = self._numbers
        exit_report = self._waiting[self._numbers] = self._loop.create_future()
        self._tell(order["slot"], order | {"run": self._numbers}, fds, self._numbers)
        return self._numbers, exit_report

    def kill(self, number: int) -> None:
        """Kill every process of snippet `number`; its future then resolves. No-op if it has ended."""
        if number in self._waiting:
            self._tell(next(slot for slot, last in self._last.items() if last == number), {"kill": number})

    def _tell(self, slot: int, message: dict[str, Any], fds: Sequence[int] = (), number: int = 0) -> None:
        helper = self._helpers.get(slot)
        if helper is None:
            self._send(message, fds, number)
            return
        try:
            socket.send_fds(helper, [json.dumps(message).encode()], fds)
        except OSError:
            self.close_helper(slot)

    def _lose(self, reason: str) -> None:
        super()._lose(reason)
        for slot in tuple(self._helpers):
            self.close_helper(slot)

    def _note(self, message: dict[str, Any]) -> None:
        if "importing" in message:
            self._importing = message["importing"]
        else:
            super()._note(message)

    def _end(self, message: dict[str, Any]) -> ExitReport:
        failure = message.pop("failed", "")
        return ExitReport(**message, failure=failure and f"the zygote could not start it: {failure}")
