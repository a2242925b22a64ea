"""The sandbox inside a container without namespaces: the container isolates, and the snippet is another user.

It serves one snippet or one session, then the host removes the container, and with it whatever that left. Imported by
`agent.py` only.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from contrib.docker.group import with_exact_processes
from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import Capabilities, Sandbox
from sandboxes.guest.seccomp import seccomp_filter
from sandboxes.host.cgroup_slots import SlotGroup
from sandboxes.host.cgroups import Groups
from sandboxes.host.controlled import FLAGS, GUEST
from sandboxes.host.selftest import LIMITS, denials_of, look, privileges_of, with_limits
from sandboxes.host.zygote import ExitReport

_PROGRAM = Path(__file__).with_name("guest_plain.py")


async def check_plain_isolation(sandbox: Sandbox, groups: Groups | str) -> Capabilities:
    """Return what is enforced. Raises SandboxUnavailable if a canary escapes."""
    return await with_limits(_judge(await look(sandbox)), sandbox, groups)


class PlainZygote:
    """A `Driver` that starts one interpreter per snippet."""

    alive = True

    def __init__(self) -> None:
        # Outside of used ranges: the limit on processes counts the user's processes on the whole machine.
        self._user = 0x70000000 + int.from_bytes(os.urandom(3), "big")
        self._filter = base64.b64encode(seccomp_filter()).decode()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._numbers = 0
        self._loop = asyncio.get_running_loop()

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]:
        """Start one snippet; return its number and the future of its exit report."""
        self._numbers += 1
        number, ended = self._numbers, self._loop.create_future()
        fds = fds[: len(fds) - order.get("groups", 0)]
        order = with_exact_processes(order) | {"filter": self._filter, "user": self._user}
        process = self._processes[number] = _spawn(order, fds)
        pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(pidfd, self._on_exit, number, pidfd, ended)
        return number, ended

    def kill(self, number: int) -> None:
        if number in self._processes:
            self._processes[number].kill()

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()

    def open_helper(self, slot: int, groups: SlotGroup) -> None:
        """Nothing to do: the container has one group."""

    def close_helper(self, slot: int) -> None:
        """See `open_helper`."""

    async def close(self) -> None:
        self.alive = False
        self.kill_all()

    def _on_exit(self, number: int, pidfd: int, ended: asyncio.Future[ExitReport]) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        process = self._processes.pop(number)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # os.wait4 has already reaped it
        cpu_s, peak_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        ended.set_result(ExitReport(status=status, cpu_s=cpu_s, peak_memory_bytes=peak_bytes))


def _spawn(order: dict[str, Any], fds: list[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *FLAGS, str(_PROGRAM), str(GUEST), json.dumps(order), *map(str, fds)],
        env={"PYTHONHASHSEED": "0"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,
    )


def _judge(seen: dict[str, Any]) -> Capabilities:
    escapes = {
        "it can read a private file of the agent": seen["secret"] or seen["shadow"],
        "it can reach the network": seen["connects"],
        "its processes are not limited": not 0 < seen["forks"] < LIMITS.processes,
        "its memory is not limited": seen["allocates"],
        "it can mount": seen["mounts"],
        "it can write to its root": seen["writes_root"],
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
