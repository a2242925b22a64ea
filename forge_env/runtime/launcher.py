"""Launcher: starts the actors of a run, notices when one dies, and ends them all however the run ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Awaitable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from forge_env.errors import ForgeError, ServiceError, first_error
from forge_env.runtime import remove_monarch_log
from forge_env.runtime.ranks import AllRanks, MeetingPoint, log_of_rank

T = TypeVar("T")
_REPOSITORY = Path(__file__).resolve().parents[2]
_GRACE_S = 1.0  # a death is noticed as a broken call or as a dead process, and either may be the first


async def within(seconds: float, call: Awaitable[T], what: str) -> T:
    """Await a call to an actor, with a deadline, and raise what went wrong as one of our own errors.

    Raises:
        ServiceError: when the deadline passed, or the actor or its process died.
        ForgeError: whatever the actor itself raised of our own kinds, unchanged.
    """
    from monarch.actor import ActorError

    async def awaited() -> T:
        return await call

    try:
        return await asyncio.wait_for(awaited(), seconds)
    except TimeoutError:
        raise ServiceError(f"{what} did not answer within {seconds:g} s") from None
    except ActorError as error:
        if isinstance(error.exception, ForgeError):
            raise error.exception from None
        reason = str(error.exception).strip().splitlines() or [""]
        raise ServiceError(f"{what} failed: {type(error.exception).__name__}: {reason[0]}") from error
    except ForgeError:
        raise
    except Exception as error:  # Monarch's own errors, a SupervisionError among them
        raise ServiceError(f"{what} failed: {type(error).__name__}: {error}") from None


class Launcher:
    """Owns the processes of a run.

    Example::

        async with Launcher(log_dir) as launcher:
            policy = launcher.spawn("policy", PolicyActor, model=path)
            await launcher.start("policy")
            await launcher.guard(train(policy))
    """

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self._meshes: dict[str, Any] = {}
        self._actors: dict[str, Any] = {}
        self._meeting_points: dict[str, MeetingPoint] = {}
        self._watched: dict[int, tuple[str, int]] = {}  # pidfd -> actor name and rank
        self._pids: set[int] = set()
        self._dead: set[str] = set()
        self._temp = ""
        self._failure: asyncio.Future[None] | None = None
        self._stopping = False

    async def __aenter__(self) -> Launcher:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._failure = asyncio.get_running_loop().create_future()
        _open_monarch(self.log_dir)
        self._temp = tempfile.mkdtemp(prefix="forge_env_")
        import monarch.actor

        monarch.actor.unhandled_fault_hook = self._on_fault
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ForgeError, BaseExceptionGroup)):
            # The user is told in one sentence; where it came from, in the other process too, is kept here.
            (self.log_dir / "error.log").write_text("".join(traceback.format_exception(error)))
        stop, interruption = asyncio.ensure_future(self._stop()), None
        while not stop.done():
            try:
                await asyncio.wait({stop})
            except asyncio.CancelledError as error:  # a second Ctrl-C: nothing may be left all the same
                interruption = error
        stop.result()
        if interruption is not None:
            raise interruption

    def spawn(
        self, name: str, actor_class: type, *, procs: int = 1, environ: Mapping[str, str] | None = None, **kwargs: Any
    ) -> Any:
        """Spawn processes and put an actor in each; returns Monarch's handle of them at once.

        Each of several processes is a rank: it finds what torch.distributed needs in its environment, and has a log
        file of its own. `AllRanks` calls them all at once.
        """
        from monarch.actor import default_bootstrap_cmd, this_host

        path = os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]))
        settings = {"PYTHONPATH": path, "TMPDIR": self._temp, **(environ or {})}
        if procs > 1:
            self._meeting_points[name] = MeetingPoint(procs)

        def command(point: Any) -> Any:
            meeting_point = self._meeting_points.get(name)
            ranked = meeting_point.environ(point["procs"]) if meeting_point else {}
            return default_bootstrap_cmd().with_env(settings | ranked)

        mesh = this_host().spawn_procs(per_host={"procs": procs}, name=name, bootstrap_command=command)
        self._meshes[name] = mesh
        self._actors[name] = mesh.spawn(
            name, actor_class, controller_pid=os.getpid(), log_path=str(self.log_dir / f"{name}.log"), **kwargs
        )
        return self._actors[name]

    def processes(self, name: str, *, environ: Mapping[str, str] | None = None) -> Any:
        """Spawn one process for actors that are not ours; returns it as a Monarch process mesh.

        An actor of ours sits in it too, so that it is logged, watched after `start`, and ended like every other.
        """
        from forge_env.runtime.actor import ForgeActor

        self.spawn(name, ForgeActor, environ=environ)
        return self._meshes[name]

    async def start(self, name: str, *, seconds: float = 300.0) -> None:
        """Wait until a spawned actor is ready for calls.

        Raises:
            ServiceError: when it did not start in time, or died.
            ForgeError: what the actor's own start raised.
        """
        actor = self._actors[name]
        # Processes are watched from their first moment, so that a death during start-up is noticed too.
        pids = await within(seconds, actor.pid.call(), f"the {name} process")
        for rank, pid in enumerate(pids.values()):
            self._watch(pid, name, rank)
        await self.guard(within(seconds, AllRanks(actor).start.call_one(), f"starting the {name}"))

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` until it ends or an actor's process dies, whichever is first.

        Raises:
            ServiceError: naming the actor that died.
        """
        assert self._failure is not None
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._failure}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if _is_service_error(task):  # which process died says more than which call broke
                await asyncio.wait({self._failure}, timeout=_GRACE_S)
            if self._failure.done() and (not task.done() or _is_service_error(task)):
                self._failure.result()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _watch(self, pid: int, name: str, rank: int) -> None:
        pidfd = os.pidfd_open(pid)
        self._watched[pidfd] = name, rank
        self._pids.add(pid)
        asyncio.get_running_loop().add_reader(pidfd, self._on_death, pidfd)

    def _on_death(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        name, rank = self._watched.pop(pidfd)
        self._dead.add(name)
        os.close(pidfd)
        log = log_of_rank(self.log_dir / f"{name}.log", rank)
        which = f" of rank {rank}" if name in self._meeting_points else ""
        if self._failure is not None and not self._failure.done() and not self._stopping:
            self._failure.set_exception(ServiceError(f"the {name} process{which} died; the end of its log is in {log}"))

    def _on_fault(self, failure: Any) -> None:
        """Monarch's word that something failed. Deaths are noticed sooner by `_watch`; this only keeps us alive."""

    async def _stop(self) -> None:
        self._stopping = True
        # A call to a dead one, or to a rank that waits for a dead one, would wait for its deadline.
        alive = [actor for name, actor in self._actors.items() if name not in self._dead]
        await asyncio.gather(*(_quietly(10.0, actor.finish.call()) for actor in alive))
        # What actors hold is freed now; an interpreter with vLLM in it would take seconds to wind itself up.
        for pid in self._pids:
            _signal(pid, signal.SIGKILL)
        await asyncio.gather(*(_quietly(10.0, mesh.stop()) for mesh in self._meshes.values()))
        for pidfd in list(self._watched):
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        for pid in self._pids:
            _reap(pid)
        if self._failure is not None and not self._failure.cancel() and not self._failure.cancelled():
            self._failure.exception()  # seen, or asyncio would complain when nobody was guarded
        self._meeting_points.clear()
        shutil.rmtree(self._temp, ignore_errors=True)
        shutil.rmtree(_sockets[0], ignore_errors=True)
        remove_monarch_log()


def _is_service_error(task: asyncio.Task[Any]) -> bool:
    error = task.exception() if task.done() and not task.cancelled() else None
    return error is not None and isinstance(first_error(error), ServiceError)


async def _quietly(seconds: float, call: Awaitable[Any]) -> None:
    """Await something whose failure changes nothing any more: the processes are ended below in any case."""
    try:
        await within(seconds, call, "")
    except ForgeError:
        pass


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a process if it is still our child; another process that got its number is left alone."""
    try:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, number)
    except (ChildProcessError, ProcessLookupError):
        pass


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass


_LONGEST_TEMP = 48  # bytes: an address has 108, of which our folder's and Monarch's own names take up to 55
_sockets: list[Path] = []  # the folders for Monarch's sockets: it keeps them as long as this process lives


def _short_temp() -> str:
    """The folder for temporary files, or /tmp where its name is too long for the address of a Unix socket in it."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST_TEMP else "/tmp"


def _open_monarch(log_dir: Path) -> None:
    """Import Monarch with its greeting sent to a log file, and its sockets where they can be removed with the run."""
    for folder in _sockets:
        folder.mkdir(mode=0o700, exist_ok=True)
    if _sockets:
        return
    _sockets.append(Path(tempfile.mkdtemp(prefix="forge_env_", dir=_short_temp())))
    saved_temp = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(_sockets[0])
    saved = os.dup(2)
    log = os.open(log_dir / "monarch.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 2)
    try:
        from monarch.actor import this_host

        this_host()
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(log)
        if saved_temp is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = saved_temp
    _sockets.extend(_sockets[0].iterdir())
