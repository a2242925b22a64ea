"""Endpoints: the methods of an actor that other processes call by messages.

An endpoint that is named on its class has the arguments and the result of its method. So a type checker checks
`await service.route(PolicyActor.generate, prompt_ids, sampling)`, and an editor leads from the call to the method.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import monarch.actor

from forge_env.core.errors import nearest
from forge_env.runtime.calls.client import EndpointTable, UnknownEndpoint
from forge_env.runtime.calls.errors import answering, make_errors_portable

if TYPE_CHECKING:  # the type checker does not know Monarch's base, and would then accept every attribute and class
    MonarchEndpoint = object
else:
    from monarch._src.actor.endpoint import EndpointProperty as MonarchEndpoint

make_errors_portable()
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
