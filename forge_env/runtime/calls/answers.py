"""Waiting for the answer of an actor: deadlines, deaths, and the kind of an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from forge_env.core.errors import ForgeError, MissedDeadline, ServiceError, first_error

T = TypeVar("T")
GRACE_S = 1.0  # a death shows as a broken call or as a dead process, in either order


async def within(seconds: float | None, call: Awaitable[T], what: str) -> T:
    """Await a call to an actor, with a deadline; every error is raised as a ForgeError.

    Args:
        seconds: None for a call without a deadline: pings find a replica that hangs.
    """
    from monarch.actor import ActorError

    deadline = None
    try:
        if seconds is None:
            return await call
        async with asyncio.timeout(seconds) as deadline:
            return await call
    except ActorError as error:
        if isinstance(error.exception, ForgeError):
            raise error.exception from None
        raise ServiceError(f"{what} failed: {' '.join(str(error.exception).split())}") from error
    except ForgeError:
        raise
    except Exception as error:  # Monarch's own errors, for example a SupervisionError
        if deadline is not None and deadline.expired() and isinstance(error, TimeoutError):
            raise MissedDeadline(f"{what} did not answer within {seconds:g} s") from None
        raise ServiceError(f"{what} failed: {type(error).__name__}: {error}") from None


async def unless_gone(call: Awaitable[T], death: asyncio.Future[Any], error: type[ServiceError] = ServiceError) -> T:
    """Await a call to an actor; if the actor dies meanwhile, raise at once.

    Args:
        death: done when the actor is gone, with the reason or an exception.
    """
    task = asyncio.ensure_future(call)
    try:
        either: set[asyncio.Future[Any]] = {task, death}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if is_service_error(task):  # the death of the process explains more than the broken call
            await asyncio.wait({death}, timeout=GRACE_S)
        if death.done() and (not task.done() or is_service_error(task)):
            raise error(death.result())
        return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def is_service_error(task: asyncio.Future[Any]) -> bool:
    error = task.exception() if task.done() and not task.cancelled() else None
    return error is not None and isinstance(first_error(error), ServiceError)


def in_background(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Start a task, which `tasks` holds until it ends."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def quietly(seconds: float, call: Awaitable[Any]) -> None:
    """Await a call and ignore its errors, because the processes are ended anyway."""
    try:
        await within(seconds, call, "")
    except ForgeError:
        pass
