"""The owner's handle on one running workspace: its pid 1, and the link to it. A snapshot replaces it by a new one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from contrib.workspaces.contract import Network, NetworkMode, WorkspaceLimits
from contrib.workspaces.machines.proxy import ports_of
from forge_env.core.errors import SandboxError, UserError
from sandboxes.host.streams import sealed_file

_MAX_MESSAGE, _MAX_FDS = 64 * 2**10, 64
_MAX_INLINE = 16 * 2**10
_START_S = 30.0
GRACE_S = 10.0
"""Seconds that pid 1 may take to end what it was told to kill, before the whole workspace is killed."""


@dataclass(slots=True)
class Answer:
    """The end of a request, from pid 1 of the workspace."""

    status: int = 0
    """Wait status, as `os.waitpid` returns it."""
    cpu_s: float = 0.0
    has_started: bool = True
    """Whether a program of the workspace ran."""
    start_errno: int = 0
    """Number of the error that kept pid 1 from starting another process."""
    is_refused: bool = False
    """Whether it was refused before a program of the workspace ran, for `reason` or with `errno`."""
    errno: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxEnd:
    """The end of a workspace's pid 1, or `failure`: what broke in the sandbox itself."""

    status: int = 0
    kept: int = 0
    """Number of the layer that its files became; 0 for none."""
    failure: str = ""


class Keeper(Protocol):
    """Whoever has started pid 1 of a workspace: it can kill it from outside, and learns of its end."""

    end: asyncio.Future[BoxEnd]
    """Never raises."""
    end_s: float
    """Seconds that an end may take."""

    def kill(self, *, keep: int = 0) -> None:
        """Kill the workspace with all its processes. Args: keep: the layer that its files become, unless it is 0."""
        ...

    def give_up(self) -> None:
        """End `end` although the end has not been reported in time."""
        ...

    def on_link_end(self) -> None:
        """Pid 1 has closed its link, or has ended."""
        ...


