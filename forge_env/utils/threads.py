"""Calls user code: coroutine functions on the event loop, plain ones in threads. A cancelled call is stopped."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from forge_env.utils.lanes import lane_of
from forge_env.utils.trust import trust_in
from forge_env.utils.workers import Call

F = TypeVar("F", bound=Callable[..., Any])
_COROUTINE = inspect.CO_COROUTINE
own_thread_each: contextvars.ContextVar[bool] = contextvars.ContextVar("own_thread_each", default=False)
"""If it is set, each call has a thread of its own. `forge-env check` finds state with it that depends on the thread."""


_GIVEN_UP = "__forge_given_up__"
"""The attribute of a cancellation that holds the call."""


class GivenUpCall(Protocol):
    """A call in a thread after its caller was cancelled."""

    @property
    def is_running(self) -> bool:
        """Whether it runs on, because it blocks in a C call."""
        ...


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
    loop = asyncio.get_running_loop()
    call = Call(function, args, kwargs, trust_in(function), loop)
    if own_thread_each.get():
        lane_of(loop).start(call, in_new_thread=True)
    else:
        lane_of(loop).add(call)
    try:
        result = await call.future
    except asyncio.CancelledError as cancelled:
        call.give_up()
        setattr(cancelled, _GIVEN_UP, call)
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


def instant(function: F) -> F:
    """Mark a plain function that takes no time, so that no thread is needed for it, see `is_instant`."""
    function.__forge_instant__ = function  # type: ignore[attr-defined]  # itself: functools.wraps hands attributes on
    return function


def is_instant(function: Callable[..., Any]) -> bool:
    return function is object.__init__ or getattr(function, "__forge_instant__", None) is function


def _is_awaited(function: Callable[..., Any]) -> bool:
    """Whether what it returns is to be awaited."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & _COROUTINE:  # the usual case; `inspect` takes several times as long
        return True
    return hasattr(function, "__forge_awaitable__") or inspect.iscoroutinefunction(function)
