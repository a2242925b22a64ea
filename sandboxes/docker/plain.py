"""The sandbox inside a container whose engine forbids namespaces: the container is the ring, another user the wall.

It serves one snippet or one session, then the host removes the container, and with it whatever that left. Imported by
`docker_agent.py` only.
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

from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import Capabilities, Sandbox
from sandboxes.docker.group import with_exact_processes
from sandboxes.host.cgroup_slots import Slot
from sandboxes.host.cgroups import Groups
from sandboxes.host.seccomp import seccomp_filter
from sandboxes.host.selftest import LIMITS, denials_of, look, privileges_of, with_limits
from sandboxes.host.zygote import Ended

_GUEST = Path(__file__).parents[1] / "guest" / "guest_plain.py"


async def check_plain_isolation(sandbox: Sandbox, groups: Groups | str) -> Capabilities:
    """Return what is enforced. Raises SandboxUnavailable if a canary gets out."""
    return await with_limits(_judge(await look(sandbox)), sandbox, groups)


class PlainZygote:
    """A `Driver` that starts an interpreter for each snippet."""

    alive = True

    def __init__(self) -> None:
        # Far from what others use: the limit of processes counts those of the user on the whole machine.
        self._user = 0x70000000 + int.from_bytes(os.urandom(3), "big")
        self._filter = base64.b64encode(seccomp_filter()).decode()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._numbers = 0
        self._loop = asyncio.get_running_loop()

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[Ended]]:
        """Start one snippet; return its number and the future of its end."""
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

    def open_helper(self, slot: int, groups: Slot) -> None:
        """There is one group for all."""

    def close_helper(self, slot: int) -> None:
        """See `open_helper`."""

    async def close(self) -> None:
        self.alive = False
        self.kill_all()

    def _on_exit(self, number: int, pidfd: int, ended: asyncio.Future[Ended]) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        process = self._processes.pop(number)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # it was waited for
        cpu_s, peak_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        ended.set_result(Ended(status=status, cpu_s=cpu_s, peak_memory_bytes=peak_bytes))


def _spawn(order: dict[str, Any], fds: list[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", str(_GUEST), json.dumps(order), *map(str, fds)],
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
    found = [text for text, escaped in escapes.items() if escaped]
    if found:
        raise SandboxUnavailable(f"the self-test failed, because {'; '.join(found)}.")
    return Capabilities(
        backend="docker",
        pid_namespace=False,
        mount_namespace=True,  # this and the next two are the container's
        network_namespace=True,
        ipc_namespace=True,
        seccomp=True,
        uid_drop=True,
        memory_limit="rlimit",
        **denials_of(seen),
    )
