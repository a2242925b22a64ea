"""Endpoints: the methods of an actor that other processes call by messages.

An endpoint that is named on its class has the arguments and the result of its method. So a type checker checks
`await service.route(PolicyActor.generate, prompt_ids, sampling)`, and an editor leads from the call to the method.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import cloudpickle
import monarch.actor
from monarch.actor import ActorError

from forge_env.core import errors
from forge_env.core.errors import ForgeError, nearest
from forge_env.core.user_code import fault, type_and_text
from forge_env.runtime.calls.client import EndpointTable, UnknownEndpoint

if TYPE_CHECKING:  # the type checker does not know Monarch's base, and would then accept every attribute and class
    MonarchEndpoint = object
else:
    from monarch._src.actor.endpoint import EndpointProperty as MonarchEndpoint

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")
A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Endpoint(MonarchEndpoint, Generic[A_contra, P, R_co]):
    """An endpoint of the actor class A, with its method's arguments P, without `self`, and its result R.

    Many calls run at once in an actor, each up to its next `await`.
    """

    name: str
    owner: str
    """The class that declares it, with its module."""

    def __init__(self, method: Callable[Concatenate[A_contra, P], Coroutine[Any, Any, R_co]], *, is_long: bool = False):
        # Nobody reads Monarch's spans of each call, and they take a seventh of a short call in the actor.
        self.method: Any = answering(method)
        vars(self).update(vars(monarch.actor.concurrent_endpoint(self.method, instrument=False)))
        self.is_long = is_long

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = f"{owner.__module__}.{owner.__qualname__}", name


def concurrent_endpoint(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Endpoint[A, P, R]:
    """Make an async method of an actor an endpoint. A call through a service has the service's deadline."""
    return Endpoint(method)


def endpoint_table(actor_class: type) -> EndpointTable:
    members = {name: getattr(actor_class, name, None) for name in dir(actor_class)}
    endpoints = {name: value for name, value in members.items() if isinstance(value, MonarchEndpoint)}
    idempotent: frozenset[str] = getattr(actor_class, "idempotent", frozenset())
    for name in sorted(idempotent - endpoints.keys()):
        raise UnknownEndpoint(
            f"{actor_class.__name__}.idempotent has {name!r}, which is no endpoint. {nearest(name, endpoints)}"
        )
    return EndpointTable(
        actor=actor_class.__name__,
        classes=frozenset(f"{base.__module__}.{base.__qualname__}" for base in actor_class.__mro__),
        names=frozenset(endpoints),
        idempotent=idempotent,
        long=frozenset(name for name, endpoint in endpoints.items() if getattr(endpoint, "is_long", False)),
    )


_MOST_BYTES = 2**20
_MOST_TRACE = 20_000


class EndpointError(Exception):
    """Stands for an exception that is not a ForgeError; its text has the type and the text of that one."""


def portable(error: BaseException) -> Exception:
    """Return an exception that reaches the caller: the same ForgeError, or one of its kind, or an EndpointError.

    Monarch sends the exception itself. If it cannot be pickled, its caller waits for ever.
    """
    if isinstance(error, EndpointError):
        return error
    if not isinstance(error, ForgeError):
        return EndpointError(type_and_text(error))
    try:
        data = cloudpickle.dumps(error)
        copy = pickle.loads(data)
        if type(copy) is type(error) and str(copy) == str(error) and len(data) <= _MOST_BYTES:
            return error
    except BaseException:
        pass  # whatever the code of its class raises, even SystemExit
    return _in_words(error)


def _in_words(error: BaseException) -> Exception:
    """An exception of one of our kinds, or an EndpointError, with nothing of another one but its text."""
    if not isinstance(error, ForgeError):
        return EndpointError(type_and_text(error))
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


_init: Callable[..., None] = ActorError.__init__


def _init_of_any(self: ActorError, exception: BaseException, message: str = "A remote actor call has failed.") -> None:
    """Monarch writes the traceback of an exception here. If that fails, its caller, too, waits for ever."""
    try:
        _init(self, exception, message)
    except BaseException:  # of the exception's own code, such as a __getattr__ that raises KeyError
        _init(self, _in_words(exception).with_traceback(exception.__traceback__), message)


def _reduce(self: ActorError) -> tuple[Any, ...]:
    return _read, (portable(self.exception), self.message, self.exception_formatted[-_MOST_TRACE:])


def _read(exception: Exception, message: str, trace: str) -> ActorError:
    error = ActorError.__new__(ActorError)
    error.exception, error.message, error.exception_formatted = exception, message, trace
    return error


ActorError.__init__ = _init_of_any
ActorError.__reduce__ = _reduce  # Monarch then sends exceptions as `portable` makes them, those of constructors too
