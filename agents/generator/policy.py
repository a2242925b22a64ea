"""PolicyActor: a vLLM engine in a process of its own, and the policy through which others reach it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agents.generator.engine import PULL_S, EngineUse, VLLMEngine
from agents.generator.start import EngineSettings
from agents.renderer.rendering import Renderer
from forge_env.core.errors import PolicyError, ReplicaBroken, UserError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Completion, Sampling
from forge_env.rollout.lockstep import Request
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint, long_endpoint
from forge_env.runtime.client import ServiceClient
from forge_env.runtime.weights import SharedMemoryStore, WeightStore

if TYPE_CHECKING:
    from torch import Tensor


class PolicyActor(ForgeActor):
    """Generates from the newest weights that it was told to pull."""

    idempotent = frozenset({"generate", "generate_batch"})

    def __init__(self, *, model: str, settings: EngineSettings, store: WeightStore | None = None, **base: Any) -> None:
        super().__init__(**base)
        self._store = store
        self._relay: SharedMemoryStore | None = None  # between the store and the engine's own processes
        self._relayed = 0
        self._apart = settings.apart
        self._model = model
        self._renderer: Renderer | None = None  # only those need it who send text
        self._engine = VLLMEngine(model, settings)

    async def on_start(self) -> None:
        if self._store is not None:
            self._store.attach()
            if self._apart and self._store.actors_only:
                self._relay = SharedMemoryStore()
                await self._relay.open()
        await self._engine.start()
        self.phases |= self._engine.phases
        # The first requests are slow; let them be nobody's.
        with self.phase("first request"):
            await self._engine.generate([0, 1, 2], Sampling(max_tokens=4, seed=0), "warm-up")

    async def on_finish(self) -> None:
        await self._engine.close()
        if self._relay is not None:
            await self._relay.close()

    @long_endpoint
    async def generate(
        self, prompt: str | Sequence[int], sampling: Sampling | None = None, request_id: str = ""
    ) -> Completion:
        """Sample one completion, however long it takes; an engine that stands still is replaced.

        Args:
            prompt: token ids; or a user's message, which the model's chat template makes a prompt of. The completion
                of a message has a text as well.
            sampling: temperature 1 and up to 512 tokens by default. A message's stop tokens are the template's.
            request_id: its own among those in flight; one is made up by default.

        Raises:
            PolicyError: when the engine cannot.
            UserError: for a message to a model whose family has no renderer.
        """
        sampling, request_id = sampling or Sampling(), request_id or uuid.uuid4().hex
        if not isinstance(prompt, str):
            return await self._generate(prompt, sampling, request_id)
        if self._renderer is None:
            self._renderer = Renderer(self._model)
        conversation = Conversation(request_id=request_id, observation=({"role": "user", "content": prompt},))
        prompt_ids, _, _ = self._renderer.next_prompt(conversation, ())
        sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids or self._renderer.stop_token_ids)
        completion = await self._generate(prompt_ids, sampling, request_id)
        message = self._renderer.read(completion.token_ids, completion.finish_reason).message
        return replace(completion, text=str(message.get("content") or ""))

    def on_ping(self) -> None:
        if self._engine.broken:
            raise ReplicaBroken(self._engine.broken)

    async def _generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str) -> Completion:
        try:
            return await self._engine.generate(prompt_ids, sampling, request_id)
        except PolicyError:
            self.on_ping()
            raise

    @long_endpoint
    async def generate_batch(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        """Sample for all of them as one batch, see `VLLMEngine.generate_batch`."""
        try:
            return await self._engine.generate_batch(requests)
        finally:
            self.on_ping()  # what a broken engine says is no answer: another one is asked

    @concurrent_endpoint
    async def use(self) -> EngineUse:
        """What the engine has done since its start."""
        return self._engine.used

    @concurrent_endpoint
    async def pull(self, version: int, seconds: float = PULL_S) -> dict[str, float]:
        """Fetch a published snapshot into the live engine; returns the seconds that fetching and swapping took.

        Args:
            version: of the snapshot.
            seconds: that the engine's own processes have for it, where there are any.
        """
        if self._store is None:
            raise UserError("this policy has no weight store to pull from: give PolicyActor store=")
        if self._apart and self._relay is None:
            return await self._engine.pull_weights(version, self._store, seconds=seconds)
        started = time.perf_counter()
        async with self._store.fetch(version) as state_dict:
            fetched = time.perf_counter()
            if self._relay is None:
                await self._engine.update_weights(version, state_dict)
            else:
                await self._pull_through(self._relay, version, state_dict, seconds)
        return {"fetch": fetched - started, "swap": time.perf_counter() - fetched}

    async def _pull_through(
        self, relay: SharedMemoryStore, version: int, state_dict: Mapping[str, Tensor], seconds: float
    ) -> None:
        """Hand weights that only this process can fetch on to the engine's own processes."""
        self._relayed += 1  # a version may be pulled twice, and published only once
        await relay.commit(await asyncio.to_thread(relay.take, self._relayed, state_dict))
        await self._engine.pull_weights(version, relay, stored_as=self._relayed, seconds=seconds)


class ActorPolicy:
    """The Policy that speaks to the replicas of a PolicyActor. Small, and travels in messages.

    A conversation stays with one replica, whose prefix cache knows it. When that one dies, or its engine hangs, another
    one is asked. Cancelling a call frees its place in the engine.

    Args:
        service: the client of the replicas.
    """

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    answer_seconds = None
    """The service ends every call."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        generate = self._service.session(session).generate
        completion: Completion = await generate.route(tuple(prompt_ids), sampling, request_id)
        return completion

    async def generate_batch(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        completions: list[Completion | Exception] = await self._service.generate_batch.route(tuple(requests))
        return completions
