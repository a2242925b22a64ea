"""Starts the processes of a backend without a zygote: an interpreter for every snippet and session."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sandboxes.host.cgroup_slots import SlotGroup
from sandboxes.host.controlled import FLAGS
from sandboxes.host.zygote import ExitReport

GUEST_PLAIN = Path(__file__).with_name("guest_plain.py")


class Spawner:
    """A `Driver`. Args: program: a program of the guest and its first arguments; an order and descriptors follow."""

    def __init__(self, *program: str) -> None:
        self.alive, self.reason = True, ""
        self._program = program
        self._numbers = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._reports: dict[int, asyncio.Future[ExitReport]] = {}
        self._loop = asyncio.get_running_loop()

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]:
        """Start one snippet; return its number and the future of its exit report. Raises OSError."""
        process = subprocess.Popen(
            [sys.executable, *FLAGS, *self._program, json.dumps(order), *map(str, fds)],
            env={"PYTHONHASHSEED": "0"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
        )
        pidfd = os.pidfd_open(process.pid)
        self._numbers += 1
        number, report = self._numbers, self._loop.create_future()
        self._processes[number], self._reports[number] = process, report
        self._loop.add_reader(pidfd, self._on_exit, number, pidfd)
        return number, report

    def kill(self, number: int) -> None:
        if number in self._processes:
            _kill_group(self._processes[number].pid)

    def kill_all(self) -> None:
        for number in tuple(self._processes):
            self.kill(number)

    def open_helper(self, slot: int, groups: SlotGroup) -> None:
        """Nothing to do: a slot has no group of its own."""

    def close_helper(self, slot: int) -> None:
        """See `open_helper`."""

    async def close(self) -> None:
        self.alive = False
        waiting = tuple(self._reports.values())
        self.kill_all()
        if waiting:
            await asyncio.wait(waiting)

    def _on_exit(self, number: int, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        process, report = self._processes.pop(number), self._reports.pop(number)
        _kill_group(process.pid)  # background processes; before the wait, which frees the pid
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        failure = "" if self.alive else "the sandbox was closed"
        cpu_s, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        report.set_result(ExitReport(status=status, cpu_s=cpu_s, peak_memory_bytes=peak, failure=failure))


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
