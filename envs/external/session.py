"""The requests of one program, from their arrival to the delivery of their answers.

They are answered one after another. Each must have been answered, and its answer delivered, when the program ends:
otherwise somebody has acted on less than what was recorded.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque

from envs.external.requests import Question, Refused
from envs.external.responses import Reply

SHOWN = 4
"""Reasons of refusals that a fault's sentence names."""
MAX_REQUESTS = 64
"""Requests of one program that are open at once."""


REMEMBERED = 4
"""Answers that are kept after their delivery, for a client that did not see it."""


class Asked:
    """One request. A client that lost its connection may come back for the answer, which is then the same one."""

    def __init__(self, question: Question, digest: bytes, number: int) -> None:
        self.question = question
        self.digest = digest
        self.number = number
        """Of the requests of the session, from 1 on."""
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.clients = 1
        """Connections that wait for the answer."""
        self.taken = False
        """Whether somebody is at work on the answer."""
        self.delivered = False

    @property
    def is_lost(self) -> bool:
        """Whether nobody waits for it any more."""
        return not self.delivered and self.clients == 0


def _refuse(asked: Asked, refusal: Refused) -> None:
    asked.reply.set_exception(refusal)
    asked.reply.exception()  # nobody need wait for it


class Refusals:
    """The requests of one program that were refused: how many by reason, and what was said the first time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._first: dict[str, Refused] = {}

    def add(self, refusal: Refused) -> None:
        self.counts[refusal.reason] += 1
        self._first.setdefault(refusal.reason, refusal)

    @property
    def sentences(self) -> list[str]:
        """One for each reason. Example: ["2 x HTTP 400: n is 2, which is not offered: leave it out"]"""
        return [f"{count} x HTTP {self._first[r].status}: {self._first[r]!s:.300}" for r, count in self.counts.items()]

    def __str__(self) -> str:
        """For the middle of a sentence; empty where nothing was refused."""
        total = self.counts.total()
        sentences = self.sentences
        more = [f"and for {len(sentences) - SHOWN} reasons more"] * (len(sentences) > SHOWN)
        shown = "; ".join([*sentences[:SHOWN], *more])
        return f"{total} {'request was' if total == 1 else 'requests were'} refused ({shown})" if total else ""


class Session:
    """What one program asks. `token` is all that it knows of it."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.count = 0
        self.refusals = Refusals()
        self._end = ("the episode is over", "episode_over")
        self._open: list[Asked] = []
        self._queue: deque[Asked] = deque()
        self._delivered: deque[Asked] = deque(maxlen=REMEMBERED)
        self._arrived = asyncio.Event()
        self._closed = False

    def ask(self, question: Question, digest: bytes, *, is_retry: bool) -> Asked:
        """Take a request in. The same one again, after its client was lost, is no second request.

        Args:
            digest: of the whole body.
            is_retry: whether the client says that it asks again, so that the loss need not have been noticed yet.

        Raises:
            Refused: when too many are open, or the session is closed.
        """
        if self._closed:
            raise self._over()
        for asked in (*self._open, *(self._delivered if is_retry else ())):
            if asked.digest == digest and (asked.is_lost or is_retry):
                asked.clients += 1
                if not asked.taken and asked not in self._queue:  # it was left aside when its turn came
                    self._enqueue(asked)
                return asked
        if len(self._open) >= MAX_REQUESTS:
            raise Refused(429, f"{MAX_REQUESTS} requests of this session are open, which is all that may be at once")
        self.count += 1
        asked = Asked(question, digest, self.count)
        self._open.append(asked)
        self._enqueue(asked)
        return asked

    async def next(self) -> Asked:
        """Wait for a request that somebody waits for."""
        while True:
            while self._queue:
                asked = self._queue.popleft()
                if not asked.is_lost:
                    asked.taken = True
                    return asked
            self._arrived.clear()
            await self._arrived.wait()

    def delivered(self, asked: Asked) -> None:
        """Note that the answer was handed over."""
        if not asked.delivered:
            asked.delivered = True
            self._delivered.append(asked)
            self._open.remove(asked)

    def refuse(self, asked: Asked, refusal: Refused) -> None:
        """Answer a request with a refusal. It need not arrive: nothing was sampled for it that could be lost."""
        self.refusals.add(refusal)
        _refuse(asked, refusal)
        self._open.remove(asked)

    def missing(self) -> str:
        """What keeps the record from being complete; empty when nothing does."""
        if not self._open:
            return ""
        asked = self._open[0]
        if asked.reply.done():
            return f"the answer to request {asked.number} did not reach the program"
        return f"request {asked.number} was still waiting for its answer when the program ended"

    @property
    def is_waited_for(self) -> bool:
        """Whether a request waits for its answer."""
        return any(not asked.reply.done() for asked in self._open)

    def close(self, why: str = "", code: str = "") -> None:
        """Answer what waits, and all that comes later, that there is nobody to answer any more.

        Args:
            why: a sentence. That of the first call stays.
            code: the same in a word, for a program.
        """
        if why and not self._closed:
            self._end = (why, code)
        self._closed = True
        for asked in self._open:
            if not asked.reply.done():
                _refuse(asked, self._over())
        self._queue.clear()

    def _over(self) -> Refused:
        why, code = self._end
        return Refused(503, why, code=code, final=True)

    def _enqueue(self, asked: Asked) -> None:
        self._queue.append(asked)
        self._arrived.set()
