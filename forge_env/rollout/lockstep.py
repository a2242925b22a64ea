"""Turns in lockstep: the episodes of a wave request completions together, so that all batches are reproducible.

The last bits of a logprob depend on the other requests of its batch, and these depend on which tool answered first. A
wave removes this dependence: when every running episode waits for a completion, all are sampled as one batch, sorted by
request id. The price is that each turn takes as long as its slowest tool.

The current wave is a context variable, which the tasks started within it inherit; `LockstepPolicy` reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from forge_env.core.errors import InvariantError
from forge_env.core.protocols import ANSWER_SECONDS, Policy
from forge_env.core.tokens import IDS, array_of
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from forge_env.utils.deadlines import queued


class Request(NamedTuple):
    prompt_ids: np.ndarray
    sampling: Sampling
    request_id: str


class BatchPolicy(Policy, Protocol):
    """A policy that also accepts batches of requests."""

    async def generate_batch(self, requests: Sequence[Request]) -> Sequence[Completion | Exception]:
        """Sample all requests as one batch, without others. The exception of a request is returned in its place."""
        ...


class LockstepPolicy:
    """Within a wave it batches requests with the other episodes'; elsewhere it passes them on."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.answer_seconds = getattr(policy, "answer_seconds", ANSWER_SECONDS)

    async def generate(
        self, prompt_ids: np.ndarray, sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        wave = _wave.get()
        if wave is None:
            return await self._policy.generate(prompt_ids, sampling, request_id=request_id, session=session)
        return await wave.generate(self._policy, Request(array_of(prompt_ids, IDS), sampling, request_id))


@dataclass(eq=False, slots=True)
class _PendingRequest:
    """A request that waits for its batch, and then for its completion."""

    request: Request
    episode: object
    """The episode of the request; an episode may have several turns at once."""
    on_send: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    answer: asyncio.Future[Completion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Wave:
    """Episodes that run in lockstep.

    Example::

        async with Wave(len(tasks)) as wave:
            await asyncio.gather(*(play(task, wave) for task in tasks))  # each within `with wave.episode():`

    Args:
        episodes: number of episodes. A batch is sent when each of them has a request or has ended. If turns of one
            episode run at once, the batch has those that have come until then, which depends on time.
    """

    def __init__(self, episodes: int) -> None:
        self._running = episodes
        self._policy: BatchPolicy | None = None
        self._pending: dict[str, _PendingRequest] = {}
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
        """The scope of one episode: after the block, however it ends, the others no longer wait for it."""
        token = _episode.set(object())
        try:
            yield
        finally:
            _episode.reset(token)
            self._running -= 1
            self._send_when_complete()

    async def generate(self, policy: BatchPolicy, request: Request) -> Completion:
        """Wait until all other episodes have a request, too; the deadlines of the episode are paused meanwhile."""
        if self._policy is not None and self._policy is not policy:
            raise InvariantError("the episodes of a wave use more than one policy")
        if request.request_id in self._pending:
            raise InvariantError(f"two requests of a wave have the id {request.request_id}")
        self._policy = policy
        pending = self._pending[request.request_id] = _PendingRequest(request, _episode.get() or object())
        try:
            self._send_when_complete()
            async with queued():
                await pending.on_send
            return await pending.answer
        finally:
            self._pending.pop(request.request_id, None)

    def _send_when_complete(self) -> None:
        batch = [pending for pending in self._pending.values() if not pending.on_send.done()]
        episodes = len({id(pending.episode) for pending in batch})
        if self._sending is None and batch and episodes >= self._running and self._policy is not None:
            batch.sort(key=lambda pending: pending.request.request_id)
            self._sending = asyncio.create_task(self._send(self._policy, batch))

    async def _send(self, policy: BatchPolicy, batch: Sequence[_PendingRequest]) -> None:
        for pending in batch:
            if not pending.on_send.done():  # it may just have been cancelled
                pending.on_send.set_result(None)
        answers: Sequence[Completion | Exception]
        try:
            answers = await policy.generate_batch([pending.request for pending in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for pending, answer in zip(batch, answers, strict=True):
            if pending.answer.done():  # the episode has ended meanwhile
                continue
            if isinstance(answer, Exception):
                pending.answer.set_exception(answer)
            else:
                pending.answer.set_result(answer)
        self._sending = None
        self._send_when_complete()


_wave: ContextVar[Wave | None] = ContextVar("wave", default=None)
_episode: ContextVar[object] = ContextVar("episode", default=None)
