"""Hosts: connects the controller to the hosts of a run, watches them, and ends what runs there.

On each host a program of ours (contrib/clusters/host.py) waits for a run; `HostSettings` tells who starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forge_env
from contrib.clusters.addresses import own_address
from forge_env.core.errors import ServiceError, UserError
from forge_env.runtime.calls.answers import within
from forge_env.runtime.host_settings import HostSettings, find_workers
from forge_env.runtime.machines import HostInfo, Machines
from forge_env.runtime.process.monarch_files import short_temporary_files
from forge_env.runtime.process.ranks import LOOPBACK
from forge_env.utils.exits import how_it_ended

RETRY_S = 0.5  # between two tries to reach a host


@dataclass(slots=True, kw_only=True)
class _Host:
    info: HostInfo
    watch: Any
    mesh: Any
    """Monarch's mesh of the watch's process."""
    on_death: dict[int, Callable[..., None]]
    """By process id, the function to call with the reason when the process ends."""
    loss: asyncio.Future[str]
    """Done when the host was given up, with the reason."""

    @property
    def loss_reason(self) -> str:
        """The reason for giving the host up; "" while it answers."""
        return self.loss.result() if self.loss.done() else ""

    def give_up(self, reason: str) -> None:
        if not self.loss.done():
            self.loss.set_result(reason)


class Hosts(Machines):
    """The hosts of one run, in the order of their settings; `Launcher` opens and closes them.

    Example::

        async with Launcher(log_dir, hosts=Hosts(HostSettings(kind="workers", workers="one two"))) as launcher:
            policy = launcher.spawn("policy", PolicyActor, host=1, model=path)
    """

    def __init__(self, settings: HostSettings, *, connect_seconds: float = 120.0) -> None:
        """Name the hosts; nothing is reached yet.

        Args:
            settings: not of the kind "local".
            connect_seconds: how long the program of a host may take to come up.
        """
        self.settings = settings
        self._connect_seconds = connect_seconds
        self.address = LOOPBACK
        self._addresses = [] if settings.kind == "processes" else find_workers(settings)
        self._hosts: list[_Host] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._job: Any = None  # Monarch's job, for hosts of the kind "processes"
        self._job_folder = ""
        self._mesh: Any = None

    def __len__(self) -> int:
        return len(self._addresses) or self.settings.count

    def transport(self) -> str:
        if not self._addresses:
            return ""
        for name, port in self._addresses:
            try:
                address = own_address(name, port)
            except OSError as error:
                raise UserError(f"the host {name}:{port} cannot be reached from here: {error.strerror}") from None
            if self.address.startswith("127."):  # a host on this machine is reached by loopback, the others are not
                self.address = address
        return f"tcp://{self.address}:0"

    async def open(self, log_dir: Path) -> None:
        from monarch.actor import attach_to_workers

        if self._addresses:
            await asyncio.gather(*(self._reach(name, port) for name, port in self._addresses))
            workers = [f"tcp://{name}:{port}" for name, port in self._addresses]
            self._mesh = attach_to_workers(ca="trust_all_connections", workers=list(workers), name="hosts")
        else:
            from monarch.job import ProcessJob

            logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)  # it logs each step to stderr
            self._job = ProcessJob({"hosts": len(self)})
            with short_temporary_files():
                self._mesh = self._job.state(cached_path=None).hosts
            self._job_folder = str(self._job._tmpdir)
        token = log_dir / f".{secrets.token_hex(8)}"
        token.touch()
        try:
            self._hosts = list(await asyncio.gather(*(self._open(i, log_dir, token.name) for i in range(len(self)))))
        finally:
            token.unlink()
        self._tasks = [asyncio.create_task(self._listen(host)) for host in self._hosts]
        for host, address in zip(self._hosts, self._addresses, strict=False):  # there are none for "processes"
            self._tasks.append(asyncio.create_task(self._hold(host, address)))

    def mesh(self, first: int, count: int = 1) -> Any:
        return self._mesh.slice(hosts=first if count == 1 else slice(first, first + count))

    def info(self, index: int) -> HostInfo:
        return self._hosts[index].info

    def answer(self, indices: Iterable[int]) -> bool:
        return not any(self._hosts[index].loss_reason for index in indices)

    def on_loss(self, index: int) -> asyncio.Future[str]:
        return self._hosts[index].loss

    def choose(self, first: int, count: int = 1, *, movable: bool = False) -> int:
        for index in range(len(self) if movable and count == 1 else 1):
            candidate = (first + index) % len(self)
            if self.answer(range(candidate, candidate + count)):
                return candidate
        raise ServiceError(next(host.loss_reason for host in self._hosts[first : first + count] if host.loss_reason))

    def environ(self, index: int) -> dict[str, str]:
        info = self._hosts[index].info
        return {
            "TMPDIR": info.temp,
            "FORGE_ENV_WATCH": str(info.watch_pid),
            "FORGE_ENV_LOGS": info.logs,
            "FORGE_ENV_FOLDER": os.getcwd(),
        }

    async def watch(self, index: int, pid: int, on_death: Callable[..., None]) -> None:
        self.choose(index)
        host = self._hosts[index]
        host.on_death[pid] = on_death
        await self._within(host.watch.watch.call_one(pid), host.info.name)

    async def kill(self, index: int, pid: int) -> None:
        host = self._hosts[index]
        if not host.loss_reason:
            with contextlib.suppress(ServiceError):
                await self._within(host.watch.kill.call_one(pid), host.info.name)

    def summary(self) -> list[str]:
        names = ", ".join(f"{i} on {host.info.name}" for i, host in enumerate(self._hosts))
        sentences = [f"{len(self)} hosts: {names}"]
        apart = {host.info.name: host.info.logs for host in self._hosts if "forge_env_logs" in host.info.logs}
        return sentences + [f"{name} does not see the folder of the run: its logs are there in {logs}"
                       for name, logs in apart.items()]  # fmt: skip

    async def end_processes(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._on_all(lambda host: host.watch.close.call_one())

    async def close(self) -> None:
        await self._on_all(lambda host: host.mesh.stop())
        if self._job is not None:
            await asyncio.to_thread(self._job.kill)
        self._hosts, self._tasks, self._job = [], [], None

    async def _reach(self, name: str, port: int) -> None:
        """Wait until something listens there. Monarch's own errors do not name the host that is missing."""
        deadline = asyncio.get_running_loop().time() + self._connect_seconds
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    _, writer = await asyncio.open_connection(name, port)
                    writer.close()
                    return
            except (OSError, TimeoutError) as error:
                if asyncio.get_running_loop().time() + RETRY_S > deadline:
                    raise UserError(
                        f"no host waits at {name}:{port} ({error or 'no answer'}): start it there with "
                        f"`python -m contrib.clusters.host --port {port}`"
                    ) from None
            await asyncio.sleep(RETRY_S)

    async def _hold(self, host: _Host, address: tuple[str, int]) -> None:
        """Notice the end of a host's program: the kernel then closes a connection to it, which is used for nothing
        else.

        Monarch does not report this end, and calls to processes that the program had started get no answer.
        """
        while True:
            try:
                reader, writer = await asyncio.open_connection(*address)
            except ConnectionRefusedError:
                host.give_up(f"the program of the host {host.info.name} ended")
                return
            except OSError:  # the network is down for now; silence_seconds says for how long that is tolerated
                await asyncio.sleep(RETRY_S)
                continue
            try:
                while await reader.read(4096):
                    pass
            except OSError:
                pass
            finally:
                writer.close()

    async def _open(self, index: int, log_dir: Path, token: str) -> _Host:
        from monarch.actor import default_bootstrap_cmd

        from contrib.clusters.hosts.watch import HostWatch

        local = self._job is not None
        path = os.pathsep.join(
            filter(None, [str(Path(forge_env.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        )
        command = default_bootstrap_cmd().with_env({"PYTHONPATH": path})
        mesh = self.mesh(index).spawn_procs(name=f"watch{index}", bootstrap_command=command)
        pid = os.getpid() if local else 0
        watch = mesh.spawn(
            f"watch{index}",
            HostWatch,
            lease_s=self.settings.lease_seconds,
            controller_pid=pid,
            job_folder=self._job_folder,
        )
        controller = None if local or self.address.startswith("127.") else (self.address, 1)
        name = f"{index}" if local else f"{self._addresses[index][0]}"
        try:
            info = await self._within(watch.info.call_one(controller, str(log_dir.resolve()), token), name, 60.0)
        except ServiceError as error:
            raise ServiceError(f"{error}; a host takes one run at a time: is another run still on it?") from None
        loss = asyncio.get_running_loop().create_future()
        return _Host(info=info, watch=watch, mesh=mesh, on_death={}, loss=loss)

    async def _listen(self, host: _Host) -> None:
        """Ask a host for news until it is gone; asking renews its lease."""
        while True:
            try:
                dead = await self._news(host)
            except ServiceError as error:
                host.give_up(str(error))
            if host.loss_reason:
                dead = dict.fromkeys(host.on_death)
            for pid, code in dead.items():
                if on_death := host.on_death.pop(pid, None):
                    on_death(
                        f"was lost: {host.loss_reason}" if host.loss_reason else how_it_ended(code),
                        has_log=not host.loss_reason,
                    )
            if host.loss_reason:
                return

    async def _news(self, host: _Host) -> dict[int, int | None]:
        """The processes that died since the last call, with their exit codes, see `forge_env.utils.exits`."""
        call = asyncio.ensure_future(
            within(60.0 + self.settings.silence_seconds, host.watch.news.call_one(), "the watch")
        )
        try:
            for _ in range(max(2, round(self.settings.silence_seconds))):
                await asyncio.wait({call, host.loss}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                if host.loss_reason:
                    raise ServiceError(host.loss_reason)
                if call.done():
                    return dict(call.result())
            raise ServiceError(f"the host {host.info.name} did not answer within {self.settings.silence_seconds:g} s")
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    async def _within(self, call: Any, name: str, seconds: float = 0.0) -> Any:
        return await within(seconds or self.settings.silence_seconds, call, f"the host {name}")

    async def _on_all(self, call: Callable[[_Host], Any]) -> None:
        """Make a call to every host that was not given up; none of them is waited for longer than `silence_seconds`."""
        answering = [host for host in self._hosts if not host.loss_reason]
        calls = (self._within(call(host), host.info.name) for host in answering)
        await asyncio.gather(*calls, return_exceptions=True)
