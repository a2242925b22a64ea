"""Gates: the methods of one instance never overlap, even if the caller of one was cancelled or ran out of time.

Python stops a coroutine at its next `await` and a plain function at its next bytecode, but not one that blocks in a C
call: a query of SQLite, `time.sleep`. A gate holds such a call. The next call on the instance, `close` too, waits for
it within a time limit of its own.

A gate knows the calls that `forge_env.utils.threads` makes, and those of `asyncio.to_thread`. It does not know a thread
that a user's code starts in another way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import EnvError
from forge_env.utils.deadlines import has_expired

if TYPE_CHECKING:
    from forge_env.utils.workers import Call

GRACE_SECONDS = 0.5
"""Time for a call to end by itself after its caller was cancelled: whoever is stopped in the middle of opening a file
cannot close it. As long may one take that was told to stop."""
BUSY_SECONDS = 60.0
"""The longest wait of a call; most callers have a shorter limit."""
_MAX_PAUSE = 0.05
_OF_SOCKETS = ("socket", "_socket", "asyncio.base_events")  # asyncio asks for addresses in threads


class Gate:
    """The calls of one instance that their callers have left behind.

    Args:
        allows_overlap: the next calls wait for none of them, see `Env.allows_overlap`.
        background: tasks of instances that wait for a call, see `forge_env.rollout.env_calls`.
    """

    __slots__ = ("_allows_overlap", "_leftovers", "background", "holders")

    def __init__(self, *, allows_overlap: bool = False, background: set[asyncio.Task[None]] | None = None) -> None:
        self._allows_overlap = allows_overlap
        self._leftovers: list[Call | _Executed] = []
        self.holders: list[Call | _Executed] = []
        """Those that the next call waits for, unless they have ended by now."""
        self.background: set[asyncio.Task[None]] = set() if background is None else background

    def __reduce__(self) -> Any:
        return Gate, ()  # a copy of an instance has no calls

    @property
    def running(self) -> list[str]:
        self._leftovers = [call for call in self._leftovers if call.is_running]
        return list(dict.fromkeys(call.name for call in self._leftovers))

    @property
    def is_held(self) -> bool:
        self.holders = [call for call in self.holders if call.is_running]
        return bool(self.holders)

    def hold(self, call: Call | _Executed) -> None:
        """Keep a call that nobody waits for any more, if it has begun; otherwise it is never made."""
        if call.withdraw():
            return
        self._leftovers.append(call)
        if not self._allows_overlap:
            self.holders.append(call)
        if self._allows_overlap or has_expired():
            call.give_up()

    def when_free(self, function: Callable[[], object]) -> None:
        """Call a function when the calls that were left behind have ended, or after BUSY_SECONDS."""
        if not self._leftovers or not self.running:
            function()
            return

        async def later() -> None:
            try:
                await self.stop(BUSY_SECONDS, grace=GRACE_SECONDS)
            finally:
                function()

        self.start(later())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    async def stop(self, seconds: float, *, grace: float = 0.0) -> bool:
        """Stop the calls, and wait for their ends; returns whether they have ended."""
        began, pause = time.monotonic(), 0.001
        while self.running:
            duration = time.monotonic() - began
            if duration >= grace:
                for call in self._leftovers:
                    call.give_up()
            if duration >= seconds:
                return False
            await asyncio.sleep(min(pause, max(0.0, seconds - duration)))
            pause = min(2 * pause, _MAX_PAUSE)
        return True


inside: ContextVar[Gate | None] = ContextVar("gate", default=None)
"""The gate of the instance that the current code belongs to."""


def gate_of(instance: Any) -> Gate:
    """Return the gate of an object, which is made at its first use."""
    members: dict[str, Any] = instance.__dict__
    gate: Gate | None = members.get("_gate")
    if gate is None:
        gate = members["_gate"] = Gate(allows_overlap=getattr(instance, "allows_overlap", False))
    return gate


class _Executed(Future[Any]):
    """A call of `asyncio.to_thread`, which Python cannot stop."""

    def __init__(self, gate: Gate, name: str) -> None:
        super().__init__()
        self._gate, self.name = gate, name

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if not is_cancelled:
            self._gate.hold(self)
        return is_cancelled

    @property
    def is_running(self) -> bool:
        return self.running()

    def withdraw(self) -> bool:
        return not self.running()

    def give_up(self) -> None:
        """Wait for its end only."""


class _Executor(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`; the gate of a caller holds what runs on after the caller was cancelled."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        gate = inside.get()
        if gate is None or getattr(function, "__module__", "") in _OF_SOCKETS:
            return super().submit(function, *args, **kwargs)
        inner = [*getattr(function, "args", ()), function][0]  # of `to_thread`: a partial that runs it in a context
        future = _Executed(gate, str(getattr(inner, "__name__", type(inner).__name__)))

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        super().submit(run)
        return future


def watch_executor() -> None:
    """Let gates know the calls of `asyncio.to_thread` on this event loop, unless it has an executor already."""
    loop: Any = asyncio.get_running_loop()
    if getattr(loop, "_default_executor", None) is None:
        loop.set_default_executor(_Executor(thread_name_prefix="asyncio"))


async def after(gate: Gate, call: Any) -> Any:
    if not await gate.stop(BUSY_SECONDS, grace=GRACE_SECONDS):
        raise EnvError(still_running(gate.running))
    return await call()


def still_running(names: list[str]) -> str:
    run = "runs" if len(names) == 1 else "run"
    return f"{' and '.join(names)} still {run}, and the methods of an instance never overlap"
