"""EndpointTable: the endpoints of an actor's class. A client checks a call against it before it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import UserError, nearest

if TYPE_CHECKING:
    from forge_env.runtime.calls.endpoints import Endpoint


class UnknownEndpoint(UserError, AttributeError):
    """The actor's class has no such endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTable:
    """The endpoints of an actor's class, by name. It travels in messages; the class itself may be heavy to import."""

    actor: str
    """Name of the class."""
    classes: frozenset[str]
    """The class and its bases, each with its module."""
    names: frozenset[str]
    idempotent: frozenset[str]
    """Endpoints that may be called again if a replica dies during a call."""
    long: frozenset[str]
    """Endpoints without a deadline; their calls are cancelled with their callers."""

    def check(self, name: str) -> str:
        """Return `name` if it is an endpoint."""
        if name not in self.names:
            raise UnknownEndpoint(f"{self.actor} has no endpoint {name!r}. {nearest(name, self.names)}")
        return name

    def name_of(self, endpoint: Endpoint[Any, Any, Any]) -> str:
        """The name of an endpoint that is given as an attribute of its class, for example `PolicyActor.generate`."""
        owner = getattr(endpoint, "owner", None)
        if owner in self.classes:
            return endpoint.name
        name = f"{owner.rpartition('.')[2]}.{endpoint.name}" if owner else repr(endpoint)
        raise UnknownEndpoint(
            f"{name} is no endpoint of {self.actor}: name one of its class, as {self.actor}.{min(self.names)}. "
            f"{nearest(getattr(endpoint, 'name', ''), self.names)}"
        )
