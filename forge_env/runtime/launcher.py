"""Launcher: starts the actors of a run, notices when one dies, and ends them all however the run ends."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Awaitable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import forge_env.runtime  # noqa: F401  sets Monarch's environment before its first import
from forge_env.errors import ForgeError, ServiceError

T = TypeVar("T")
_REPOSITORY = Path(__file__).resolve().parents[2]


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
        self._watched: dict[int, str] = {}  # pidfd -> actor name
        self._pids: dict[int, str] = {}
        self._temp = ""
        self._failure: asyncio.Future[None] | None = None
        self._stopping = False

    async def __aenter__(self) -> Launcher:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._temp = tempfile.mkdtemp(prefix="forge_env_")
        self._failure = asyncio.get_running_loop().create_future()
        _import_monarch_quietly(self.log_dir)
        import monarch.actor

        monarch.actor.unhandled_fault_hook = self._on_fault
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ForgeError, BaseExceptionGroup)):
            # The user is told in one sentence; where it came from, in the other process too, is kept here.
            (self.log_dir / "error.log").write_text("".join(traceback.format_exception(error)))
        await asyncio.shield(self._stop())

    def spawn(self, name: str, actor_class: type, *, environ: Mapping[str, str] | None = None, **kwargs: Any) -> Any:
        """Spawn one process and put an actor in it; returns the actor's handle at once."""
        mesh = self.processes(name, environ=environ)
        self._actors[name] = mesh.spawn(
            name, actor_class, controller_pid=os.getpid(), log_path=str(self.log_dir / f"{name}.log"), **kwargs
        )
        return self._actors[name]

    async def start(self, name: str, *, seconds: float = 300.0) -> None:
        """Wait until a spawned actor is ready for calls.

        Raises:
            ServiceError: when it did not start in time, or died.
            ForgeError: what the actor's own start raised.
        """
        actor = self._actors[name]
        # The process is watched from its first moment, so that a death during start-up is noticed too.
        self._watch(await within(60.0, actor.pid.call_one(), f"the {name} process"), name)
        await self.guard(within(seconds, actor.start.call_one(), f"starting the {name}"))

    def processes(self, name: str, *, environ: Mapping[str, str] | None = None) -> Any:
        """Spawn one bare process, as a Monarch process mesh."""
        from monarch.actor import default_bootstrap_cmd, this_host

        path = os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]))
        settings = {"PYTHONPATH": path, "TMPDIR": self._temp, **(environ or {})}
        command = default_bootstrap_cmd().with_env(settings)
        self._meshes[name] = this_host().spawn_procs(per_host={"procs": 1}, name=name, bootstrap_command=command)
        return self._meshes[name]

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` until it ends or an actor's process dies, whichever is first.

        Raises:
            ServiceError: naming the actor that died.
        """
        assert self._failure is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done() and not task.done():
                self._failure.result()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _watch(self, pid: int, name: str) -> None:
        pidfd = os.pidfd_open(pid)
        self._watched[pidfd] = name
        self._pids[pid] = name
        asyncio.get_running_loop().add_reader(pidfd, self._on_death, pidfd)

    def _on_death(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        name = self._watched.pop(pidfd)
        os.close(pidfd)
        log = self.log_dir / f"{name}.log"
        if self._failure is not None and not self._failure.done() and not self._stopping:
            self._failure.set_exception(ServiceError(f"the {name} process died; the end of its log is in {log}"))

    def _on_fault(self, failure: Any) -> None:
        """Monarch's word that something failed. Deaths are noticed sooner by `_watch`; this only keeps us alive."""

    async def _stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*(_quietly(10.0, actor.finish.call_one()) for actor in self._actors.values()))
        # What actors hold is freed now; an interpreter with vLLM in it would take seconds to wind itself up.
        for pid in self._pids:
            _signal(pid, signal.SIGKILL)
        await asyncio.gather(*(_quietly(10.0, mesh.stop()) for mesh in self._meshes.values()))
        for pidfd in list(self._watched):
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        for pid in self._pids:
            _reap(pid)
        if self._failure is not None:
            self._failure.cancel()
        shutil.rmtree(self._temp, ignore_errors=True)
        _remove_monarch_log()


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


def _import_monarch_quietly(log_dir: Path) -> None:
    """Import Monarch for the first time with its greeting sent to a log file."""
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


def _remove_monarch_log() -> None:
    folder = Path("/tmp") / getpass.getuser()
    (folder / f"monarch_log_{os.environ['MONARCH_LOG_SUFFIX']}.log").unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        pass
