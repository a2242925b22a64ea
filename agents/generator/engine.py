"""A vLLM engine: token ids in; token ids, logprobs and weight versions out. Weights are swapped between steps.

One thread owns the engine and runs its steps; requests join and leave between them. It is `LLMEngine` in this process,
not AsyncLLM: there is no second process to supervise, no serialisation, and weights change exactly between two steps.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agents.generator.batch_delay import BatchDelay
from agents.generator.start import EngineSettings, import_vllm, load_engine
from agents.generator.worker import load_weights, pull_weights
from forge_env.core.errors import PolicyError
from forge_env.core.types import Completion, Sampling
from forge_env.rollout.lockstep import Request

if TYPE_CHECKING:
    from torch import Tensor

    from forge_env.runtime.weights import WeightStore

logger = logging.getLogger(__name__)
PULL_S = 300.0  # time limit for loading new weights in the worker processes
_STOP = object()
_CHECKS = 8  # of the engine's progress within `stall_seconds`


@dataclass(slots=True)
class EngineStats:
    """What an engine has done since its start."""

    steps: int = 0
    step_seconds: float = 0.0
    """Seconds in steps; otherwise the engine admitted requests or was idle."""
    request_steps: int = 0
    """Requests per step, summed over the steps; divided by `steps` it is the mean batch size."""
    running: int = 0
    """Requests in the engine now."""


@dataclass(slots=True)
class _Pending:
    prompt_ids: Sequence[int]
    future: asyncio.Future[Completion]


@dataclass(slots=True)
class _Command:
    run: Callable[[], Any]
    future: asyncio.Future[Any]


@dataclass(slots=True)
class _Request:
    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    future: asyncio.Future[Completion] = field(compare=False)


@dataclass(slots=True)
class _Batch:
    """Requests that start together, on an idle engine."""

    requests: list[_Request]


class VLLMEngine:
    """Runs one `LLMEngine`. Create, use and close it on one event loop.

    Raises:
        PolicyError: from `generate`, when the engine refuses a request or breaks.
    """

    def __init__(self, model: str, settings: EngineSettings) -> None:
        self._model = model
        self._settings = settings
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending: dict[str, _Pending] = {}
        self._batch_delay = BatchDelay(settings.gather_s, settings.gather_most_s)
        self._batch: _Batch | None = None  # the next one; it starts when the engine is idle
        self._engine: Any = None
        self._waiting: set[asyncio.Future[Any]] = set()  # unanswered futures; changed only on the event loop
        self._watchdog: asyncio.Task[None] | None = None
        self._answered = 0
        self._is_commanded = False  # whether the engine's thread runs a command rather than steps
        self._is_asleep = False  # changed only in the engine's thread
        self._broken = ""
        self._closed = False
        self.version = 0
        self._stats = EngineStats()
        self.phases: dict[str, tuple[float | None, float]] = {}
        """Phases of the start, as in `ForgeActor.phases`: "import", "load", and "load: compile" within it if vLLM
        compiles."""

    @property
    def stats(self) -> EngineStats:
        """Statistics so far."""
        return replace(self._stats, running=len(self._pending))

    @property
    def broken(self) -> str:
        """Why the engine is broken for good, as a sentence; empty while it runs."""
        return self._broken

    async def start(self) -> None:
        """Load the model. It takes seconds to minutes."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="vllm-engine", daemon=True)
        self._thread.start()
        await ready
        self._watchdog = asyncio.create_task(self._watch(), name="engine watchdog")

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str) -> Completion:
        """Sample one completion, however long it takes. For an engine that hangs see `EngineSettings.stall_seconds`.

        Cancelling the call aborts the request.
        """
        self._check_running()
        request = self._request(prompt_ids, sampling, request_id)
        self._inbox.put(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._abort_all([request])
            raise

    async def generate_batch(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        """Sample all of them as one batch, which starts on an idle engine with an empty prefix cache.

        On CPU the same batch with the same weights gives the same bits, logprobs included, if no other request comes
        meanwhile. Cancelling the call aborts all of its requests.

        Returns:
            Completions in the order of the requests; a PolicyError for a request that was refused.
        """
        self._check_running()
        batch = [self._request(*request) for request in requests]
        self._inbox.put(_Batch(batch))
        try:
            answers = await asyncio.gather(*(request.future for request in batch), return_exceptions=True)
        except asyncio.CancelledError:
            self._abort_all(batch)
            raise
        return [_answer(answer) for answer in answers]

    @property
    def is_asleep(self) -> bool:
        """Whether the engine sleeps, see `sleep`."""
        return self._is_asleep

    async def sleep(self) -> None:
        """Give the GPU memory of weights and cache back, between two steps; new weights wake the engine.

        Requests in flight are not lost: they wait, and after the engine has woken they are computed again from their
        tokens, with the new weights from there on. So does a request that comes meanwhile. On a CPU the engine only
        stops. An engine that sleeps already goes on sleeping.

        Raises:
            PolicyError: when the engine was started without `EngineSettings.sleep`.
        """
        if not self._settings.sleep:
            raise PolicyError("the engine cannot sleep: it was started without EngineSettings.sleep")

        def fall_asleep() -> None:
            if self._is_asleep:
                return
            self._finish_scheduled_steps()
            self._engine.reset_prefix_cache(reset_running_requests=True)
            # vLLM may raise when the memory is gone already, if another process on the GPU has grown meanwhile: a step
            # would then read what is not there.
            self._is_asleep = True
            # Level 2 keeps no copy of the weights: an engine wakes by new ones, or by those in the store.
            self._engine.collective_rpc("sleep", kwargs={"level": 2})

        await self._command(fall_asleep)

    async def update_weights(self, version: int, state_dict: dict[str, Tensor]) -> float:
        """Load new weights, by their Hugging Face names, into the live engine between two steps; wakes it.

        Returns:
            Seconds of waking; 0 for an engine that was awake.
        """

        def swap() -> float:
            self._finish_scheduled_steps()
            with self._waking() as waking:
                self._engine.collective_rpc(load_weights, args=(state_dict,))
            self._set_version(version)
            return sum(waking)

        seconds: float = await self._command(swap)
        return seconds

    async def pull_weights(
        self, version: int, store: WeightStore, *, stored_as: int | None = None, seconds: float = PULL_S
    ) -> dict[str, float]:
        """Load new weights between two steps; every worker process fetches them from the store. Wakes the engine.

        Args:
            version: of the weights.
            store: a store that needs no actor, see `WeightStore.actors_only`.
            stored_as: their version in the store, if it differs.
            seconds: time limit.

        Returns:
            Seconds of fetching and of swapping, of the slowest process, and of waking.
        """

        arguments = pickle.dumps(store), version if stored_as is None else stored_as

        def pull() -> dict[str, float]:
            self._finish_scheduled_steps()
            with self._waking() as waking:
                pulls = self._engine.collective_rpc(pull_weights, timeout=seconds, args=arguments)
            self._set_version(version)
            slowest = {part: max(pull[part] for pull in pulls) for part in ("fetch", "swap")}
            return slowest | {"swap": slowest["swap"] + sum(waking), "wake": sum(waking)}

        seconds_by_phase: dict[str, float] = await self._command(pull)
        return seconds_by_phase

    async def close(self) -> None:
        """Stop the engine. Its memory is freed with the last reference to this object."""
        if not self._closed:
            self._closed = True
            # vLLM calls gc.freeze() when it starts, so a reference cycle with this object would keep the model's memory
            # for ever: no task and no future that holds a frame may stay.
            watchdog, self._watchdog = self._watchdog, None
            if watchdog is not None:
                watchdog.cancel()
            self._inbox.put(_STOP)
            await asyncio.to_thread(self._thread.join, 10.0)
            self._fail_all("the engine was closed")
            if not self._thread.is_alive():
                self._pending.clear()

    def _check_running(self) -> None:
        if self._broken or self._closed:
            raise PolicyError(f"the engine is not running: {self._broken or 'it was closed'}")

    def _request(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str) -> _Request:
        return _Request(request_id, list(prompt_ids), sampling, self._future())

    async def _command(self, run: Callable[[], Any]) -> Any:
        self._check_running()
        future = self._future()
        self._inbox.put(_Command(run, future))
        return await future

    def _future(self) -> asyncio.Future[Any]:
        """A future that is done when the engine ends, at the latest."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _abort_all(self, requests: Sequence[_Request]) -> None:
        """Abort requests whose callers are gone."""

        def abort() -> None:
            for request in requests:
                self._abort(request)

        self._inbox.put(_Command(abort, self._loop.create_future()))

    def _fail_all(self, reason: str) -> None:
        """Fail every waiting call. It runs on the event loop, so no call can begin to wait meanwhile."""
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(PolicyError(reason))

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._fail_all(reason)

    async def _watch(self) -> None:
        """Detect an engine that has requests and makes no progress: a step never ends, or steps compute nothing.

        Checks are counted rather than seconds: a time in which the whole process was stopped counts as one check.
        """
        seconds, progress, stalled = self._settings.stall_seconds, self._progress(), 0
        while stalled < _CHECKS:
            await asyncio.sleep(seconds / _CHECKS)
            before, progress = progress, self._progress()
            # The first request may compile for minutes: the start of an engine has its own time limit.
            is_working = self._waiting and self._answered and not self._is_commanded and not self._is_asleep
            stalled = stalled + 1 if is_working and progress == before else 0
        self._break(f"the engine hangs: it has {len(self._waiting)} requests, and made no step for {seconds:g} s")

    def _progress(self) -> tuple[int, int]:
        """A value that changes whenever a token is computed."""
        running = list(self._engine.engine_core.engine_core.scheduler.running)
        return self._answered, sum(request.num_computed_tokens for request in running)

    # ---- everything below runs in the engine's thread ----

    def _main(self, ready: asyncio.Future[None]) -> None:
        try:
            began = time.time()
            import_vllm(self._settings)
            loading = time.time()
            self._engine = load_engine(self._model, self._settings)
            self.phases = {"import": (began, loading - began), "load": (loading, time.time() - loading)}
            if compiling := self._engine.vllm_config.compilation_config.compilation_time:
                self.phases["load: compile"] = None, compiling
            self._engine.set_weight_version(str(self.version))
            self._vocabulary: int = self._engine.model_config.get_vocab_size()
        except BaseException as error:
            self._broken = f"the engine did not start: {type(error).__name__}: {error}"
            self._resolve(ready, error=error)
            return
        self._resolve(ready, None)
        try:
            self._drive()
        except BaseException as error:
            logger.exception("the engine broke")
            self._loop.call_soon_threadsafe(self._break, f"the engine broke: {type(error).__name__}: {error}")
        finally:
            if self._settings.has_worker_processes:
                self._engine.engine_core.shutdown()  # ends its processes

    def _drive(self) -> None:
        while True:
            if not self._admit_requests():
                return
            if self._engine.has_unfinished_requests() and not self._is_asleep:
                started = time.perf_counter()
                self._stats.request_steps += len(self._pending)
                self._step()
                self._stats.steps += 1
                self._stats.step_seconds += time.perf_counter() - started

    def _step(self) -> None:
        for output in self._engine.step():
            if output.finished:
                self._finish(output)

    def _finish_scheduled_steps(self) -> None:
        """Finish the steps that a GPU computes while the next ones are scheduled. vLLM records the weight version of a
        token when it reads the token, which would be after the swap."""
        from vllm.v1.core.sched.interface import PauseState

        core = self._engine.engine_core.engine_core
        if not core.batch_queue:
            return
        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        try:
            while core.batch_queue:
                self._step()
        finally:
            core.scheduler.set_pause_state(PauseState.UNPAUSED)

    @contextmanager
    def _waking(self) -> Iterator[list[float]]:
        """Around the loading of weights: a sleeping engine gets memory for them before, and for its cache after.

        Yields the seconds of each of the two, once they are over.
        """
        seconds: list[float] = []
        if not self._is_asleep:
            yield seconds
            return
        seconds.append(self._wake("weights"))
        yield seconds
        seconds.append(self._wake("kv_cache"))
        self._is_asleep = False

    def _wake(self, part: str) -> float:
        started = time.perf_counter()
        self._engine.collective_rpc("wake_up", kwargs={"tags": [part]})
        return time.perf_counter() - started

    def _admit_requests(self) -> bool:
        """Handle the inbox, and wait for more requests where a delay pays; returns False after close."""
        while True:
            if self._batch is not None and not self._is_asleep:
                if self._engine.has_unfinished_requests():
                    return True
                self._begin(self._batch)
            wait = None if self._is_asleep else self._batch_delay.seconds_to_wait(len(self._pending))
            try:
                item = self._inbox.get(block=wait != 0, timeout=wait or None)
            except queue.Empty:
                if wait == 0:
                    return True
                continue
            if item is _STOP:
                return False
            if isinstance(item, _Command):
                self._run(item)
            elif isinstance(item, _Batch):
                self._batch = item
            elif not item.future.done():
                self._admit(item)
                self._batch_delay.arrived(len(self._pending))

    def _begin(self, batch: _Batch) -> None:
        self._engine.reset_prefix_cache()
        for request in batch.requests:
            if not request.future.done():
                self._admit(request)
        self._batch_delay.arrived(len(self._pending))
        self._batch = None

    def _set_version(self, version: int) -> None:
        """Record the version of the weights that tokens are sampled with from now on."""
        self._engine.set_weight_version(str(version))
        # Old cache entries can never be hit again, since the version is in the salt; this frees their memory.
        recompute = self._settings.cache_on_update == "recompute"
        if recompute or not self._engine.has_unfinished_requests():
            self._engine.reset_prefix_cache(reset_running_requests=recompute)
        self.version = version

    def _run(self, command: _Command) -> None:
        self._is_commanded = True
        try:
            self._resolve(command.future, command.run())
        except Exception as error:
            self._resolve(command.future, error=error)
        finally:
            self._is_commanded = False

    def _admit(self, request: _Request) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # only the renderer's stop tokens end a turn
            logprobs=0,
            stop=list(sampling.stop),
            detokenize=bool(sampling.stop),  # text costs time, and only stop strings need it
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # The salt keeps prefixes of one weight version from being reused under another.
        prompt = TokensPrompt(prompt_token_ids=request.prompt_ids, cache_salt=str(self.version))
        self._abort_older(request.request_id)
        try:
            if sampling.stop:
                self._load_tokenizer()
            self._check_tokens(request.prompt_ids)
            self._engine.add_request(request.request_id, prompt, params)
        except Exception as error:
            self._resolve(request.future, error=PolicyError(f"the engine refused a request: {error}"))
            return
        self._pending[request.request_id] = _Pending(request.prompt_ids, request.future)

    def _load_tokenizer(self) -> None:
        """Load the tokenizer that vLLM needs for stop strings. The engine starts without one, since few requests have
        any."""
        from vllm.tokenizers import get_tokenizer

        if self._engine.output_processor.tokenizer is None:
            self._engine.output_processor.tokenizer = get_tokenizer(self._model)

    def _abort_older(self, request_id: str) -> None:
        """Abort a request with the same id: after its caller died, the same group runs again with the same ids."""
        older = self._pending.pop(request_id, None)
        if older is not None:
            self._engine.abort_request([request_id])
            self._resolve(older.future, error=PolicyError(f"another request came with the same id {request_id!r}"))

    def _abort(self, request: _Request) -> None:
        """Abort a request whose caller is gone, unless a newer request has its id."""
        pending = self._pending.get(request.request_id)
        if pending is not None and pending.future is request.future:
            del self._pending[request.request_id]
            self._engine.abort_request([request.request_id])

    def _check_tokens(self, prompt_ids: Sequence[int]) -> None:
        """Refuse ids outside the vocabulary: inside a step they would break the engine for all requests."""
        size = self._vocabulary
        if prompt_ids and not 0 <= min(prompt_ids) <= max(prompt_ids) < size:
            wrong = next(token for token in prompt_ids if not 0 <= token < size)
            raise ValueError(f"token {wrong} of the prompt is not in the vocabulary, which is 0 to {size - 1}")

    def _finish(self, output: Any) -> None:
        pending = self._pending.pop(output.request_id)
        self._answered += 1
        answer = output.outputs[0]
        token_ids = tuple(answer.token_ids)
        spans = answer.weight_versions or ()
        self._resolve(
            pending.future,
            Completion(
                prompt_ids=tuple(output.prompt_token_ids),
                token_ids=token_ids,
                logprobs=tuple(step[token].logprob for step, token in zip(answer.logprobs, token_ids, strict=True)),
                versions=tuple((int(span.version), span.end - span.start) for span in spans),
                finish_reason=answer.finish_reason,
            ),
        )

    def _resolve(self, future: asyncio.Future[Any], value: Any = None, *, error: BaseException | None = None) -> None:
        def deliver() -> None:
            if not future.done():
                future.set_result(value) if error is None else future.set_exception(error)

        self._loop.call_soon_threadsafe(deliver)


def _answer(result: Completion | BaseException) -> Completion | Exception:
    if isinstance(result, Completion | Exception):
        return result
    raise result
