"""Turns in lockstep: the episodes of a wave ask for completions together, so that every batch is the same on each run.

The last bits of a logprob depend on which requests share a batch with it, and these on which tool answered first. In a
wave they do not: its completions are sampled as one batch, sorted by request id, when every episode that has not ended
waits for one. The price is that each turn takes as long as the slowest of its tools.

A wave travels with the tasks that are started within it, and `LockstepPolicy` finds it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from forge_env.core.errors import InvariantError
from forge_env.core.protocols import ANSWER_SECONDS, Policy
from forge_env.core.types import Completion, Sampling
from forge_env.utils.deadlines import queued


class Request(NamedTuple):
    """What a policy is asked for."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    request_id: str


class BatchPolicy(Policy, Protocol):
    """A policy that also takes requests together."""

    async def generate_batch(self, requests: Sequence[Request]) -> Sequence[Completion | Exception]:
        """Sample for all of them as one batch that nothing else joins; what one of them raised is in its place."""
        ...


class LockstepPolicy:
    """Within a wave it asks together with the others; elsewhere it is the policy that it was given."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.answer_seconds = getattr(policy, "answer_seconds", ANSWER_SECONDS)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        wave = _wave.get()
        if wave is None:
            return await self._policy.generate(prompt_ids, sampling, request_id=request_id, session=session)
        return await wave.ask(self._policy, Request(tuple(prompt_ids), sampling, request_id))


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request that waits for its batch, and then for its answer."""

    request: Request
    sent: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    answer: asyncio.Future[Completion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Wave:
    """Episodes that run in lockstep.

    Example::

        async with Wave(len(tasks)) as wave:
            await asyncio.gather(*(play(task, wave) for task in tasks))  # each within `with wave.episode():`

    Args:
        episodes: how many take part, each with one request at a time. No batch is sent before each of them asks, or has
            ended.
    """

    def __init__(self, episodes: int) -> None:
        self._playing = episodes
        self._policy: BatchPolicy | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._sending: asyncio.Task[None] | None = None
        self._token: Token[Wave | None] | None = None

    async def __aenter__(self) -> Wave:
        self._token = _wave.set(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._token is not None
        _wave.reset(self._token)
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    @contextmanager
    def episode(self) -> Iterator[None]:
        """One of the episodes: when the block ends, however it ends, the others no longer wait for it."""
        try:
            yield
        finally:
            self._playing -= 1
            self._send_when_complete()

    async def ask(self, policy: BatchPolicy, request: Request) -> Completion:
        """Wait until all others ask as well; the clocks of the episode's deadlines stand still meanwhile."""
        if self._policy is not None and self._policy is not policy:
            raise InvariantError("the episodes of a wave ask more than one policy")
        if request.request_id in self._waiting:
            raise InvariantError(f"two requests of a wave have the id {request.request_id}")
        self._policy = policy
        waiting = self._waiting[request.request_id] = _Waiting(request)
        try:
            self._send_when_complete()
            async with queued():
                await waiting.sent
            return await waiting.answer
        finally:
            self._waiting.pop(request.request_id, None)

    def _send_when_complete(self) -> None:
        batch = [waiting for waiting in self._waiting.values() if not waiting.sent.done()]
        if self._sending is None and batch and len(batch) >= self._playing and self._policy is not None:
            batch.sort(key=lambda waiting: waiting.request.request_id)
            self._sending = asyncio.create_task(self._send(self._policy, batch))

    async def _send(self, policy: BatchPolicy, batch: Sequence[_Waiting]) -> None:
        for waiting in batch:
            if not waiting.sent.done():  # cancelled just now
                waiting.sent.set_result(None)
        answers: Sequence[Completion | Exception]
        try:
            answers = await policy.generate_batch([waiting.request for waiting in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():  # the episode ended meanwhile
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)
        self._sending = None
        self._send_when_complete()


_wave: ContextVar[Wave | None] = ContextVar("wave", default=None)
