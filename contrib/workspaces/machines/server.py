"""The owner's handle on the server of workspaces (`guest_workspace.py`): start it, send orders, receive ends."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from contrib.workspaces.guest import WORKSPACE_GUEST
from contrib.workspaces.machines.box import BoxEnd
from forge_env.core.errors import SandboxUnavailable, UserError
from sandboxes.guest.seccomp import seccomp_filter
from sandboxes.host.cgroups import Groups
from sandboxes.host.controlled import Controlled, why_not


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


class Server(Controlled[BoxEnd]):
    """A running server. Create one with `await Server.start(...)`; end it with `await server.close()`."""

    program = WORKSPACE_GUEST / "guest_workspace.py"
    who = "the server of the workspaces"
    end = BoxEnd
    end_key = "ended"
    close_s = 10.0
    closed = "the workspaces were closed"

    @classmethod
    async def start(cls, groups: Groups | str) -> Server:
        """Start a server and wait until it takes orders.

        Args: groups: the control groups of its workspaces, which it removes if the owner is killed.
        """
        server = cls._spawn()
        filters = {"strict": seccomp_filter(), "counted": seccomp_filter(counted=True)}
        tops = groups.tops if isinstance(groups, Groups) else []
        await server._begin(
            {
                "filters": {name: base64.b64encode(code).decode() for name, code in filters.items()},
                "groups": [[str(top.parent), top.name] for top in tops],
            }
        )
        return server

    def open(self, number: int, family: int, fds: list[int]) -> ServedBox:
        """Start the workspace `number`, which waits for its order.

        Args:
            family: workspaces of one family share a user namespace, as they share files.
            fds: the socket on which it waits for its order, and the files for joining its control groups.
        """
        return ServedBox(self, number, self._work(number, {"open": number, "family": family}, fds))

    def kill(self, number: int, *, keep: int = 0) -> None:
        """Kill a workspace; its files become the layer `keep`, unless that is 0. No-op if it has ended."""
        if number in self._waiting:
            self._send({"kill": number, "keep": keep})

    def drop_layer(self, number: int) -> None:
        self._send({"drop": number})

    def forget_family(self, number: int) -> None:
        self._send({"forget": number})

    def _refusal(self, answer: dict[str, Any]) -> UserError:
        is_late = "late" in answer
        return SandboxUnavailable(
            f"workspaces: their server did not start: {answer['failed']}." if is_late else why_not(answer["failed"])
        )
