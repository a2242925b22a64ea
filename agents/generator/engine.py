"""A vLLM engine: token ids in; token ids, logprobs and weight versions out. Weights are swapped between steps.

One thread owns the engine and runs its steps (engine_thread.py); requests join and leave between them. It is
`LLMEngine` in this process, not AsyncLLM: there is no second process to supervise, no serialisation, and weights change
exactly between two steps. This file is for the event loop.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agents.generator.engine_thread import STOP, EngineThread
from agents.generator.requests import Answers, Batch, Command, SampleRequest
from agents.generator.settings import EngineSettings
from agents.generator.stats import EngineStats
from forge_env.core.errors import PolicyError
from forge_env.core.tokens import Ids, as_list
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling
from forge_env.rollout.lockstep import Request
from forge_env.utils.progress import until_stalled

if TYPE_CHECKING:
    from torch import Tensor

    from forge_env.runtime.weights import WeightStore

PULL_S = 300.0  # time limit for loading new weights in the worker processes


class VLLMEngine:
    """Runs one `LLMEngine`. Create, use and close it on one event loop."""

    def __init__(self, model: str, settings: EngineSettings) -> None:
        self._settings = settings
        self._answers = Answers()
        self._thread = EngineThread(model, settings, self._answers)
        self._watchdog: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def version(self) -> int:
        """The version of the weights that tokens are sampled with."""
        return self._thread.version

    @property
    def stats(self) -> EngineStats:
        thread = self._thread
        if thread.counters is None:
            return thread.stats
        return thread.counters.read(thread.stats, running=len(thread.pending))

    @property
    def phases(self) -> dict[str, tuple[float | None, float]]:
        """Phases of the start, as in `ForgeActor.phases`: "import", "load", and "load: compile" within it if vLLM
        compiles."""
        return self._thread.phases

    @property
    def why_broken(self) -> str:
        """The reason why the engine is broken for good, as a sentence; empty while it runs."""
        return self._answers.why_broken

    async def start(self) -> None:
        """Load the model. It takes seconds to minutes."""
        self._answers.attach()
        ready = self._thread.ready = self._answers.new_future()
        self._thread.start()
        await ready
        self._watchdog = asyncio.create_task(self._watch(), name="engine watchdog")

    async def generate(self, prompt_ids: Ids, sampling: Sampling, request_id: str, adapter: str = "") -> Completion:
        """Sample one completion, however long it takes. For an engine that hangs see `EngineSettings.stall_seconds`.

        Cancelling the call aborts the request.

        Args:
            adapter: the name of an adapter that `load_adapter` has loaded; the completion then has its versions. "" is
                the model, with the published adapter if there is one.
        """
        self._check_running()
        await self._try_grammar(sampling)
        request = self._request(prompt_ids, sampling, request_id, adapter)
        completion: Completion = await self._answer_of(request)
        return completion

    async def score(self, prompt_ids: Sequence[int], request_id: str) -> tuple[float, ...]:
        """The logprobs of a prompt's tokens after the first, at temperature 1, with the weights that the engine has.

        It is an ordinary request: if the engine is full, it waits. Cancelling the call aborts it.
        """
        self._check_running()
        request = self._request(prompt_ids, Sampling(max_tokens=1, temperature=0.0), request_id)
        request.scores_prompt = True
        logprobs: tuple[float, ...] = await self._answer_of(request)
        return logprobs

    async def generate_batch(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        """Sample all requests as one batch, which starts on an idle engine with an empty prefix cache.

        On CPU the same batch with the same weights gives the same bits, logprobs included, if no other request comes
        meanwhile. Cancelling the call aborts all of its requests.

        Returns:
            Completions in the order of the requests; a PolicyError for a request that was refused.
        """
        self._check_running()
        trials = [self._try_grammar(sampling) for _, sampling, *_ in requests]
        errors = await asyncio.gather(*trials, return_exceptions=True)
        self._check_running()  # nobody would answer requests of an engine that has ended meanwhile
        batch = [self._request(*request) for request, wrong in zip(requests, errors, strict=True) if wrong is None]
        self._thread.inbox.put(Batch(batch))
        try:
            answers = await asyncio.gather(*(request.future for request in batch), return_exceptions=True)
        except asyncio.CancelledError:
            self._abort_all(batch)
            raise
        sampled = iter(answers)
        return [_answer(next(sampled) if wrong is None else wrong) for wrong in errors]

    @property
    def is_asleep(self) -> bool:
        """Whether the engine sleeps, see `sleep`."""
        return self._thread.is_asleep

    async def sleep(self) -> None:
        """Return the GPU memory of weights and cache, between two steps; new weights wake the engine.

        Requests in flight are not lost. They wait, and after the engine has woken they are computed again from their
        tokens, with the new weights from there on. Requests that come meanwhile wait too. On a CPU the engine only
        stops. If the engine sleeps already, nothing changes.
        """
        if not self._settings.sleep:
            raise PolicyError("the engine cannot sleep: it was started without EngineSettings.sleep")
        await self._command(self._thread.fall_asleep)

    async def clear_prefix_cache(self) -> None:
        """Empty the prefix cache. Call it while no request is running."""
        await self._command(lambda: self._thread.engine.reset_prefix_cache())

    async def update_weights(self, version: int, state_dict: dict[str, Tensor]) -> float:
        """Load new weights, by their Hugging Face names, into the live engine between two steps; wakes it.

        Returns:
            Seconds of waking; 0 if the engine was awake.
        """
        seconds: float = await self._command(lambda: self._thread.swap_weights(version, state_dict))
        return seconds

    async def pull_weights(
        self, version: int, store: WeightStore, *, stored_as: int | None = None, seconds: float = PULL_S
    ) -> dict[str, float]:
        """Load new weights between two steps; every worker process fetches them from the store. Wakes the engine.

        Args:
            store: a store that needs no actor, see `WeightStore.actors_only`.
            stored_as: their version in the store, if it differs.

        Returns:
            Seconds of fetching and of swapping, of the slowest process, and of waking.
        """
        arguments = version, pickle.dumps(store), version if stored_as is None else stored_as, seconds
        seconds_by_phase: dict[str, float] = await self._command(lambda: self._thread.pull_weights(*arguments))
        return seconds_by_phase

    async def load_adapter(self, name: str, version: int, tensors: dict[str, Tensor]) -> None:
        """Load an adapter that requests can name, or replace it, between two steps.

        Requests in flight that name it go on with the new one; their tokens have the versions that sampled them.

        Args:
            name: letters, digits and . _ -, 64 at most.
            tensors: by PEFT's names, with alpha / rank in B. `open_adapter` of adapter_folder.py reads and checks the
                tensors of a folder.
        """
        await self._command(lambda: self._thread.load_adapter(name, version, tensors))

    async def drop_adapter(self, name: str) -> None:
        await self._command(lambda: self._thread.drop_adapter(name))

    async def close(self) -> None:
        """Stop the engine. Its memory is freed with the last reference to this object."""
        if not self._is_closed:
            self._is_closed = True
            # vLLM calls gc.freeze() when it starts, so a reference cycle with this object would keep the model's memory
            # forever: no task and no future that holds a frame may stay.
            watchdog, self._watchdog = self._watchdog, None
            if watchdog is not None:
                watchdog.cancel()
            if self._thread.grammars is not None:
                await self._thread.grammars.close()
            self._thread.inbox.put(STOP)
            await asyncio.to_thread(self._thread.join, 10.0)
            self._answers.fail_all("the engine was closed")
            if not self._thread.is_alive():
                self._thread.pending.clear()

    def _check_running(self) -> None:
        if self.why_broken or self._is_closed:
            raise PolicyError(f"the engine is not running: {self.why_broken or 'it was closed'}")

    async def _try_grammar(self, sampling: Sampling) -> None:
        """Try a grammar, if there is one. Check again afterwards, because the engine may have been closed meanwhile."""
        if sampling.grammar:
            grammars = self._thread.open_grammars()
            await grammars.check(sampling.grammar, self._thread.vocabulary)
            self._check_running()

    async def _answer_of(self, request: SampleRequest) -> Any:
        self._thread.inbox.put(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._abort_all([request])
            raise

    def _request(self, prompt_ids: Ids, sampling: Sampling, request_id: str, adapter: str = "") -> SampleRequest:
        return SampleRequest(request_id, as_list(prompt_ids), sampling, self._answers.future(), adapter)

    async def _command(self, run: Callable[[], Any]) -> Any:
        self._check_running()
        future = self._answers.future()
        self._thread.inbox.put(Command(run, future))
        return await future

    def _abort_all(self, requests: Sequence[SampleRequest]) -> None:
        self._thread.inbox.put(Command(lambda: self._thread.abort(requests), self._answers.new_future()))

    async def _watch(self) -> None:
        """Detect an engine that has requests and makes no progress: a step never ends, or steps compute nothing."""
        thread, waiting, seconds = self._thread, self._answers.waiting, self._settings.stall_seconds

        async def progress() -> object:
            # The first request may compile for minutes: the start of an engine has its own time limit.
            is_working = waiting and thread.num_answers and not thread.is_commanded and not thread.is_asleep
            return thread.progress() if is_working else object()

        await until_stalled(progress, seconds)
        self._answers.break_all(f"the engine hangs: it has {len(waiting)} requests, and made no step for {seconds:g} s")


def _answer(result: Completion | BaseException) -> Completion | Exception:
    if isinstance(result, Completion | Exception):
        return result
    raise result
