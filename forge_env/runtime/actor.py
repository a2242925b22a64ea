"""ForgeActor: the base of the actors of a run.

Actors import `concurrent_endpoint` from here, and not from Monarch: forge_env/runtime/__init__.py sets Monarch up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from monarch.actor import ActorError, current_rank

from forge_env.runtime.calls.client import Members, update_client
from forge_env.runtime.calls.endpoints import Endpoint, concurrent_endpoint
from forge_env.runtime.calls.gathered import Answer, Call
from forge_env.runtime.process.children import die_with, process_began
from forge_env.runtime.process.ranks import log_of_rank
from forge_env.runtime.service import ActorOptions, make_options
from forge_env.utils.folders import cache_folder

if TYPE_CHECKING:  # the type checker does not know Monarch's base, and would then accept every attribute and class
    Actor = object
else:
    from monarch.actor import Actor

__all__ = ["ForgeActor", "concurrent_endpoint", "long_endpoint"]

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


def long_endpoint(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Endpoint[A, P, R]:
    """Make an async method of a ForgeActor an endpoint without a deadline, which ends with its caller.

    The caller may set a deadline; otherwise `on_ping` tells when the actor hangs. If the caller is cancelled, gives up
    or dies, the work is cancelled.
    """
    return Endpoint(method, is_long=True)


class ForgeActor(Actor):
    """Base of the actors. Its process writes to its own log file, and never outlives the controller.

    `rank` is 0, or the process's number in its service. `name` is the name of its log file.
    The constructor only stores arguments; `start` does the slow part, so that its errors reach the caller.
    """

    idempotent: ClassVar[frozenset[str]] = frozenset()
    """Endpoints that a service may call again on another replica if one dies during the call."""

    @classmethod
    def options(cls, **options: Any) -> ActorOptions[Self]:
        """Options of how the actor is run: `await MyActor.options(num_replicas=2).as_service(...)`, or
        `.as_actor(...)`.

        Args:
            **options: fields of `forge_env.runtime.service.ServiceOptions`: procs, num_replicas, with_gpus, ...

        Raises:
            UserError: an option is unknown, or a number out of range.
        """
        return ActorOptions(cls, make_options(options))

    def __init__(self, *, controller_pid: int, log_path: str) -> None:
        with contextlib.suppress(OSError):
            os.setpgrp()  # a terminal's Ctrl-C is for the controller, which ends this process in order
        self.rank = current_rank().rank
        log = log_of_rank(Path(log_path), self.rank)
        self.name = log.stem
        if folder := os.environ.get("FORGE_ENV_FOLDER"):  # the program of a host was started in another folder
            with contextlib.suppress(OSError):
                os.chdir(folder)
        # On another host, the host's watch stands in for the controller, and its folder for the controller's.
        die_with(int(os.environ.get("FORGE_ENV_WATCH", controller_pid)))
        _redirect_output(str(Path(os.environ.get("FORGE_ENV_LOGS", log.parent)) / log.name))
        keep_compiled()
        self._calls: dict[str, asyncio.Task[Any]] = {}  # calls to long endpoints
        self._answers: dict[str, list[Answer]] = {}  # to them, by caller, until the next pass of the event loop
        self.phases: dict[str, tuple[float | None, float]] = {}
        """Phases of its start, by name: the beginning of each, in seconds since the epoch, and its seconds. A phase "A:
        B" is a part of A, and may have no beginning."""

    @concurrent_endpoint
    async def start(self) -> None:
        """Make the actor ready for calls."""
        began, ready = process_began(), time.time()
        await self.on_start()
        self.phases |= {"process": (began, ready - began), "start": (ready, time.time() - ready)}

    @concurrent_endpoint
    async def ping(self) -> None:
        """Answer if the process is alive, its event loop runs, and the actor can work."""
        self.on_ping()

    @concurrent_endpoint
    async def update_client(self, service: str, members: Members) -> None:
        """Update the list of replicas of a service, if this process calls the service."""
        update_client(service, members)

    @concurrent_endpoint
    async def begin_calls(self, calls: Sequence[Call], port: Any) -> None:
        """Begin calls to long endpoints; each answer goes to the port of their caller as soon as it is there."""
        for call in calls:
            task = self._calls[call[0]] = asyncio.create_task(self._answer(call, port), name=call[0])
            task.add_done_callback(lambda task: self._calls.pop(task.get_name(), None))

    async def _answer(self, call: Call, port: Any) -> None:
        id, endpoint, args, kwargs = call
        value = error = None
        try:
            value = await getattr(self, endpoint).method(self, *args, **kwargs)
        except Exception as raised:
            error = ActorError(raised)
        caller = id.rpartition("/")[0]
        if caller not in self._answers:
            asyncio.get_running_loop().call_soon(self._send_answers, caller, port)
        self._answers.setdefault(caller, []).append((id, value, error))

    def _send_answers(self, caller: str, port: Any) -> None:
        answers = self._answers.pop(caller)
        try:
            port.send(answers)
        except Exception as error:  # one of them cannot be sent
            port.send([(id, None, ActorError(error)) for id, *_ in answers])

    @concurrent_endpoint
    async def cancel(self, call_id: str) -> None:
        """End a call to a long endpoint, or all calls of a dead caller ("NAME/")."""
        for other_id, work in list(self._calls.items()):
            if other_id == call_id or (call_id.endswith("/") and other_id.startswith(call_id)):
                work.cancel()

    @concurrent_endpoint
    async def started(self) -> dict[str, tuple[float | None, float]]:
        """The phases of its start: "process" until `start` was called, "start", and the phases that `phase`
        measured."""
        return self.phases

    @concurrent_endpoint
    async def pid(self) -> int:
        return os.getpid()

    @concurrent_endpoint
    async def finish(self) -> None:
        """Free everything that the actor holds; after this it answers no call."""
        await self.on_finish()

    def on_ping(self) -> None:
        """Raise ReplicaBroken if the actor cannot work any more; it is then ended and replaced."""

    async def on_start(self) -> None:
        """Load what the actor needs."""

    async def on_finish(self) -> None:
        """Free what the actor holds."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a part of `on_start` as a phase of the start."""
        began = time.time()
        yield
        self.phases[name] = began, time.time() - began


def _redirect_output(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


def keep_compiled() -> None:
    """Let the next run find what torch and triton compile in this process; below TMPDIR it would end with its run.

    Torch always keeps precompiled headers below TMPDIR, and compiles them even if it finds the code that they are for.
    They are switched off: in each run they would take an engine on a CPU five seconds.
    """
    os.environ.setdefault(HEADERS, "0")
    if VARIABLE not in os.environ and (cache := cache_folder("torchinductor")) is not None:
        os.environ[VARIABLE] = str(cache)
