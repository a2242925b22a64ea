"""The sandbox inside a container without namespaces: the container isolates, and the snippet is another user.

It serves one snippet or one session, then the host removes the container, and with it whatever that left. Imported by
`agent.py` only.
"""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

from contrib.docker.group import with_exact_processes
from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import Capabilities, Sandbox
from sandboxes.guest.seccomp import seccomp_filter
from sandboxes.host.cgroups import Groups
from sandboxes.host.controlled import GUEST
from sandboxes.host.selftest import denials_of, look, privileges_of, with_limits
from sandboxes.host.spawner import Spawner
from sandboxes.host.zygote import ExitReport

_PROGRAM = Path(__file__).with_name("guest_plain.py")


async def check_plain_isolation(sandbox: Sandbox, groups: Groups | str) -> Capabilities:
    """Return what is enforced. Raises SandboxUnavailable if a canary escapes."""
    return await with_limits(_judge(await look(sandbox)), sandbox, groups)


class PlainZygote(Spawner):
    """Starts one interpreter per snippet, as a user of its own."""

    def __init__(self) -> None:
        super().__init__(str(_PROGRAM), str(GUEST))
        # Outside of used ranges: the limit on processes counts the user's processes on the whole machine.
        user = 0x70000000 + int.from_bytes(os.urandom(3), "big")
        self._more = {"filter": base64.b64encode(seccomp_filter()).decode(), "user": user, "folder": "/tmp"}

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]:
        return super().submit(with_exact_processes(order) | self._more, fds[: len(fds) - order.get("groups", 0)])


def _judge(seen: dict[str, Any]) -> Capabilities:
    escapes = {
        "it can read a private file of the agent": seen["secret"] or seen["shadow"],
        **privileges_of(seen),
        "it is the agent's user": seen["uid"] == os.geteuid(),
    }
    reasons = [reason for reason, escaped in escapes.items() if escaped]
    if reasons:
        raise SandboxUnavailable(f"the self-test failed, because {'; '.join(reasons)}.")
    return Capabilities(
        backend="docker",
        pid_namespace=False,
        mount_namespace=True,  # the container provides this and the next two
        network_namespace=True,
        ipc_namespace=True,
        seccomp=True,
        uid_drop=True,
        memory_limit="rlimit",
        **denials_of(seen),
    )
