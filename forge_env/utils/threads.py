"""Runs plain functions in threads, off the event loop; a cancelled call is stopped.

`concurrent.futures` and anyio do not serve for two reasons. At the end of the process they wait for their threads, so
that a tool that sleeps for an hour keeps the process alive. A call whose caller was cancelled runs to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import inspect
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
IDLE_SECONDS = 10.0
_COROUTINE = inspect.CO_COROUTINE
own_thread_each: contextvars.ContextVar[bool] = contextvars.ContextVar("own_thread_each", default=False)
"""If it is set, each call has a thread of its own. `forge-env check` finds state with it that depends on the thread."""


_GIVEN_UP = "__forge_given_up__"
"""The attribute of a cancellation that holds the call."""


class GivenUpCall(Protocol):
    """A call in a thread whose caller was cancelled."""

    @property
    def is_running(self) -> bool:
        """Whether it runs on, because it blocks in a C call."""
        ...


class GivenUp(BaseException):
    """Raised inside a call whose caller was cancelled. Not an Exception, so that a tool's handlers do not catch it."""


def invoke(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Return a call to await: of a coroutine function, or of a plain function in a thread, with the caller's context
    variables.

    Cancelling the caller stops the call: a coroutine at its next await, a plain function at its next bytecode. A plain
    function that blocks in a C call (`time.sleep`, a socket) ends when that call returns; nothing after it runs.

    An exception of the call itself, for wrong arguments for example, is raised where the result is awaited.
    """
    if not _is_awaited(function):
        return _in_thread(function, args, kwargs)
    try:
        return function(*args, **kwargs)  # without a coroutine around it, which would cost as much as many a step
    except BaseException as error:
        return _raise(error)


def invoker(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return what makes the calls that `invoke` makes, for a function that is called many times.

    It is the function itself, if that returns something to await; an exception of a call is then raised at once.
    """
    return function if _is_awaited(function) else functools.partial(_call_in_thread, function)


def _call_in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    return _in_thread(function, args, kwargs)


async def _raise(error: BaseException) -> Any:
    raise error


async def _in_thread(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    job = _Job(call, asyncio.get_running_loop())
    _start(job)
    try:
        result = await job.future
    except asyncio.CancelledError as cancelled:
        job.give_up()
        setattr(cancelled, _GIVEN_UP, job)
        raise
    return await result if inspect.isawaitable(result) else result


def given_up(cancelled: asyncio.CancelledError) -> GivenUpCall | None:
    """Return the call in a thread that this cancellation has given up, if there is one."""
    call: GivenUpCall | None = getattr(cancelled, _GIVEN_UP, None)
    return call


def awaitable(function: F) -> F:
    """Mark a plain function that returns an awaitable: `invoke` calls it on the event loop, not in a thread."""
    function.__forge_awaitable__ = True  # type: ignore[attr-defined]
    return function


def _is_awaited(function: Callable[..., Any]) -> bool:
    """Whether what it returns is to be awaited."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & _COROUTINE:  # the usual case; `inspect` takes several times as long
        return True
    return hasattr(function, "__forge_awaitable__") or inspect.iscoroutinefunction(function)


def _nothing() -> None:
    pass


class _Job:
    """One call in a thread."""

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self._call = call
        self._loop = loop
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._given_up = False

    def run(self) -> Callable[[], None]:
        """Make the call; returns what tells the caller of its end, to be called when the thread is free again."""
        with self._lock:
            if self._given_up:
                return _nothing
            self._thread = threading.get_ident()
        result: Any = None
        error: BaseException | None = None
        try:
            try:
                result = self._call()
            finally:
                self._leave()
        except GivenUp:
            self._leave()
            return _nothing
        except StopIteration as raised:  # a future does not accept it
            error = RuntimeError(f"StopIteration: {raised}")
        except BaseException as raised:
            error = raised
        return functools.partial(self._tell, result, error)

    def _tell(self, result: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so that nobody waits for the result
            self._loop.call_soon_threadsafe(self._finish, result, error)

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(GivenUp))

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def _leave(self) -> None:
        """End the part of the call in which GivenUp may be raised; a pending one is raised now.

        A pending exception could be withdrawn, but CPython 3.11 would then always consider one pending: every bytecode
        boundary stays slow, and a traced function (in a debugger, by Hypothesis) never gets past its first line.

        Raises:
            GivenUp: when it was pending.
        """
        with self._lock:
            self._thread = None
        if self._given_up:
            for _ in range(100):  # it is raised at a backward jump
                pass

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class _Worker(threading.Thread):
    """Runs jobs one after another; ends after IDLE_SECONDS without one."""

    def __init__(self) -> None:
        super().__init__(name="forge_env", daemon=True)
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with _idle_lock:
                    if self in _idle:
                        _idle.remove(self)
                        return
                continue  # it has just been given a job
            tell = job.run()
            del job
            with _idle_lock:  # before the caller goes on: its next call then finds this thread
                _idle.append(self)
            tell()
            del tell


_idle: list[_Worker] = []
_idle_lock = threading.Lock()


def _after_fork() -> None:
    """Forget the threads of the parent process, which a fork does not inherit."""
    global _idle_lock
    _idle_lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_after_fork)


def _start(job: _Job) -> None:
    """Give a job to an idle worker, or to a new one: a call must never wait for a thread that another one blocks."""
    with _idle_lock:
        worker = _idle.pop() if _idle and not own_thread_each.get() else None
    if worker is None:
        worker = _Worker()
        worker.start()
    worker.jobs.put(job)
