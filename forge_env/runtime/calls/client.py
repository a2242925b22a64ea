"""ServiceClient: calls the replicas of a service, from any process.

A client is small and travels in messages. It has a list of the replicas that are up: the `Service` in the controller's
process (forge_env/runtime/service.py) updates the copies of the client in all other processes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from forge_env.core.errors import ServiceError, UserError, nearest
from forge_env.runtime.calls.gathered import Gathered
from forge_env.runtime.calls.handle import ServiceHandle, View
from forge_env.utils.deadlines import queued

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


A = TypeVar("A")
_MOST_SESSIONS = 65_536  # sessions with a remembered replica
_MOST_AHEAD = 16  # calls in flight that a group's replica may have more than another one


class Members(NamedTuple):
    """The replicas of a service that are up; a later edition replaces an earlier one."""

    edition: int = 0
    handles: Mapping[int, Any] = MappingProxyType({})
    """By number. A replica's number is never used again, not even for its replacement."""
    reason: str = ""
    """Why the last replica to leave has left."""
    is_over: bool = False
    """Whether no other replica will come."""


@dataclass(eq=False, slots=True)
class Member:
    """One replica that is up, as seen by this process."""

    handle: Any
    death: asyncio.Future[str]
    gathered: Gathered
    calls: int = 0
    """Calls in flight from this process."""


class ServiceClient(ServiceHandle[A]):
    """A handle of a service that travels: in any process, it has the list of replicas that are up.

    Args:
        seconds: deadline of a call to an ordinary endpoint, including the wait for a replica.
    """

    def __init__(
        self, name: str, table: EndpointTable, *, seconds: float = 300.0, id: str = "", members: Members | None = None
    ) -> None:
        self.name = name
        self.table = table
        self.seconds = seconds
        self.id = id or uuid.uuid4().hex
        self.members = Members(handles={})  # a mapping proxy cannot travel
        self.retries = 0
        """Calls that were made again, in this process."""
        self.replicas: dict[int, Member] = {}
        """The replicas that are up, by number."""
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._waiting: list[asyncio.Future[None]] = []
        _clients[self.id] = self
        if members is not None:
            self.update(members)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (self.name, self.table, self.seconds, self.id, self.members)

    def _view(self) -> View[A]:
        return View(self, "", None)

    @property
    def up(self) -> int:
        return len(self.replicas)

    def update(self, members: Members) -> None:
        """Take over the list of replicas that are up; calls to a replica that is gone end at once."""
        if members.edition <= self.members.edition:
            return
        self.members = members
        for number in self.replicas.keys() - members.handles.keys():
            self.replicas.pop(number).death.set_result(members.reason)
        for number in members.handles.keys() - self.replicas.keys():
            handle, death = members.handles[number], asyncio.get_running_loop().create_future()
            self.replicas[number] = Member(handle, death, Gathered(handle, death))
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def pick(self, session: str) -> Member:
        """The replica for the next call: the session's, or the one with the fewest calls in flight.

        Sessions of one group have names GROUP/... and go to one replica unless it is much busier: a group's episodes
        begin with the same prompt.
        """
        if not self.replicas:
            async with queued():  # waiting for a replica does not count as the episode's time
                while not self.replicas:
                    if self.members.is_over:
                        reason = self.members.reason or "it was stopped"
                        raise ServiceError(f"{self.name} has no replica any more: {reason}")
                    change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(change)
                    await change
        number = self._sessions.get(session) if session else None
        if number not in self.replicas:
            group = session.rpartition("/")[0]
            near, number = self._sessions.get(group), min(self.replicas, key=lambda n: (self.replicas[n].calls, n))
            if near in self.replicas and self.replicas[near].calls - self.replicas[number].calls <= _MOST_AHEAD:
                number = near
            self._remember(group, number)
        self._remember(session, number)
        return self.replicas[number]

    def _remember(self, session: str, number: int) -> None:
        if session:
            self._sessions[session] = number
            self._sessions.move_to_end(session)
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)


_clients: dict[str, ServiceClient[Any]] = {}
"""The clients of this process, by id: a client that arrives several times stays one object."""


def _revive(name: str, table: EndpointTable, seconds: float, service_id: str, members: Members) -> ServiceClient[Any]:
    client = _clients.get(service_id)
    if client is None:
        return ServiceClient(name, table, seconds=seconds, id=service_id, members=members)
    client.update(members)
    return client


def update_client(service_id: str, members: Members) -> None:
    if service_id in _clients:
        _clients[service_id].update(members)


def forget_client(service_id: str) -> None:
    _clients.pop(service_id, None)