class Box:
    """One running workspace. Use: construct, `await begin(order)`, then requests until `alive` is false.

    Args:
        link: the socket to its pid 1, of the kind SOCK_SEQPACKET. The box closes it.
    """

    def __init__(self, link: socket.socket, keeper: Keeper) -> None:
        self.listeners: list[socket.socket] = []
        self.keeper, self._link = keeper, link
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._waiting: dict[int, tuple[asyncio.Future[Answer | None], Answer]] = {}
        self._ready: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        link.setblocking(False)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        self._is_open = True
        self._loop.add_reader(link.fileno(), self._receive)
        keeper.end.add_done_callback(self._on_end)

    @property
    def alive(self) -> bool:
        return self._is_open and not self.keeper.end.done()

    @property
    def failure(self) -> str:
        """What broke in the sandbox itself and has ended it; "" for nothing."""
        return self.keeper.end.result().failure if self.keeper.end.done() else ""

    async def begin(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send its order, and wait until it takes requests; return {} or {"failed": text, "errno": number}."""
        self._send(order, ())
        try:
            done, _ = await asyncio.wait([self._ready], timeout=_START_S)
        except BaseException:
            await self.end()
            raise
        answer = self._ready.result() if done else {"failed": f"it was not ready in {_START_S:g} s"}
        if "failed" not in answer:
            return {}
        await self.end()
        return answer

    def start(self, request: dict[str, Any], fds: Sequence[int]) -> tuple[int, asyncio.Future[Answer | None]]:
        """Send a request; return its number, and the future of its answer: None if the workspace ended before."""
        self._requests += 1
        number = self._requests
        future: asyncio.Future[Answer | None] = self._loop.create_future()
        self._waiting[number] = (future, Answer())
        body = json.dumps(request).encode("utf-8", "surrogateescape")
        if len(body) <= _MAX_INLINE:
            self._send(request | {"run": number}, fds)
        else:
            fd = sealed_file(body)
            try:
                self._send({"run": number, "body": True}, [fd, *fds])
            finally:
                os.close(fd)
        return number, future

    def kill(self, number: int, *, only_below: bool = False) -> None:
        """Kill a command and what is below it; or only what is below it."""
        if number in self._waiting:
            self._send({"kill": number, "only_below": only_below}, ())

    async def end_processes(self) -> None:
        """Raises SandboxError if the workspace does not answer."""
        self._requests += 1
        future: asyncio.Future[Answer | None] = self._loop.create_future()
        self._waiting[self._requests] = (future, Answer())
        self._send({"end_processes": self._requests}, ())
        await self.answer_within(future, GRACE_S)

    async def answer_within(self, future: asyncio.Future[Answer | None], timeout_s: float) -> Answer | None:
        """Wait for an answer; kill the workspace if none comes in time."""
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if not done:
            await self.end()
        return await future

    async def end(self, *, keep: int = 0) -> BoxEnd:
        """Kill the workspace, and wait until every process of it is gone. Idempotent."""
        future = self.keeper.end
        self.keeper.kill(keep=keep)
        done, _ = await asyncio.wait([future], timeout=self.keeper.end_s)
        if not done:
            self.keeper.give_up()
        return await asyncio.shield(future)

    def _on_end(self, _: object) -> None:
        while self._is_open and self._receive():
            pass
        if self._is_open:
            self._close_link()
        for listener in self.listeners:
            listener.close()
        if not self._ready.done():
            self._ready.set_result({"failed": self.keeper.end.result().failure or "its first process was killed"})
        waiting, self._waiting = self._waiting, {}
        for future, _answer in waiting.values():
            if not future.done():
                future.set_result(None)

    def _close_link(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._link.fileno())
        self._link.close()

    def _send(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        try:
            socket.send_fds(self._link, [json.dumps(message).encode()], list(fds))
        except BlockingIOError:
            raise SandboxError("the workspace does not read its requests; close it") from None
        except OSError as error:  # of one that has just ended, `_on_end` answers
            if self._is_open and error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise SandboxError(f"the workspace cannot be told: {error.strerror}") from error

    def _receive(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._link, _MAX_MESSAGE, _MAX_FDS)
        except BlockingIOError:
            return False
        except OSError:
            data, fds = b"", []
        if not data:
            self._close_link()
            self.keeper.on_link_end()
            return False
        self.listeners += [socket.socket(fileno=fd) for fd in fds]
        try:
            message = dict(json.loads(data))
            if {"end", "refused", "unstarted"} & message.keys():
                self._on_answer(message)
            elif not self._ready.done():
                self._ready.set_result(message)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):  # it is pid 1 no more
            self.keeper.kill()
        return True

    def _on_answer(self, message: dict[str, Any]) -> None:
        number = int(message.get("end", message.get("refused", message.get("unstarted", 0))))
        if number not in self._waiting:
            return
        future, answer = self._waiting[number]
        if "unstarted" in message:
            answer.has_started = False
            return
        if "refused" in message:
            answer.is_refused = True
            answer.errno, answer.reason = int(message.get("errno") or 0), str(message["reason"])
            return
        answer.status, answer.cpu_s = int(message.get("status", 0)), float(message.get("cpu_s", 0.0))
        answer.start_errno = int(message.get("failed") or 0)
        del self._waiting[number]
        if not future.done():
            future.set_result(answer)


def order_of(limits: WorkspaceLimits, network: Network) -> dict[str, Any]:
    """Return what pid 1 is told of limits and network. Raises UserError for a number that is out of range."""
    for name, least in (
        ("memory_bytes", 8 * 2**20),
        ("processes", 4),
        ("disk_bytes", 2**16),
        ("files", 64),
        ("cpus", 0.01),
    ):
        if getattr(limits, name) < least:
            raise UserError(f"{name} of a workspace is {getattr(limits, name)}; it must be at least {least}.")
    for name in ("wall_s", "output_bytes", "transfer_bytes"):
        if getattr(limits, name) <= 0:
            raise UserError(f"{name} of a workspace is {getattr(limits, name)}; it must be above 0.")
    if network.listeners and network.mode is NetworkMode.NONE:
        raise UserError("a workspace without a network has no listeners: open it with NetworkMode.LOOPBACK.")
    proxy_ports = ports_of(network)
    for port in set(network.listeners).intersection(proxy_ports):
        raise UserError(f"port {port} is the proxy's: leave it out of listeners, or use NetworkMode.LOOPBACK.")
    return {
        "memory_bytes": limits.memory_bytes,
        "processes": limits.processes,
        "disk_bytes": limits.disk_bytes,
        "files": limits.files,
        "loopback": network.mode is not NetworkMode.NONE,
        "listeners": [*network.listeners, *proxy_ports],
    }
