"""Plain functions off the event loop, in threads that can be told to give up.

`concurrent.futures` would do, but for two things: its threads are waited for when the process ends, so that one tool
that sleeps for an hour keeps it alive for an hour, and a call whose caller has given up goes on to its end.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import functools
import inspect
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
IDLE_SECONDS = 10.0
own_thread_each: contextvars.ContextVar[bool] = contextvars.ContextVar("own_thread_each", default=False)
"""Where it is set, no two calls share a thread: what `forge-env check` finds state with that belongs to one thread."""


class GivenUp(BaseException):
    """Raised inside a call whose caller has stopped waiting. Not an Exception: a tool's own handlers let it pass."""


async def invoke(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Await a coroutine function; run a plain one in a thread, with the caller's context variables.

    A caller that is cancelled stops the call: a coroutine at its next await, a plain function at its next bytecode. A
    plain function that blocks inside a C call (`time.sleep`, a socket) ends when that call returns; what comes after it
    is not run.
    """
    if _is_coroutine_function(function):
        return await function(*args, **kwargs)
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    job = _Job(call, asyncio.get_running_loop())
    _start(job)
    try:
        result = await job.future
    except asyncio.CancelledError:
        job.give_up()
        raise
    return await result if inspect.isawaitable(result) else result


def awaitable(function: F) -> F:
    """Mark a plain function whose result is awaited: `invoke` calls it on the event loop, and in no thread."""
    function.__forge_awaitable__ = True  # type: ignore[attr-defined]
    return function


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    """As `inspect.iscoroutinefunction`, which takes ten times as long for the common case."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return True
    return hasattr(function, "__forge_awaitable__") or inspect.iscoroutinefunction(function)


class _Job:
    """One call, on its way through a thread."""

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self._call = call
        self._loop = loop
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._given_up = False

    def run(self) -> None:
        with self._lock:
            if self._given_up:
                return
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
            return
        except StopIteration as raised:  # a future refuses it
            error = RuntimeError(f"StopIteration: {raised}")
        except BaseException as raised:
            error = raised
        try:
            self._loop.call_soon_threadsafe(self._finish, result, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(GivenUp))

    def _leave(self) -> None:
        """From here on nothing is raised in this thread; what has not arrived yet arrives now.

        It could be taken back, but CPython 3.11 would then believe for ever that something is pending: every bytecode
        boundary is slow from then on, and a function that is traced (by a debugger, by Hypothesis) never gets past its
        first line.

        Raises:
            GivenUp: when it had not arrived yet.
        """
        with self._lock:
            self._thread = None
        if self._given_up:
            for _ in range(100):  # it arrives at a jump backwards
                pass

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class _Worker(threading.Thread):
    """Runs one job after another, and ends when there has been none for a while."""

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
                continue  # a job was given to it in this very moment
            job.run()
            del job
            with _idle_lock:
                _idle.append(self)


_idle: list[_Worker] = []
_idle_lock = threading.Lock()


def _after_fork() -> None:
    """A fork has none of its parent's threads."""
    global _idle_lock
    _idle_lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_after_fork)


def _start(job: _Job) -> None:
    """Hand a job to an idle worker, or to a new one: a blocking call must never wait for another one's thread."""
    with _idle_lock:
        worker = _idle.pop() if _idle and not own_thread_each.get() else None
    if worker is None:
        worker = _Worker()
        worker.start()
    worker.jobs.put(job)
