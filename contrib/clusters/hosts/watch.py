"""HostWatch: a run's one actor on each host. It reports deaths there, and ends the run's processes there.

The controller cannot see the processes of another machine, and they cannot see the controller. So each host has a watch
with a pidfd of every process of the run, and with a lease that the controller renews by asking for news. The lease runs
out if the controller or the network is gone. Then, or when the host's own program ends, the watch ends every process of
the run on its host, and itself.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

from monarch.actor import Actor, concurrent_endpoint

from contrib.clusters.addresses import interface_of, own_address
from forge_env.core.errors import ServiceError
from forge_env.runtime.machines import HostInfo
from forge_env.runtime.process.children import end_processes, kill, pidfd_of, processes_with
from forge_env.runtime.process.ranks import LOOPBACK
from forge_env.utils.exits import exit_code
from forge_env.utils.owners import is_mine

NEWS_S = 1.0  # how long `news` waits for a death
CODE_S = 0.5


class HostWatch(Actor):
    def __init__(self, *, lease_s: float, controller_pid: int, job_folder: str) -> None:
        """
        Args:
            lease_s: if `news` is not called for this number of seconds, the run is over for this host.
            controller_pid: of a controller on this machine, so that its death is noticed at once; 0 for another
                machine.
            job_folder: the folder of sockets if the hosts were started for this run only. If the run ends without
                `close`, their programs are ended, and the folder is removed. "" for hosts that wait for other runs.
        """
        self._lease_s = lease_s
        self._job_folder = job_folder
        self._host_pid = os.getppid()
        self._temp = tempfile.mkdtemp(prefix="forge_env_")
        self._pids: set[int] = set()
        self._dead: asyncio.Queue[tuple[int, int | None]] = asyncio.Queue()
        self._ends: set[asyncio.Task[None]] = set()
        self._lease_ends = time.monotonic() + lease_s
        self._controller_pid = controller_pid
        threading.Thread(target=self._keep_lease, name="lease", daemon=True).start()

    @concurrent_endpoint
    async def info(self, controller: tuple[str, int] | None, log_dir: str, token: str) -> HostInfo:
        """Describe this host.

        Args:
            controller: an address and a port on the way to the controller; None for one on this machine.
            log_dir: the folder of the run's logs, as the controller names it.
            token: name of a file in that folder that the controller has made.
        """
        logs = Path(log_dir)
        if not (logs / token).is_file():
            logs = _logs_of_this_user() / token.lstrip(".")
            logs.mkdir(mode=0o700, exist_ok=True)
        address = own_address(*controller) if controller else LOOPBACK
        return HostInfo(
            name=socket.gethostname(),
            watch_pid=os.getpid(),
            temp=self._temp,
            logs=str(logs),
            address=address,
            interface=interface_of(address),
        )

    @concurrent_endpoint
    async def watch(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._dead.put_nowait((pid, None))
            return
        loop = asyncio.get_running_loop()
        self._pids.add(pid)

        def on_death() -> None:
            self._pids.discard(pid)
            loop.remove_reader(pidfd)
            end = loop.create_task(self._note_end(pid, pidfd))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)

        loop.add_reader(pidfd, on_death)

    async def _note_end(self, pid: int, pidfd: int) -> None:
        """Report an end; its exit code is known once the program of this host has waited for the process."""
        deadline = time.monotonic() + CODE_S
        while (code := exit_code(pidfd)) is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        os.close(pidfd)
        self._dead.put_nowait((pid, code))

    @concurrent_endpoint
    async def kill(self, pid: int) -> None:
        if pid in self._pids:
            await asyncio.to_thread(end_processes, [pid])

    @concurrent_endpoint
    async def news(self) -> dict[int, int | None]:
        """Renew the lease; returns the processes that died, as soon as one dies, or none after a second: their numbers
        and exit codes, see `forge_env.utils.exits`."""
        self._lease_ends = time.monotonic() + self._lease_s
        try:
            async with asyncio.timeout(NEWS_S):
                dead = [await self._dead.get()]
        except TimeoutError:
            return {}
        while not self._dead.empty():
            dead.append(self._dead.get_nowait())
        return dict(dead)

    @concurrent_endpoint
    async def close(self) -> None:
        """End every other process of the run on this host, and remove what they left."""
        await asyncio.to_thread(self._clean_up)

    def _keep_lease(self) -> None:
        """Wait, in a thread of its own, for the end of the lease, of the host's program or of a controller on this
        machine."""
        parents = [pidfd_of(pid) for pid in (self._host_pid, self._controller_pid) if pid]
        while (remaining_s := self._lease_ends - time.monotonic()) > 0:
            if select.select(parents, [], [], remaining_s)[0]:
                break
        self._clean_up()
        if self._job_folder:
            shutil.rmtree(self._job_folder, ignore_errors=True)
            kill(self._host_pid)
        os._exit(1)

    def _clean_up(self) -> None:
        end_processes(
            processes_with(f"TMPDIR={self._temp}")
        )  # before the folders are removed: these processes write to them
        shutil.rmtree(self._temp, ignore_errors=True)


def _logs_of_this_user() -> Path:
    """The folder for logs of a host that does not share the controller's disk; one for each user."""
    logs = Path(tempfile.gettempdir()) / f"forge_env_logs_{os.geteuid()}"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    if logs.is_symlink() or not is_mine(logs.lstat()):
        raise ServiceError(f"{logs}, the folder for logs of this host, is another user's: remove it, or set TMPDIR")
    return logs
