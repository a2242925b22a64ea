"""ServiceHandle: calls the replicas of a service, with a session or a deadline."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from forge_env.core.errors import MissedDeadline, ReplicaBroken, ReplicaDied, ServiceError, UserError
from forge_env.runtime.calls.answers import in_background, quietly, unless_gone, within

if TYPE_CHECKING:
    from forge_env.runtime.calls.client import Member, ServiceClient
    from forge_env.runtime.calls.endpoints import Endpoint

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
MOST_TRIES = 3  # of an idempotent call; a call that has ended three replicas may end all of them
CALLER = "FORGE_ENV_CALLER"
"""Environment variable with the name of a process of a run; the controller has none."""
_REPLACED_S = 10.0  # within this time a broken replica stops getting calls
_CANCEL_S = 10.0


class ServiceHandle(Generic[A]):
    """Calls the replicas of a service of actors of class A.

    Two forms mean the same. A type checker checks the first; both are checked before a message is sent::

        completion = await policy.route(PolicyActor.generate, prompt_ids, sampling)
        completion = await policy.generate.route(prompt_ids, sampling)
    """

    def _view(self) -> View[A]:
        raise NotImplementedError

    def __getattr__(self, name: str) -> BoundEndpoint:
        if name.startswith("_") or name == "client":  # not set yet
            raise AttributeError(name)
        return self._view()._bind(name)

    def session(self, name: str) -> View[A]:
        """The same service for one session: its calls go to one replica as long as this replica is up."""
        view = self._view()
        return View(view._client, name, view._seconds)

    def deadline(self, seconds: float) -> View[A]:
        """The same service with another deadline for a call."""
        view = self._view()
        return View(view._client, view._session, seconds)

    def route(self, endpoint: Endpoint[A, P, R], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call an endpoint on one replica, see `BoundEndpoint.route`."""
        view = self._view()
        return view._bind(view._client.table.name_of(endpoint)).route(*args, **kwargs)

    def fanout(self, endpoint: Endpoint[A, P, R], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, list[R]]:
        """Call an endpoint on every replica that is up, see `BoundEndpoint.fanout`."""
        view = self._view()
        return view._bind(view._client.table.name_of(endpoint)).fanout(*args, **kwargs)

    def call_one(self, endpoint: Endpoint[A, P, R], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call an endpoint on the only replica, see `BoundEndpoint.call_one`."""
        view = self._view()
        return view._bind(view._client.table.name_of(endpoint)).call_one(*args, **kwargs)


class View(ServiceHandle[A]):
    """A service with a session and a deadline; without a deadline, each endpoint has its own."""

    def __init__(self, client: ServiceClient[A], session: str, seconds: float | None) -> None:
        self._client, self._session, self._seconds = client, session, seconds

    def _view(self) -> View[A]:
        return self

    def _bind(self, name: str) -> BoundEndpoint:
        return BoundEndpoint(self, self._client.table.check(name))


class BoundEndpoint:
    """One endpoint of a service, with the session and the deadline of its calls."""

    def __init__(self, view: View[Any], name: str) -> None:
        self._client, self._session, self._name = view._client, view._session, name
        self._is_long = name in self._client.table.long
        self._seconds = view._seconds if view._seconds is not None or self._is_long else self._client.seconds

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on one replica: the session's, or the one with the fewest calls in flight.

        If no replica is up, the call waits for one. If the replica dies during the call, an idempotent endpoint is
        called again on another one, MOST_TRIES times in all. If a call to a long endpoint is cancelled, or misses its
        deadline, it is cancelled in the actor too.
        """
        if self._seconds is None:
            return await self._try(args, kwargs)
        client = self._client
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                return await self._try(args, kwargs)
        except TimeoutError:
            if not deadline.expired():
                raise
            last = client.members.reason or "nothing"
            why = "" if client.up else f": no replica is up, and the last one said: {last}"
            raise ServiceError(f"{client.name}.{self._name} did not answer within {self._seconds:g} s{why}") from None

    async def _try(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it on one replica; if it dies, on another one if the endpoint may be called again."""
        client, tries = self._client, 1
        while True:
            member = await client.pick(self._session)
            try:
                return await self._call(member, args, kwargs)
            except ReplicaDied as error:
                if self._name not in client.table.idempotent:
                    raise
                if tries == MOST_TRIES:
                    raise ReplicaDied(f"{client.name}.{self._name} lost {tries} replicas: {error}") from None
                tries += 1
                client.retries += 1

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call it on every replica that is up; returns their answers, without those of replicas that died meanwhile."""
        answers = (await self.answers(*args, **kwargs)).values()
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ReplicaDied):
                raise answer
        return [answer for answer in answers if not isinstance(answer, ReplicaDied)]

    async def answers(self, *args: Any, **kwargs: Any) -> dict[int, Any]:
        """Call it on every replica that is up; returns the answer or the exception of each, by its number."""
        replicas = dict(self._client.replicas)
        calls = [self._call(member, args, kwargs) for member in replicas.values()]
        return dict(zip(replicas, await asyncio.gather(*calls, return_exceptions=True), strict=True))

    async def call_one(self, *args: Any, **kwargs: Any) -> Any:
        if self._client.up > 1:
            how = f"call {self._name} with .route() for one of them, or with .fanout() for all"
            raise UserError(f"{self._client.name} has {self._client.up} replicas: {how}")
        return await self.route(*args, **kwargs)

    async def _call(self, member: Member, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        what = f"{self._client.name}.{self._name}"
        call_id = f"{os.environ.get(CALLER, 'controller')}/{next(_calls)}" if self._is_long else ""
        member.calls += 1
        try:
            if call_id:
                return await within(self._seconds, member.gathered.call((call_id, self._name, args, kwargs)), what)
            call = within(self._seconds, getattr(member.handle, self._name).call_one(*args, **kwargs), what)
            return await unless_gone(call, member.death, ReplicaDied)
        except ReplicaBroken as error:
            await asyncio.wait({member.death}, timeout=_REPLACED_S)  # its next ping reports the fault, too
            raise ReplicaDied(str(error)) from None
        except (asyncio.CancelledError, MissedDeadline):
            if call_id and not member.death.done():
                in_background(quietly(_CANCEL_S, member.handle.cancel.call_one(call_id)), _background)
            raise
        finally:
            member.calls -= 1


_calls = itertools.count()
_background: set[asyncio.Task[None]] = set()
