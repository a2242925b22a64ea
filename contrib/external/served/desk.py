"""The desk of a served gateway: where episodes offer their sessions, and agents take them."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from contrib.external.scoring import Scorer
from contrib.external.served.visit import Visit
from contrib.external.session import ProgramSession
from forge_env.core.errors import EnvError
from forge_env.core.types import EpisodeLimits, Task
from forge_env.utils.deadlines import queued

REMEMBERED = 1024
"""Sessions that are still known after their end, for an agent that comes late or asks again."""

Begin = Callable[[Mapping[str, Any]], Awaitable[Visit]]

visitor: ContextVar[asyncio.Future[Visit] | None] = ContextVar("visitor", default=None)
"""Who the episode of the current task was begun for; None if its session is for whoever comes next."""


class Desk:
    """Sessions on offer, taken, and ended.

    Args:
        scorer: gives the reward of a finished session.
        token: which agents need to take a session.
        public_url: under which agents reach this server; "" is the address that they have called.
        take_seconds: how long an episode waits for an agent that takes its session.
    """

    def __init__(self, scorer: Scorer, *, token: str, public_url: str, take_seconds: float) -> None:
        self.scorer = scorer
        self.token = token
        self.public_url = public_url.rstrip("/")
        self.begin: Begin | None = None
        """Begins an episode for an agent that asks for a session; None where the episodes of a run are on offer."""
        self.is_closed = False
        """Whether the server is being stopped."""
        self._take_seconds = take_seconds
        self._queue: deque[Visit] = deque()
        self._arrival = asyncio.Event()
        self._open: dict[str, Visit] = {}
        self._past: OrderedDict[str, Visit] = OrderedDict()

    def admits(self, token: str) -> bool:
        """Whether somebody may take sessions."""
        return secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def find(self, session_id: str) -> Visit | None:
        return self._open.get(session_id) or self._past.get(session_id)

    def visit(self, session: ProgramSession, task: Task, seed: int, limits: EpisodeLimits) -> Visit:
        """Make the session of an episode; `offer` lets an agent have it."""
        return Visit(session, task=task, seed=seed, limits=limits, awaits_record=self.begin is not None)

    @property
    def open_sessions(self) -> tuple[Visit, ...]:
        return tuple(self._open.values())

    async def offer(self, visit: Visit) -> None:
        """Offer a session, and wait until an agent has it. The clocks of the episode do not run."""
        future = visitor.get()
        if future is not None:
            self._open[visit.id] = visit
            visit.pickup.set()
            future.set_result(visit)
            return
        self._queue.append(visit)
        self._arrival.set()
        try:
            async with queued(), asyncio.timeout(self._take_seconds):
                await visit.pickup.wait()
        except TimeoutError:
            raise EnvError(f"no agent has taken the session within {self._take_seconds:g} s") from None
        finally:
            if not visit.pickup.is_set():
                self._queue.remove(visit)

    def take(self) -> Visit | None:
        """Take the session that has waited longest; None if none is on offer."""
        if not self._queue:
            self._arrival.clear()  # here: whoever waits begins to wait later, and would miss an offer made before that
            return None
        visit = self._queue.popleft()
        self._open[visit.id] = visit
        visit.pickup.set()
        return visit

    async def arrival(self) -> None:
        """Wait until a session is offered after the last `take` that found none."""
        await self._arrival.wait()

    def stop(self) -> None:
        """Send away whoever waits for a session."""
        self.is_closed = True
        self._arrival.set()

    def close(self, visit: Visit) -> None:
        """Note the end of a session."""
        if self._open.pop(visit.id, None) is not None:
            self._past[visit.id] = visit
            while len(self._past) > REMEMBERED:
                self._past.popitem(last=False)
