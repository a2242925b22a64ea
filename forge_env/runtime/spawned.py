"""Spawned: an actor that a launcher has started, and its processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from forge_env.runtime.process.ranks import AllRanks, RankRendezvous

if TYPE_CHECKING:
    from forge_env.runtime.calls.endpoints import Endpoint

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False, kw_only=True)
class Spawned:
    """An actor and its processes, one for each rank."""

    name: str
    """Unique in its launcher."""
    caller: str
    """Unique among all actors that were ever spawned: the caller's name in calls of its processes."""
    log: Path
    mesh: Any
    actor: Any
    rendezvous: RankRendezvous | None
    dead: asyncio.Future[str]
    """Done when one of its processes has died, with a sentence about it."""
    on_death: Callable[[str], None] | None
    pids: set[int] = field(default_factory=set)
    """Process ids of its processes on this machine."""
    host_of_rank: list[int] = field(default_factory=list)
    """The host of each rank, if there are hosts."""
    far: list[tuple[int, int]] = field(default_factory=list)
    """Host and process id of the watched processes on other machines."""

    @property
    def handle(self) -> Any:
        """The object with its endpoints: Monarch's handle, or all ranks at once."""
        return AllRanks(self.actor) if self.rendezvous else self.actor

    @overload
    def call_one(self, endpoint: Endpoint[Any, P, None], *args: P.args, **kwargs: P.kwargs) -> Awaitable[None]: ...
    @overload
    def call_one(self, endpoint: Endpoint[Any, P, R | None], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    def call_one(self, endpoint: Endpoint[Any, P, Any], *args: P.args, **kwargs: P.kwargs) -> Awaitable[Any]:
        """Call an endpoint on the actor; for several ranks see `AllRanks.call_one`."""
        call: Awaitable[Any] = getattr(self.handle, endpoint.name).call_one(*args, **kwargs)
        return call
