"""The owner's handle on the server of workspaces (`guest_workspace.py`): start it, send orders, receive ends."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from forge_env.core.errors import SandboxUnavailable
from sandboxes.guest.seccomp import seccomp_filter
from sandboxes.host.cgroups import Groups
from sandboxes.host.zygote import exited, require_supported_platform, spawn, why_not
from sandboxes.workspaces.box import BoxEnd

_PROGRAM = Path(__file__).parents[1] / "guest" / "guest_workspace.py"
_START_S, _CLOSE_S = 30.0, 10.0
_MAX_MESSAGE = 64 * 2**10


class ServedBox:
    """The `Keeper` of a workspace that the server has started."""

    end_s = 10.0

    def __init__(self, server: Server, number: int, ended: asyncio.Future[BoxEnd]) -> None:
        self.ended = ended
        self._server, self._number = server, number

    def kill(self, *, keep: int = 0) -> None:
        self._server.kill(self._number, keep=keep)

    def give_up(self) -> None:
        self._server.kill_all()

    def on_link_end(self) -> None:
        """Nothing to do: the server reports the end."""


class Server:
    """A running server. Create one with `await Server.start(...)`; end it with `await server.close()`."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process, self._control = process, control
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[BoxEnd]] = {}
        self._unsent: list[dict[str, Any]] = []
        self.alive = True
        self._loop.add_reader(control.fileno(), self._receive)

    @classmethod
    async def start(cls, groups: Groups | str) -> Server:
        """Start a server and wait until it takes orders. It ends when the calling thread ends, in whatever way.

        Args: groups: the control groups of its workspaces, which it removes if the owner is killed.
        """
        require_supported_platform()
        host_end, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with guest_end:
            process = spawn(_PROGRAM, guest_end.fileno())
        host_end.setblocking(False)
        host_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        server = cls(process, host_end)
        try:
            filters = {"strict": seccomp_filter(), "counted": seccomp_filter(counted=True)}
            tops = groups.tops if isinstance(groups, Groups) else []
            server._send(
                {
                    "owner": os.getpid(),
                    "privileged": os.geteuid() == 0,
                    "filters": {name: base64.b64encode(code).decode() for name, code in filters.items()},
                    "groups": [[str(top.parent), top.name] for top in tops],
                }
            )
            async with asyncio.timeout(_START_S):
                answer = await server._ready
            if "ready" not in answer:
                raise SandboxUnavailable(why_not(answer["failed"]))
        except BaseException as error:
            await server.close()
            if isinstance(error, TimeoutError):
                raise SandboxUnavailable(f"workspaces: their server did not start in {_START_S:g} s.") from error
            raise
        return server

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, number: int, family: int, fds: list[int]) -> ServedBox:
        """Start the workspace `number`, which waits for its order.

        Args:
            family: workspaces of one family share a user namespace, as they share files.
            fds: the socket on which it waits for its order, and the files for joining its control groups.
        """
        ended: asyncio.Future[BoxEnd] = self._loop.create_future()
        self._waiting[number] = ended
        self._send({"open": number, "family": family}, fds)
        return ServedBox(self, number, ended)

    def kill(self, number: int, *, keep: int = 0) -> None:
        """Kill a workspace; its files become the layer `keep`, unless that is 0. No-op if it has ended."""
        if number in self._waiting:
            self._send({"kill": number, "keep": keep})

    def drop_layer(self, number: int) -> None:
        self._send({"drop": number})

    def forget_family(self, number: int) -> None:
        self._send({"forget": number})

    def kill_all(self) -> None:
        """Kill the server, and with it every workspace."""
        self._process.kill()
        self._lose("the server of the workspaces was killed because it did not answer")

    async def close(self) -> None:
        """End the server and every workspace. Idempotent."""
        self._lose("the workspaces were closed")
        self._ready.cancel()
        await exited(self._process, _CLOSE_S)  # it ends at the end of its control socket
        self._process.kill()
        self._process.wait()

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send an order. One without descriptors waits if the socket is full: closing many at once can fill it."""
        if not self.alive:
            self._lose("the server of the workspaces is gone")
            return
        if self._unsent and fds is None:
            self._unsent.append(message)
            return
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], fds or [])
        except BlockingIOError:
            if fds is not None:
                self._lose("the server of the workspaces does not read its socket")
                return
            self._unsent.append(message)
            self._loop.add_writer(self._control.fileno(), self._send_rest)
        except OSError as error:
            self._lose(f"the server of the workspaces does not read its socket: {error.strerror}")

    def _send_rest(self) -> None:
        self._loop.remove_writer(self._control.fileno())
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self._send(message)

    def _receive(self) -> None:
        try:
            data = self._control.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose("the server of the workspaces died")
            return
        message = json.loads(data)
        if "ended" not in message:
            if not self._ready.done():
                self._ready.set_result(message)
            return
        ended = self._waiting.pop(message["ended"], None)
        if ended is not None and not ended.done():
            failure, kept = message.get("failed", ""), message.get("kept", 0)
            ended.set_result(BoxEnd(status=message.get("status", 0), kept=kept, failure=failure))

    def _lose(self, reason: str) -> None:
        if self.alive:
            self.alive = False
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
            self._control.close()
        if not self._ready.done():
            self._ready.set_result({"failed": reason})
        waiting, self._waiting = self._waiting, {}
        for ended in waiting.values():
            if not ended.done():
                ended.set_result(BoxEnd(failure=reason))
