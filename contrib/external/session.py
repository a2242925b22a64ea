"""The requests of one program, from their arrival to the delivery of their responses.

When the program ends, every response must have been delivered: otherwise the program has acted on less than what was
recorded.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque

from contrib.common.http_server import RequestRefused
from contrib.external.requests import ProgramRequest
from contrib.external.responses import ProgramReply
from forge_env.core.types import Action, Message

SHOWN = 4
"""Reasons of refusals that the message of a fault names."""
MAX_REQUESTS = 64
"""The most requests of one program that are open at once."""
REMEMBERED = 4
"""Responses that are kept after their delivery, for a client that lost its connection."""


class PendingRequest:
    """One request. A client that lost its connection and repeats the request gets the same response."""

    def __init__(self, request: ProgramRequest, digest: bytes, number: int) -> None:
        self.request = request
        self.digest = digest
        self.number = number
        """Position among the requests of the session, from 1."""
        self.reply: asyncio.Future[ProgramReply] = asyncio.get_running_loop().create_future()
        self.clients = 1
        """Connections that wait for the response."""
        self.is_taken = False
        """Whether `ProgramSession.next` has returned it."""
        self.delivered = False

    @property
    def is_lost(self) -> bool:
        """Whether all of its connections were lost before the delivery."""
        return not self.delivered and self.clients == 0


def _refuse(pending: PendingRequest, refusal: RequestRefused) -> None:
    pending.reply.set_exception(refusal)
    pending.reply.exception()  # so that asyncio does not report it if no connection waits


class Refusals:
    """The requests of one program that were refused: counts and first messages, by reason."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._first: dict[str, RequestRefused] = {}

    def add(self, refusal: RequestRefused) -> None:
        self.counts[refusal.reason] += 1
        self._first.setdefault(refusal.reason, refusal)

    @property
    def sentences(self) -> list[str]:
        """A sentence for each reason. Example: ["2 x HTTP 400: n is 2, which is not offered: leave it out"]"""
        return [f"{count} x HTTP {self._first[r].status}: {self._first[r]!s:.300}" for r, count in self.counts.items()]

    def __str__(self) -> str:
        """A clause for the middle of a sentence; empty if nothing was refused."""
        total = self.counts.total()
        sentences = self.sentences
        more = [f"and for {len(sentences) - SHOWN} reasons more"] * (len(sentences) > SHOWN)
        text = "; ".join([*sentences[:SHOWN], *more])
        return f"{total} {'request was' if total == 1 else 'requests were'} refused ({text})" if total else ""


class ProgramSession:
    """The requests of one program. The program knows the session by its `token`."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.count = 0
        self.refusals = Refusals()
        self.ignored: Counter[str] = Counter()
        """How many requests had a field or a part of one that is ignored, by its name."""
        self.media: dict[str, str] = {}
        """The images, sounds and documents that requests held: SHA-256 of the content -> the note in its place."""
        self.histories: dict[str, tuple[Message, ...]] = {}
        """The conversations up to the responses that a request may name, by the name."""
        self._end = ("the episode is over", "episode_over")
        self._open: list[PendingRequest] = []
        self._queue: deque[PendingRequest] = deque()
        self._deliveries: deque[PendingRequest] = deque(maxlen=REMEMBERED)
        self._arrival = asyncio.Event()
        self._is_closed = False

    def add(self, request: ProgramRequest, digest: bytes, *, is_retry: bool) -> PendingRequest:
        """Queue a request. The same request again, from a client that lost its connection, is not a second request.

        Args:
            digest: of path and body.
            is_retry: whether the client marks it as repeated; then its lost connection may not be known here yet.
        """
        if self._is_closed:
            raise self._over()
        same = [one for one in (*self._open, *self._deliveries) if one.digest == digest and (one.is_lost or is_retry)]
        if same:  # a client that retries means its latest request; of several, one that has lost its connection
            pending = max(same, key=lambda one: (one.is_lost, one.number))
            pending.clients += 1
            if not pending.is_taken and not pending.delivered and pending not in self._queue:
                self._enqueue(pending)  # `next` skipped it while it had no connection
            return pending
        if len(self._open) >= MAX_REQUESTS:
            raise RequestRefused(
                429, f"{MAX_REQUESTS} requests of this session are open, which is all that may be at once"
            )
        self.count += 1
        self.ignored.update(request.ignored)
        pending = PendingRequest(request, digest, self.count)
        self._open.append(pending)
        self._enqueue(pending)
        return pending

    async def next(self) -> PendingRequest:
        while True:
            while self._queue:
                pending = self._queue.popleft()
                if not pending.is_lost:
                    pending.is_taken = True
                    return pending
            self._arrival.clear()
            await self._arrival.wait()

    def delivered(self, pending: PendingRequest) -> None:
        if not pending.delivered:
            pending.delivered = True
            self._deliveries.append(pending)
            self._open.remove(pending)

    def refuse(self, pending: PendingRequest, refusal: RequestRefused) -> None:
        """Answer a request with a refusal. Nothing was sampled for it, so its delivery is not required."""
        self.refusals.add(refusal)
        _refuse(pending, refusal)
        self._open.remove(pending)

    def missing(self, who: str = "the program") -> str:
        """Return why the record is not complete; empty when it is. `who` has asked.

        An auxiliary request may be left: nothing that was done depends on its answer.
        """
        pending = next((one for one in self._open if not one.request.told.auxiliary), None)
        if pending is None:
            return ""
        if pending.reply.done():
            return f"the answer to request {pending.number} did not reach {who}"
        return f"request {pending.number} was still waiting for its answer when {who} ended"

    @property
    def has_waiting_request(self) -> bool:
        return any(not pending.reply.done() for pending in self._open)

    def close(self, why: str = "", code: str = "") -> None:
        """Refuse the requests that wait and all later ones.

        Args:
            why: the message of the refusals. The first call's message stays.
            code: the same as a short name, for programs.
        """
        if why and not self._is_closed:
            self._end = (why, code)
        self._is_closed = True
        for pending in self._open:
            if not pending.reply.done():
                _refuse(pending, self._over())
        self._queue.clear()

    def _over(self) -> RequestRefused:
        why, code = self._end
        return RequestRefused(503, why, code=code, final=True)

    def _enqueue(self, pending: PendingRequest) -> None:
        self._queue.append(pending)
        self._arrival.set()


def was_cut_by_program(pending: PendingRequest, action: Action) -> bool:
    """Whether the last response ended at the `max_tokens` that the program had set."""
    limit, num_written = pending.request.max_tokens, (action.usage or {}).get("completion_tokens", 0)
    return action.finish_reason == "length" and limit is not None and num_written >= limit
