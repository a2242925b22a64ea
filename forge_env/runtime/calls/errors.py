"""Exceptions on their way from an actor to its caller.

Monarch sends the exception itself. One that cannot be pickled then never arrives, and its caller waits for ever; one
that cannot be read back arrives as the error of reading it. So what travels is a ForgeError if it survives the way, and
otherwise the type and the text.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import cloudpickle
from monarch.actor import ActorError

from forge_env.core import errors
from forge_env.core.errors import ForgeError
from forge_env.core.user_code import fault, type_and_text

P = ParamSpec("P")
R = TypeVar("R")
_MOST_BYTES = 2**20
_MOST_TRACE = 20_000


class EndpointError(Exception):
    """Stands for an exception that is not a ForgeError; its text has the type and the text of that one."""


def portable(error: BaseException) -> Exception:
    """Return an exception that reaches the caller: the same ForgeError, or one of its kind, or an EndpointError."""
    if isinstance(error, EndpointError):
        return error
    if not isinstance(error, ForgeError):
        return EndpointError(type_and_text(error))
    try:
        data = cloudpickle.dumps(error)
        copy = pickle.loads(data)
        if type(copy) is type(error) and str(copy) == str(error) and len(data) <= _MOST_BYTES:
            return error
    except Exception:
        pass  # whatever the code of its class raises
    kind = next(base for base in type(error).__mro__ if vars(errors).get(base.__name__) is base)
    text = type_and_text(error) if kind is not type(error) else type_and_text(error).partition(": ")[2]
    return kind(text) if kind is not errors.TooFewTasks else errors.UserError(text)


def answering(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return an endpoint's method that raises exceptions only: a SystemExit, say, or the CancelledError of a task that
    it awaits would leave its caller, and all later ones, without an answer.
    """

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, Exception) or fault("", error) is None:
                raise
            raise EndpointError(type_and_text(error)) from error

    return call


def _reduce(self: ActorError) -> tuple[Any, ...]:
    return _read, (portable(self.exception), self.message, self.exception_formatted[-_MOST_TRACE:])


def _read(exception: Exception, message: str, trace: str) -> ActorError:
    error = ActorError.__new__(ActorError)
    error.exception, error.message, error.exception_formatted = exception, message, trace
    return error


def make_errors_portable() -> None:
    """Let Monarch send exceptions as `portable` makes them, those of constructors too."""
    ActorError.__reduce__ = _reduce
