"""The "subprocess" sandbox: plain child processes. It does NOT isolate: code in it can do whatever this user can.

Use it for debugging, and for code that you would run by hand. It has the contract of the isolating backends, so an
environment can be tried on a machine that allows no isolating one. It must be named and explicitly allowed.

Enforced: a fresh process and folder per run; the wall-clock limit; CPU time, address space and file size per process;
capped output. Not enforced: the code can reach this user's files, processes, network and environment variables; the
number of processes and `tmp_bytes` are not limited; background processes that leave their process group survive.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

from forge_env.core.errors import UserError
from forge_env.core.sandbox import Capabilities
from sandboxes.host.cgroup_slots import SlotGroup
from sandboxes.host.controlled import FLAGS, GUEST
from sandboxes.host.namespace import NamespaceSandbox
from sandboxes.host.zygote import ExitReport
from sandboxes.settings import AUTO

NAME = "subprocess (insecure)"
_CAPABILITIES = Capabilities(
    backend=NAME,
    pid_namespace=False,
    mount_namespace=False,
    network_namespace=False,
    ipc_namespace=False,
    seccomp=False,
    uid_drop=False,
    memory_limit="rlimit",
    process_limit="none",
    missing=(f"everything that isolates: use the {' or the '.join(AUTO)} sandbox for code that you do not trust",),
)


async def open_insecure(
    *, allow_insecure: bool = False, slots: int | None = None, max_sessions: int = 256
) -> NamespaceSandbox:
    """Open the sandbox, if `allow_insecure` is true or FORGE_ENV_ALLOW_INSECURE_SANDBOX is 1."""
    if not (allow_insecure or os.environ.get("FORGE_ENV_ALLOW_INSECURE_SANDBOX") == "1"):
        choice = " or ".join(f'"{name}"' for name in AUTO)
        raise UserError(
            "The subprocess sandbox isolates nothing: code in it can read, change and send whatever you can. Use "
            f"{choice}, or allow it with allow_insecure=True or FORGE_ENV_ALLOW_INSECURE_SANDBOX=1."
        )

    async def start() -> Spawner:
        return Spawner()

    slots = slots if slots is not None else 2 * len(os.sched_getaffinity(0))
    sandbox = NamespaceSandbox(
        await start(), "not used", slots=slots, max_sessions=max_sessions, start=start, backend=NAME
    )
    sandbox.capabilities = _CAPABILITIES
    return sandbox


class Spawner:
    """Starts a plain interpreter for every snippet and session; a `Driver`."""

    def __init__(self) -> None:
        self.alive = True
        self._numbers = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: dict[int, asyncio.Future[ExitReport]] = {}
        self._loop = asyncio.get_running_loop()

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]:
        """Start one snippet; return its number and the future of its exit report. Raises OSError."""
        self._numbers += 1
        number, ended = self._numbers, self._loop.create_future()
        folder = tempfile.mkdtemp(prefix="forge-env-insecure-")
        try:
            process = _spawn(order | {"folder": folder}, fds)
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._processes[number], self._ended[number] = process, ended
        self._loop.add_reader(pidfd, self._on_exit, number, pidfd, folder)
        return number, ended

    def kill(self, number: int) -> None:
        if number in self._processes:
            _kill_group(self._processes[number].pid)

    def kill_all(self) -> None:
        for number in tuple(self._processes):
            self.kill(number)

    def open_helper(self, slot: int, groups: SlotGroup) -> None:
        raise NotImplementedError("there are no control groups here")

    def close_helper(self, slot: int) -> None:
        raise NotImplementedError("there are no control groups here")

    async def close(self) -> None:
        """End every process and wait for it."""
        self.alive = False
        waiting = tuple(self._ended.values())
        self.kill_all()
        if waiting:
            await asyncio.wait(waiting)

    def _on_exit(self, number: int, pidfd: int, folder: str) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        process, ended = self._processes.pop(number), self._ended.pop(number)
        _kill_group(process.pid)  # background processes; before the wait, which frees the pid
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        shutil.rmtree(folder, ignore_errors=True)
        failure = "" if self.alive else "the sandbox was closed"
        cpu_s, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        ended.set_result(ExitReport(status=status, cpu_s=cpu_s, peak_memory_bytes=peak, failure=failure))


def _spawn(order: dict[str, Any], fds: list[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *FLAGS, str(GUEST / "guest_insecure.py"), json.dumps(order), *map(str, fds)],
        env={"PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin", "HOME": order["folder"], "LANG": "C.UTF-8"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,
    )


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
