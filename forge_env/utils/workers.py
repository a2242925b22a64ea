"""Calls in worker threads, which can be given up, and the threads that make them.

`concurrent.futures` and anyio do not serve for two reasons. At the end of the process they wait for their threads, so
that a tool that sleeps for an hour keeps the process alive. If its caller was cancelled, a call runs to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from forge_env.utils.trust import SLOW_SECONDS, Trust

IDLE_SECONDS = 10.0


class GivenUp(BaseException):
    """Raised inside a call after its caller was cancelled. Not an Exception, so that a tool's handlers do not catch
    it."""


class Call:
    """One call of a function in a thread, with the context variables of the code that makes this object.

    Args:
        function: to call.
        args: its arguments.
        kwargs: its named arguments.
        trust: in the function.
        loop: the event loop of the caller.
    """

    __slots__ = (
        *("_args", "_context", "_error", "_function", "_is_given_up", "_kwargs", "_lock", "_result", "_thread"),
        *("future", "seconds", "trust"),
    )

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        trust: Trust,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self.seconds = 0.0
        """What the call took, once it has ended."""
        self.trust = trust
        self._context = contextvars.copy_context()
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_given_up = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, unless it was given up before. For a worker thread."""
        with self._lock:
            if self._is_given_up:
                return
            self._thread = threading.get_ident()
        began = time.perf_counter()
        try:
            try:
                self._result = self._context.run(self._function, *self._args, **self._kwargs)
            finally:
                self._leave()
        except GivenUp:
            self._leave()
        except StopIteration as raised:  # a future does not accept it
            self._error = RuntimeError(f"StopIteration: {raised}")
        except BaseException as raised:
            self._error = raised
        self.seconds = time.perf_counter() - began

    def fail(self, error: BaseException) -> None:
        """Let the call end with an exception instead of making it."""
        self._error = error

    def finish(self) -> None:
        """Tell the caller of the end, if it still waits. For the loop's thread."""
        if self.future.done():
            return
        self.trust.note(self.seconds)
        if self._error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(self._error)

    @property
    def name(self) -> str:
        """The name of the function."""
        function = self._function
        while isinstance(function, functools.partial):
            function = function.func
        return str(getattr(function, "__name__", type(function).__name__))

    def withdraw(self) -> bool:
        """Never make a call that has not begun; returns False for one that runs."""
        with self._lock:
            self._is_given_up = self._is_given_up or self._thread is None
            return self._thread is None

    def give_up(self) -> None:
        """Stop the call at its next bytecode; one that has not begun is never made. For the loop's thread."""
        with self._lock:
            if self._is_given_up:
                return
            self._is_given_up = True
            if self._thread is not None:
                self.trust.end()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(GivenUp))

    @property
    def is_running(self) -> bool:
        """Whether it has begun and has not ended; after `give_up`, because it blocks in a C call."""
        return self._thread is not None

    def _leave(self) -> None:
        """End the part of the call in which GivenUp may be raised; a pending one is raised now.

        A pending exception could be withdrawn, but CPython 3.11 would then always consider one pending: every bytecode
        boundary stays slow, and a traced function (in a debugger, by Hypothesis) never gets past its first line.
        """
        with self._lock:
            self._thread = None
        if self._is_given_up:
            for _ in range(100):  # it is raised at a backward jump
                pass


class Batch:
    """Calls that one thread makes one after another, until one of them was slow.

    Args:
        calls: at least one.
        end: gets this batch when the thread is free again, or before. For the loop's thread.
        loop: the event loop of the callers.
    """

    __slots__ = ("_end", "_loop", "calls", "current", "ended")

    def __init__(
        self,
        calls: Iterable[Call],
        end: Callable[[Batch], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.calls = deque(calls)
        """Those that have not begun. Any thread may take some away: a single pop is atomic."""
        self.ended: deque[Call] = deque()
        """Those that have ended; the loop's thread takes them away."""
        self._end = end
        self._loop = loop
        self.current: Call | None = None
        """The call that was begun last."""

    def run(self) -> None:
        """Make the calls. For a worker thread."""
        while call := taken(self.calls.popleft):
            self.current = call
            call.run()
            self.ended.append(call)
            if call.seconds > SLOW_SECONDS:
                return

    def fail(self, reason: str) -> None:
        """End all calls, as no thread can make them."""
        while call := taken(self.calls.popleft):
            call.fail(RuntimeError(reason))
            self.ended.append(call)
        self.tell()

    def tell(self) -> None:
        """Let the loop know that the thread is free again."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so that nobody waits for a result
            self._loop.call_soon_threadsafe(self._end, self)


def taken(pop: Callable[[], Call]) -> Call | None:
    """Return the call that a method of a deque takes away; None if there is none."""
    try:
        return pop()
    except IndexError:
        return None


class _Worker(threading.Thread):
    """Runs batches one after another; ends after IDLE_SECONDS without one."""

    def __init__(self) -> None:
        super().__init__(name="forge_env", daemon=True)
        self.batches: queue.SimpleQueue[Batch] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                batch = self.batches.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with _idle_lock:
                    if self in _idle:
                        _idle.remove(self)
                        return
                continue  # it has just been given a batch
            batch.run()
            with _idle_lock:  # before the callers go on: their next calls then find this thread
                _idle.append(self)
            batch.tell()
            del batch


_idle: list[_Worker] = []
_idle_lock = threading.Lock()


def _after_fork() -> None:
    """Forget the threads of the parent process, which a fork does not inherit."""
    global _idle_lock
    _idle_lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_after_fork)


def start(batch: Batch, *, in_new_thread: bool = False) -> None:
    """Give a batch to an idle worker, or to a new one: it must never wait for a thread that another one blocks."""
    with _idle_lock:
        worker = _idle.pop() if _idle and not in_new_thread else None
    if worker is None:
        worker = _Worker()
        try:
            worker.start()
        except RuntimeError as error:  # the limit of the user or the machine is reached
            batch.fail(str(error))
            return
    worker.batches.put(batch)
