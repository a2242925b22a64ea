"""Calls user code: coroutine functions on the event loop, plain ones in threads. A cancelled call is stopped."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from forge_env.utils.gates import Gate, after, gate_of, inside
from forge_env.utils.workers import Call, start

F = TypeVar("F", bound=Callable[..., Any])
_COROUTINE = inspect.CO_COROUTINE
own_thread_each: contextvars.ContextVar[bool] = contextvars.ContextVar("own_thread_each", default=False)
"""If it is set, each call has a thread of its own. `forge-env check` finds state with it that depends on the thread."""


def invoke(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Return a call to await: of a coroutine function, or of a plain function in a thread, with the caller's context
    variables.

    Cancelling the caller stops the call: a coroutine at its next await, a plain function at its next bytecode. A plain
    function that blocks in a C call (`time.sleep`, a socket) ends when that call returns; nothing after it runs. Within
    `call_on`, the call first waits for those on the same instance that were cancelled and run on.

    An exception of the call itself, for wrong arguments for example, is raised where the result is awaited.
    """
    return _make_call(inside.get(), function, args, kwargs)


def call_on(instance: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Return a call as `invoke` does, of a function that belongs to an instance: they never overlap, see
    `forge_env.utils.gates`.
    """
    return call_in(gate_of(instance), function, *args, **kwargs)


def call_in(gate: Gate, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    return _make_call(gate, function, args, kwargs) if inside.get() is gate else _inside(gate, function, args, kwargs)


def _make_call(
    gate: Gate | None, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Coroutine[Any, Any, Any]:
    if gate is not None and gate.holders and gate.is_held and not hasattr(function, "__forge_gated__"):
        return after(gate, functools.partial(_make_call, gate, function, args, kwargs))
    if not _is_awaited(function):
        return _in_thread(function, args, kwargs, gate)
    try:
        return function(*args, **kwargs)  # without a coroutine around it, which would cost as much as many a step
    except BaseException as error:
        return _raise(error)


async def _inside(gate: Gate, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    token = inside.set(gate)
    try:
        return await _make_call(gate, function, args, kwargs)
    finally:
        inside.reset(token)


def call_alone(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Return a call as `invoke` does, of a function that belongs to no instance: an agent's."""
    return _make_call(None, function, args, kwargs)


async def _raise(error: BaseException) -> Any:
    raise error


async def _in_thread(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], gate: Gate | None
) -> Any:
    call = Call(function, args, kwargs)
    start(call, in_new_thread=own_thread_each.get())
    try:
        result = await call.future
    except asyncio.CancelledError:
        if gate is None:
            call.give_up()
        else:
            gate.hold(call)
        raise
    return result if isinstance(result, (str, float)) or not inspect.isawaitable(result) else await result


def behind_gate(function: F) -> F:
    """Mark a coroutine function that calls users' code by `call_on` only: it may begin while a call still runs."""
    function.__forge_gated__ = True  # type: ignore[attr-defined]
    return function


def instant(function: F) -> F:
    """Mark a plain function that takes no time, so that no thread is needed for it, see `is_instant`."""
    function.__forge_instant__ = function  # type: ignore[attr-defined]  # itself: functools.wraps hands attributes on
    return function


def is_instant(function: Callable[..., Any]) -> bool:
    return function is object.__init__ or getattr(function, "__forge_instant__", None) is function


def _is_awaited(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & _COROUTINE:  # the usual case; `inspect` takes several times as long
        return True
    return inspect.iscoroutinefunction(function)
