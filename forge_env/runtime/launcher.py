"""Launcher: starts the actors of a run, notices when one dies, and ends them all at any end of the run."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from forge_env.core.errors import ForgeError, ProcessDied, ServiceError, UserError
from forge_env.runtime.calls.answers import in_background, quietly, unless_gone, within
from forge_env.runtime.calls.handle import CALLER
from forge_env.runtime.machines import Machines
from forge_env.runtime.process.children import end_processes, is_reaped, kill_children, processes_with
from forge_env.runtime.process.monarch_files import open_monarch, remove_what_monarch_left
from forge_env.runtime.process.ranks import LOOPBACK, AllRanks, RankRendezvous, log_of_rank
from forge_env.utils.exits import exit_code, how_it_ended

if TYPE_CHECKING:
    from forge_env.runtime.calls.endpoints import Endpoint


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False, kw_only=True)
class Spawned:
    """An actor and its processes, one for each rank."""

    name: str
    """Unique in its launcher."""
    caller: str
    """Unique among all actors that were ever spawned: the caller's name in calls of its processes."""
    log: Path
    mesh: Any
    actor: Any
    rendezvous: RankRendezvous | None
    dead: asyncio.Future[str]
    """Done when one of its processes has died, with a sentence about it."""
    on_death: Callable[[str], None] | None
    pids: set[int] = field(default_factory=set)
    """Process ids of its processes on this machine."""
    host_of_rank: list[int] = field(default_factory=list)
    """The host of each rank, if there are hosts."""
    far: list[tuple[int, int]] = field(default_factory=list)
    """Host and process id of the watched processes on other machines."""

    @property
    def handle(self) -> Any:
        """The object with its endpoints: Monarch's handle, or all ranks at once."""
        return AllRanks(self.actor) if self.rendezvous else self.actor

    @overload
    def call_one(self, endpoint: Endpoint[Any, P, None], *args: P.args, **kwargs: P.kwargs) -> Awaitable[None]: ...
    @overload
    def call_one(self, endpoint: Endpoint[Any, P, R | None], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    def call_one(self, endpoint: Endpoint[Any, P, Any], *args: P.args, **kwargs: P.kwargs) -> Awaitable[Any]:
        """Call an endpoint on the actor; for several ranks see `AllRanks.call_one`."""
        call: Awaitable[Any] = getattr(self.handle, endpoint.name).call_one(*args, **kwargs)
        return call


__all__ = ["Launcher", "Spawned", "open_launcher", "within"]

T = TypeVar("T")
logger = logging.getLogger(__name__)
_REPOSITORY = Path(__file__).resolve().parents[2]
_END_S = 10.0  # a killed process is gone within this time


class Launcher:
    """Owns the processes of a run, or of a script that uses services without a trainer.

    Example::

        async with Launcher(log_dir) as launcher:
            policy = launcher.spawn("policy", PolicyActor, model=path)
            await launcher.start("policy")
            await launcher.guard(train(policy))

    Args:
        log_dir: folder of every process's log; without one, the logs are removed with the launcher.
        say: called with a sentence when a process has died and is replaced.
        hosts: the machines of the processes; None is this machine.
    """

    def __init__(
        self, log_dir: Path | None = None, *, say: Callable[[str], None] = logger.warning, hosts: Machines | None = None
    ) -> None:
        self._keeps_logs = log_dir is not None
        self.log_dir = log_dir or Path(tempfile.mkdtemp(prefix="forge_env_logs_"))
        self.say = say
        self.hosts = hosts
        self.is_stopping = False
        self._actors: dict[str, Spawned] = {}
        self._by_pidfd: dict[int, tuple[Spawned, int]] = {}  # pidfd -> actor and rank
        self._pids: set[int] = set()  # of all processes that may still live
        self._temp = ""
        self._failure: asyncio.Future[None] | None = None
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._telling: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Launcher:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._failure = asyncio.get_running_loop().create_future()
        open_monarch(self.log_dir, self.hosts.transport() if self.hosts else "")
        self._temp = tempfile.mkdtemp(prefix="forge_env_")
        import monarch.actor

        monarch.actor.unhandled_fault_hook = self._on_fault
        if self.hosts:
            try:
                await self.hosts.open(self.log_dir)
            except BaseException:
                await self._stop()
                raise
        _open.append(self)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _open.remove(self)
        if isinstance(error, (ForgeError, BaseExceptionGroup)):
            # The user sees one sentence. The traceback, with the other process's, is stored here.
            with suppress(OSError):  # on a full disk, too, everything has to end
                (self.log_dir / "error.log").write_text("".join(traceback.format_exception(error)))
        stop, interruption = asyncio.ensure_future(self._stop()), None
        while not stop.done():
            try:
                await asyncio.wait({stop})
            except asyncio.CancelledError as error:  # a second Ctrl-C: the processes are still ended
                interruption = error
        stop.result()
        if interruption is not None:
            raise interruption

    def spawn(
        self,
        name: str,
        actor_class: type,
        *,
        procs: int = 1,
        environ: Mapping[str, str] | None = None,
        on_death: Callable[[str], None] | None = None,
        host: int = 0,
        num_hosts: int = 1,
        **kwargs: Any,
    ) -> Any:
        """Spawn processes and put an actor in each; returns Monarch's handle of them at once.

        Each of several processes is a rank. Its environment has the variables of torch.distributed, and it has a log
        file of its own. `AllRanks` calls them all at once.

        Args:
            procs: processes, each with a rank.
            environ: variables of every process, in addition to this process's.
            on_death: called with one sentence when a process has died; without it, a death ends the guarded work.
            host: the number of the first host, if there are hosts. If that host was given up, a process that sees no
                GPU goes to the next one.
            num_hosts: hosts in a row, which share the processes evenly.

        Raises:
            ServiceError: a host was given up, and the actor needs its GPUs.
        """
        from monarch.actor import default_bootstrap_cmd, this_host

        if name in self._actors:
            remedy = "each actor of a launcher needs a name of its own"
            raise UserError(f"there is an actor named {name!r} already: {remedy}")
        folder = os.getcwd() if self.hosts else ""  # processes on this machine have this folder anyway
        path = os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH", ""), folder]))
        caller = f"{name}_{next(_numbers)}"
        # A crash in native code writes the Python stack to the log.
        base = {"PYTHONPATH": path, "TMPDIR": self._temp, CALLER: caller, "PYTHONFAULTHANDLER": "1"}
        settings = {**base, **(environ or {})}
        hosts, per_host = self.hosts, procs // num_hosts
        host_of_rank = []
        if hosts:
            host = hosts.choose(host, num_hosts, movable=not settings.get("CUDA_VISIBLE_DEVICES"))
            host_of_rank = [host + rank // per_host for rank in range(procs)]
        address = hosts.address if hosts else LOOPBACK
        rendezvous = RankRendezvous(procs, per_host, address) if procs > 1 else None

        def command(point: Any) -> Any:
            on_host = hosts.environ(host_of_rank[point.rank]) if hosts else {}
            interface = hosts.info(host_of_rank[point.rank]).interface if hosts else "lo"
            rank_settings = rendezvous.environ(point.rank, interface) if rendezvous else {}
            return default_bootstrap_cmd().with_env(settings | on_host | rank_settings)

        where = hosts.mesh(host, num_hosts) if hosts else this_host()
        mesh = where.spawn_procs(per_host={"procs": per_host}, name=caller, bootstrap_command=command)
        log_path = self.log_dir / f"{name}.log"
        actor = mesh.spawn(name, actor_class, controller_pid=os.getpid(), log_path=str(log_path), **kwargs)
        self._actors[name] = Spawned(
            name=name,
            caller=caller,
            log=log_path,
            mesh=mesh,
            actor=actor,
            rendezvous=rendezvous,
            dead=asyncio.get_running_loop().create_future(),
            on_death=on_death,
            host_of_rank=host_of_rank,
        )
        return actor

    def processes(self, name: str, actor_class: type) -> Any:
        """Spawn one process for actors of another library; returns it as a Monarch process mesh.

        An actor of `actor_class`, which is ours, is in it too: the process is logged, watched after `start`, and ended
        like every other one.
        """
        self.spawn(name, actor_class)
        return self._actors[name].mesh

    def __getitem__(self, name: str) -> Spawned:
        return self._actors[name]

    def pids(self) -> dict[str, list[int]]:
        return {name: sorted(member.pids) for name, member in self._actors.items()}

    def actors(self) -> list[Any]:
        return [member.actor for member in self._actors.values() if not member.dead.done()]

    async def start(self, name: str, *, seconds: float = 300.0) -> None:
        """Wait until a spawned actor is ready for calls.

        Raises:
            ServiceError: it did not start in time, or died.
            ForgeError: raised by the actor's own start.
        """
        member = self._actors[name]
        # Processes are watched from their first moment, so that a death during start-up is noticed too.
        answer = within(seconds, member.actor.pid.call(), f"the {name} process")
        pids = await (unless_gone(answer, self.hosts.on_loss(member.host_of_rank[0])) if self.hosts else answer)
        for rank, pid in enumerate(pids.values()):
            await self._watch(pid, member, rank)
        work = within(seconds, AllRanks(member.actor).start.call_one(), f"starting the {name}")
        await self.guard(unless_gone(work, member.dead))

    def stop(self, name: str, *, seconds: float = 10.0) -> Coroutine[Any, Any, None]:
        """End one actor. Its name is free at once; when the coroutine returns, its processes are gone.

        Args:
            seconds: for freeing what it holds; 0 ends it at once, as for an actor that does not answer.
        """
        member = self._actors.pop(name)
        member.on_death = lambda reason: None  # it is intended
        if not seconds:
            kill_children(member.pids)
        return self._end(member, seconds)

    async def _end(self, member: Spawned, seconds: float) -> None:
        if seconds and not member.dead.done():
            await quietly(seconds, member.actor.finish.call())
        kill_children(member.pids)
        self._pids -= member.pids - await self._reap(member.pids)
        if self.hosts:
            await asyncio.gather(*(self.hosts.kill(index, pid) for index, pid in member.far))
        if self._is_reached(member):
            await quietly(10.0, member.mesh.stop())

    def fail(self, error: ServiceError) -> None:
        if self._failure is not None and not self._failure.done() and not self.is_stopping:
            self._failure.set_exception(error)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Await `close` before the actors are ended."""
        self._closing.append(close)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` until it ends, or until a process dies that is not replaced.

        Raises:
            ProcessDied: names the actor that died.
        """
        assert self._failure is not None
        return await unless_gone(work, self._failure)

    async def _watch(self, pid: int, member: Spawned, rank: int) -> None:
        if self.hosts:
            place = member.host_of_rank[rank]
            member.far.append((place, pid))
            await self.hosts.watch(place, pid, partial(self._on_end, member, rank))
            return
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it died after its answer, and Monarch has reaped it
            self._on_end(member, rank, how_it_ended(None))
            return
        self._by_pidfd[pidfd] = member, rank
        member.pids.add(pid)
        self._pids.add(pid)
        asyncio.get_running_loop().add_reader(pidfd, self._on_death, pidfd)
        with suppress(OSError):
            (self.log_dir / "pids.json").write_text(json.dumps(self.pids()))  # for a debugger

    def _on_death(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        member, rank = self._by_pidfd.pop(pidfd)
        end = how_it_ended(exit_code(pidfd))
        os.close(pidfd)
        self._on_end(member, rank, end)

    def _on_end(self, member: Spawned, rank: int, end: str, *, has_log: bool = True) -> None:
        which = f" of rank {rank}" if member.rendezvous else ""
        log = log_of_rank(member.log, rank)
        if self.hosts:
            log = Path(self.hosts.info(member.host_of_rank[rank]).logs) / log.name
        where = f"; the end of its log is in {log}" if has_log else ""
        death = ProcessDied(f"the {member.name} process{which} {end}", where)
        if member.dead.done() or self.is_stopping:
            return
        member.dead.set_result(str(death))
        # Let all other actors cancel the calls of a dead one.
        for actor in self.actors():
            in_background(quietly(10.0, actor.cancel.call(f"{member.caller}/")), self._telling)
        if member.on_death is not None:
            member.on_death(str(death))
        else:
            self.fail(death)

    async def _reap(self, pids: Iterable[int]) -> set[int]:
        """Wait for the ends of killed processes; returns the processes that have not ended in time."""
        alive, deadline = set(pids), asyncio.get_running_loop().time() + _END_S
        while (alive := {pid for pid in alive if not is_reaped(pid)}) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        if alive:
            why = "as one that waits for a disk or a GPU"
            self.say(f"killed {_END_S:g} s ago and not gone yet, {why}: {sorted(alive)}")
        return alive

    def _on_fault(self, failure: Any) -> None:
        """Called by Monarch at a failure, instead of ending this process; `_watch` notices deaths sooner."""

    def _is_reached(self, member: Spawned) -> bool:
        return self.hosts is None or self.hosts.answer(member.host_of_rank)

    async def _stop(self) -> None:
        self.is_stopping = True
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*(quietly(10.0, close()) for close in self._closing))
        # A call to a dead process, or to a rank that waits for a dead one, would wait for its deadline.
        reachable = [member for member in self._actors.values() if self._is_reached(member)]
        alive = [spawned for spawned in reachable if not spawned.dead.done()]
        await asyncio.gather(*(quietly(10.0, spawned.actor.finish.call()) for spawned in alive))
        if self.hosts:
            await self.hosts.end_processes()
        # Actors have freed what they hold. An interpreter with vLLM in it would take seconds to exit.
        kill_children(self._pids)
        await asyncio.gather(*(quietly(10.0, spawned.mesh.stop()) for spawned in reachable))
        if self.hosts:
            await self.hosts.close()
        for pidfd in list(self._by_pidfd):
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        # A replica that was starting is not watched yet; without its folder it would make another one.
        await asyncio.to_thread(end_processes, processes_with(f"TMPDIR={self._temp}"))
        await self._reap(self._pids)
        if self._failure is not None and not self._failure.cancel() and not self._failure.cancelled():
            self._failure.exception()  # retrieved; otherwise asyncio would log it if no work was guarded
        self._actors.clear()
        shutil.rmtree(self._temp, ignore_errors=True)
        if not self._keeps_logs:
            shutil.rmtree(self.log_dir, ignore_errors=True)
        remove_what_monarch_left()


_open: list[Launcher] = []
_numbers = itertools.count()  # Monarch takes a name only once


def open_launcher() -> Launcher:
    if not _open:
        raise UserError("there is no open Launcher to start actors with: write `async with Launcher():` around it")
    return _open[-1]
