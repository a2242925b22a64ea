"""The player of an episode whose agent runs elsewhere: it takes a session over HTTP, and finishes it with its work."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, NamedTuple

from contrib.external.output import SHOWN
from contrib.external.scoring import Result
from contrib.external.session import ProgramSession
from forge_env.core.errors import EnvError
from forge_env.core.types import EpisodeLimits, Task


class Work(NamedTuple):
    """What an agent finishes its session with."""

    answer: str | None
    """None is the model's last message."""
    reward: float | None


class Visit:
    """One session of an agent elsewhere.

    Args:
        session: with the token of the agent.
        task: of the episode.
        seed: of the episode.
        limits: of the episode.
        awaits_record: whether the owner of the episode says how it ended, after recording it. Otherwise its
            environment does.
    """

    kind = "session"
    who = "the session's agent"
    listener = None

    def __init__(
        self, session: ProgramSession, *, task: Task, seed: int, limits: EpisodeLimits, awaits_record: bool = False
    ) -> None:
        self.id = secrets.token_hex(8)
        self.session = session
        self.task = task
        self.seed = seed
        self.limits = limits
        self.pickup = asyncio.Event()
        """Set when an agent has the session."""
        self.finish_digest = b""
        """Of the body that finished the session; empty before."""
        loop = asyncio.get_running_loop()
        self._work: asyncio.Future[Work] = loop.create_future()
        self._summary: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._proposal: dict[str, Any] = {}
        self._awaits_record = awaits_record

    # what its agent does

    def finish(self, work: Work, digest: bytes) -> None:
        """Take the agent's work, unless the episode has ended."""
        if not self._work.done():
            self.finish_digest = digest
            self._work.set_result(work)

    def fail(self, why: str, digest: bytes = b"") -> None:
        """End the episode as a fault, unless its work is there."""
        if not self._work.done():
            self.finish_digest = digest
            self._work.set_exception(EnvError(why))
            self._work.exception()  # so that asyncio does not report it where nobody waits

    # what its environment asks, see `Player`

    async def wait_for_end(self) -> int:
        """Wait for the agent's work."""
        await asyncio.shield(self._work)
        return 0

    def ending(self, code: int) -> str:
        return "finished its session"

    def result(self, last_words: str) -> Result:
        """Return the agent's work; without an answer, the model's last message is the answer."""
        work = self._work.result()
        return Result(answer=last_words if work.answer is None else work.answer, reward=work.reward)

    def facts(self) -> dict[str, Any]:
        """Return the id of the session, and the answer that finished it, up to SHOWN characters."""
        work = self._work.result() if self.finish_digest and not self._work.exception() else None
        return {"id": self.id, **({"answer": work.answer[:SHOWN]} if work and work.answer is not None else {})}

    def last_lines(self) -> str:
        return ""

    async def close(self) -> None:
        """Say how the episode ended, as far as its environment knows it."""
        self.fail("the episode was ended before the session was finished")
        if not self._awaits_record:
            self.conclude(self._proposal or {"outcome": "fault", "error": "the episode was ended before it was scored"})

    # how the episode ended

    def propose(self, **summary: Any) -> None:
        """Note how the episode ended; the first call stays."""
        self._proposal = self._proposal or summary

    def conclude(self, summary: dict[str, Any]) -> None:
        """Say how the episode ended; the first call stays."""
        if not self._summary.done():
            self._summary.set_result(summary)

    async def summary(self) -> dict[str, Any]:
        """Wait until the episode has ended; return its outcome, reward and error."""
        return await asyncio.shield(self._summary)

    @property
    def has_ended(self) -> bool:
        return self._summary.done()

    def admits(self, token: str) -> bool:
        """Whether somebody has the token of this session."""
        return secrets.compare_digest(token.encode("utf-8", "replace"), self.session.token.encode())

    def state(self) -> dict[str, Any]:
        name = "ended" if self.has_ended else "finished" if self.finish_digest else "open"
        summary = self._summary.result() if self.has_ended else {}
        return {"id": self.id, "state": name, "requests": self.session.count, **summary}
