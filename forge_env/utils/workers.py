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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_THREADS = 2000
"""Threads of a process; further calls wait until one of these ends."""
IDLE_SECONDS = 10.0


class GivenUp(BaseException):
    """Raised inside a call after its caller was cancelled. Not an Exception, so that a tool's handlers do not catch
    it."""


class Call:
    """One call of a function in a thread, with the context variables of the code that makes this object."""

    __slots__ = ("_context", "_error", "_function", "_is_given_up", "_lock", "_result", "_thread", "ends", "future")

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        loop, ends = asyncio.get_running_loop(), getattr(_of_thread, "ends", None)
        if ends is None or ends.loop is not loop:
            ends = _of_thread.ends = _Ended(loop)
        self.ends: _Ended = ends
        self.future: asyncio.Future[Any] = loop.create_future()
        self._context = contextvars.copy_context()
        self._function = functools.partial(function, *args, **kwargs)
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
        try:
            try:
                self._result = self._context.run(self._function)
            finally:
                self._leave()
        except GivenUp:
            self._leave()
        except StopIteration as raised:  # a future does not accept it
            self._error = RuntimeError(f"StopIteration: {raised}")
        except BaseException as raised:
            self._error = raised

    def finish(self) -> None:
        """Set the result, if somebody still waits for it. For the loop's thread."""
        if self.future.done():
            return
        if self._error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(self._error)

    @property
    def name(self) -> str:
        function = self._function.func
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


class _Ended:
    """Calls of an event loop that have ended: many of them wake it once, and their callers go on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Call] = deque()
        self._is_told = False

    def add(self, call: Call) -> None:
        self._calls.append(call)
        if not self._is_told:
            self._is_told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so that nobody waits for the result
                self.loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._is_told = False  # before the calls are taken: one that comes later tells the loop again
        while self._calls:
            self._calls.popleft().finish()


_of_thread = threading.local()


class _Workers:
    """The threads of this process; each makes one call after another, and ends after IDLE_SECONDS without one.

    While calls wait, one thread is on its way, and whoever takes a call sends the next one. So one makes a thousand
    short calls, and as many threads come if each call blocks.
    """

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0  # idle: those that wait for a signal which nobody has sent yet
        self._is_coming = False

    def start(self, call: Call) -> None:
        """Make a call in a free thread or in a new one: it never waits for a thread that another call blocks."""
        with self._lock:
            self._send_one()
            self._calls.append(call)

    def _send_one(self) -> None:
        if self._is_coming or (not self._idle and self._threads >= MAX_THREADS):
            return
        if self._idle:
            self._idle -= 1
            self._signals.put(None)
        else:
            try:
                threading.Thread(target=self._work, name="forge_env", daemon=True).start()
            except RuntimeError:  # no more threads: those that there are make the calls
                if self._threads:
                    return
                raise
            self._threads += 1
        self._is_coming = True

    def _work(self) -> None:
        done: Call | None = None
        while True:
            with self._lock:
                if done is None:
                    self._is_coming = False
                call = self._calls.popleft() if self._calls else None
                if call is None:
                    self._idle += 1
                elif self._calls:
                    self._send_one()
            if done is not None:
                done.ends.add(done)  # now, since the caller's next call finds this thread free
            done = call
            if call is not None:
                call.run()
            elif not self._is_called():
                return

    def _is_called(self) -> bool:
        """Wait for a signal; returns False if the thread is to end."""
        try:
            self._signals.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            with self._lock:
                if self._idle:
                    self._idle, self._threads = self._idle - 1, self._threads - 1
                    return False
            self._signals.get()  # one has just been sent
        return True


_workers = _Workers()


def _after_fork() -> None:
    """Forget the threads of the parent process, which a fork does not inherit."""
    global _workers
    _workers = _Workers()


os.register_at_fork(after_in_child=_after_fork)


def start(call: Call, *, in_new_thread: bool = False) -> None:
    (_Workers() if in_new_thread else _workers).start(call)
