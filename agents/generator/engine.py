"""A live vLLM engine: token ids in, token ids with logprobs and weight versions out, weights swapped between steps.

One thread owns the engine and drives it; requests join and leave while it runs. `LLMEngine` in the actor's own process
rather than AsyncLLM: no second process to watch, no serialisation between the two, and the swap happens exactly between
two steps.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agents.generator.gathering import Gathering
from agents.generator.start import EngineSettings, import_vllm, load_engine
from agents.generator.worker import load_weights, pull_weights
from forge_env.core.errors import PolicyError
from forge_env.core.types import Completion, Sampling
from forge_env.rollout.lockstep import Request

if TYPE_CHECKING:
    from torch import Tensor

    from forge_env.runtime.weights import WeightStore

logger = logging.getLogger(__name__)
PULL_S = 300.0  # that the processes of an engine have for taking new weights over, where nobody says otherwise
_STOP = object()
_LOOKS = 8  # at whether an engine gets on, within the seconds that it may stand still


@dataclass(slots=True)
class EngineUse:
    """What an engine has done since it was started."""

    steps: int = 0
    step_seconds: float = 0.0
    """In its steps; the rest of the time it took requests in, or had none."""
    request_steps: int = 0
    """Requests in each step, added up: over `steps`, how many it had at once."""
    running: int = 0
    """Requests that it has at this moment."""


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
    """Requests that begin together, on an idle engine."""

    requests: list[_Request]


class VLLMEngine:
    """Drives one `LLMEngine`. Made, used and closed on one event loop.

    Raises:
        PolicyError: from `generate`, when the engine refuses a request or breaks.
    """

    def __init__(self, model: str, settings: EngineSettings) -> None:
        self._model = model
        self._settings = settings
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending: dict[str, _Pending] = {}
        self._gathering = Gathering(settings.gather_s, settings.gather_most_s)
        self._batch: _Batch | None = None  # waits until the engine is idle
        self._engine: Any = None
        self._waiting: set[asyncio.Future[Any]] = set()  # for an answer; touched on the loop only
        self._watching: asyncio.Task[None] | None = None
        self._answered = 0
        self._is_commanded = False  # whether the engine's thread is at something other than its steps
        self._broken = ""
        self._closed = False
        self.version = 0
        self.use = EngineUse()
        self.phases: dict[str, tuple[float | None, float]] = {}
        """Of its start, as `ForgeActor.phases`: "import", "load", and of that "load: compile", where vLLM compiles."""

    @property
    def used(self) -> EngineUse:
        """What it has done so far."""
        return replace(self.use, running=len(self._pending))

    @property
    def broken(self) -> str:
        """What broke the engine for good, in a sentence; empty while it runs."""
        return self._broken

    async def start(self) -> None:
        """Load the model; takes seconds to minutes."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="vllm-engine", daemon=True)
        self._thread.start()
        await ready
        self._watching = asyncio.create_task(self._watch(), name="watch the engine")

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str) -> Completion:
        """Sample one completion, however long it takes; an engine that stands still is broken, see `EngineSettings`.

        Cancelling the call aborts the request.
        """
        self._check_running()
        request = self._request(prompt_ids, sampling, request_id)
        self._inbox.put(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._abandon([request])
            raise

    async def generate_batch(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        """Sample for all of them as one batch: it begins between two steps of an idle engine, on an empty prefix cache.

        On CPU the same batch on the same weights then gives the same bits, logprobs included, as long as nothing else
        is asked for meanwhile. Cancelling the call aborts all of its requests.

        Returns:
            In the order of the requests; for one that was refused, its PolicyError.
        """
        self._check_running()
        batch = [self._request(*request) for request in requests]
        self._inbox.put(_Batch(batch))
        try:
            answers = await asyncio.gather(*(request.future for request in batch), return_exceptions=True)
        except asyncio.CancelledError:
            self._abandon(batch)
            raise
        return [_answer(answer) for answer in answers]

    async def update_weights(self, version: int, state_dict: dict[str, Tensor]) -> None:
        """Put new weights, under their Hugging Face names, into the live engine between two of its steps."""

        def swap() -> None:
            self._settle()
            self._engine.collective_rpc(load_weights, args=(state_dict,))
            self._become(version)

        await self._command(swap)

    async def pull_weights(
        self, version: int, store: WeightStore, *, stored_as: int | None = None, seconds: float = PULL_S
    ) -> dict[str, float]:
        """Let each process of the engine fetch new weights by itself, between two of its steps.

        Args:
            version: that they have.
            store: one that needs no actor, see `WeightStore.actors_only`.
            stored_as: the version that the store knows them by, if it is another one.
            seconds: that the processes have for it.

        Returns:
            Seconds that fetching and swapping took the slowest of them.
        """

        arguments = pickle.dumps(store), version if stored_as is None else stored_as

        def pull() -> dict[str, float]:
            self._settle()
            pulls = self._engine.collective_rpc(pull_weights, timeout=seconds, args=arguments)
            self._become(version)
            return {part: max(pull[part] for pull in pulls) for part in ("fetch", "swap")}

        found: dict[str, float] = await self._command(pull)
        return found

    async def close(self) -> None:
        """Stop the engine; its memory is free once nobody holds this object any more."""
        if not self._closed:
            self._closed = True
            # vLLM freezes what there is when it starts, so a cycle with this object would keep the model's memory for
            # good: no task and no future that hold frames may stay.
            watching, self._watching = self._watching, None
            if watching is not None:
                watching.cancel()
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
        """What is done at the latest when the engine ends, whichever of the two threads was sooner."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _abandon(self, requests: Sequence[_Request]) -> None:
        """Free the places of requests that nobody waits for any more."""

        def abort() -> None:
            for request in requests:
                self._abort(request)

        self._inbox.put(_Command(abort, self._loop.create_future()))

    def _fail_all(self, reason: str) -> None:
        """The engine answers nothing any more. On the loop, so that nobody can begin to wait meanwhile."""
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(PolicyError(reason))

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._fail_all(reason)

    async def _watch(self) -> None:
        """Notice an engine that has requests and does not get on, whether a step never ends or steps do nothing.

        Looks are counted, and not the clock alone: a time in which the whole process stood still is one of them.
        """
        seconds, place, still = self._settings.stall_seconds, self._place(), 0
        while still < _LOOKS:
            await asyncio.sleep(seconds / _LOOKS)
            before, place = place, self._place()
            # The first request may compile for minutes: whoever starts an engine has a deadline for that.
            is_working = self._waiting and self._answered and not self._is_commanded
            still = still + 1 if is_working and place == before else 0
        self._break(f"the engine hangs: it has {len(self._waiting)} requests, and made no step for {seconds:g} s")

    def _place(self) -> tuple[int, int]:
        """How far the engine has come; it differs whenever a token was computed."""
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
            self._tell(ready, error=error)
            return
        self._tell(ready, None)
        try:
            self._drive()
        except BaseException as error:
            logger.exception("the engine broke")
            self._loop.call_soon_threadsafe(self._break, f"the engine broke: {type(error).__name__}: {error}")
        finally:
            if self._settings.apart:
                self._engine.engine_core.shutdown()  # ends its processes

    def _drive(self) -> None:
        while True:
            if not self._take_in():
                return
            if self._engine.has_unfinished_requests():
                started = time.perf_counter()
                self.use.request_steps += len(self._pending)
                self._step()
                self.use.steps += 1
                self.use.step_seconds += time.perf_counter() - started

    def _step(self) -> None:
        for output in self._engine.step():
            if output.finished:
                self._finish(output)

    def _settle(self) -> None:
        """Let the passes end that a GPU computes while the next ones are planned: vLLM names the version of a token
        when it reads the token, which would be after the swap."""
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

    def _take_in(self) -> bool:
        """Handle everything in the inbox, and wait for more where that pays; returns False when told to stop."""
        while True:
            if self._batch is not None:
                if self._engine.has_unfinished_requests():
                    return True
                self._begin(self._batch)
            patience = self._gathering.patience(len(self._pending))
            try:
                item = self._inbox.get(block=patience != 0, timeout=patience or None)
            except queue.Empty:
                if patience == 0:
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
                self._gathering.arrived(len(self._pending))

    def _begin(self, batch: _Batch) -> None:
        self._engine.reset_prefix_cache()
        for request in batch.requests:
            if not request.future.done():
                self._admit(request)
        self._gathering.arrived(len(self._pending))
        self._batch = None

    def _become(self, version: int) -> None:
        """From here on tokens are sampled from this version of the weights."""
        self._engine.set_weight_version(str(version))
        # Old entries can never be hit again, for prompts carry the version as salt; this frees their memory.
        recompute = self._settings.cache_on_update == "recompute"
        if recompute or not self._engine.has_unfinished_requests():
            self._engine.reset_prefix_cache(reset_running_requests=recompute)
        self.version = version

    def _run(self, command: _Command) -> None:
        self._is_commanded = True
        try:
            self._tell(command.future, command.run())
        except Exception as error:
            self._tell(command.future, error=error)
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
            ignore_eos=True,  # the renderer's stop tokens are the only ones
            logprobs=0,
            stop=list(sampling.stop),
            detokenize=bool(sampling.stop),  # text costs time, and only stop texts are looked for in it
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # The salt keeps the prefix cache of one weight version from being hit under another.
        prompt = TokensPrompt(prompt_token_ids=request.prompt_ids, cache_salt=str(self.version))
        self._abort_older(request.request_id)
        try:
            if sampling.stop:
                self._read_tokenizer()
            self._check_tokens(request.prompt_ids)
            self._engine.add_request(request.request_id, prompt, params)
        except Exception as error:
            self._tell(request.future, error=PolicyError(f"the engine refused a request: {error}"))
            return
        self._pending[request.request_id] = _Pending(request.prompt_ids, request.future)

    def _read_tokenizer(self) -> None:
        """Give vLLM what it looks for stop texts with: it was started without, since hardly anybody asks for one."""
        from vllm.tokenizers import get_tokenizer

        if self._engine.output_processor.tokenizer is None:
            self._engine.output_processor.tokenizer = get_tokenizer(self._model)

    def _abort_older(self, request_id: str) -> None:
        """End a request of the same id: when its caller has died, the same group is run again with the same ids."""
        older = self._pending.pop(request_id, None)
        if older is not None:
            self._engine.abort_request([request_id])
            self._tell(older.future, error=PolicyError(f"another request came with the id {request_id!r} of this one"))

    def _abort(self, request: _Request) -> None:
        """End a request that nobody waits for any more, unless another one has taken its place already."""
        pending = self._pending.get(request.request_id)
        if pending is not None and pending.future is request.future:
            del self._pending[request.request_id]
            self._engine.abort_request([request.request_id])

    def _check_tokens(self, prompt_ids: Sequence[int]) -> None:
        """Refuse what is no token of the model: inside a step, it would break the engine for everybody."""
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
        self._tell(
            pending.future,
            Completion(
                prompt_ids=tuple(output.prompt_token_ids),
                token_ids=token_ids,
                logprobs=tuple(step[token].logprob for step, token in zip(answer.logprobs, token_ids, strict=True)),
                versions=tuple((int(span.version), span.end - span.start) for span in spans),
                finish_reason=answer.finish_reason,
            ),
        )

    def _tell(self, future: asyncio.Future[Any], value: Any = None, *, error: BaseException | None = None) -> None:
        def deliver() -> None:
            if not future.done():
                future.set_result(value) if error is None else future.set_exception(error)

        self._loop.call_soon_threadsafe(deliver)


def _answer(found: Completion | BaseException) -> Completion | Exception:
    if isinstance(found, Completion | Exception):
        return found
    raise found
