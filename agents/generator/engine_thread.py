"""EngineThread: the thread that owns vLLM's engine and runs its steps. Requests join and leave, and weights change,
between two steps.

Nothing here refers to the `VLLMEngine` that owns the thread: vLLM calls gc.freeze() when it starts, so an earlier
reference cycle would keep the model's memory forever.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agents.generator.batch_delay import BatchDelay
from agents.generator.fast_path.install import hand_over
from agents.generator.grammars import Grammars, open_grammars
from agents.generator.lora_slot import PUBLISHED, AdapterTable, drop_adapter, load_adapter
from agents.generator.process_group import group
from agents.generator.requests import (
    Answer,
    Answers,
    Batch,
    Command,
    SampleRequest,
    check_tokens,
    completion_of,
    prompt_logprobs_of,
    vllm_sampling,
)
from agents.generator.route_log import log_routes, routes_of
from agents.generator.settings import EngineSettings
from agents.generator.start import import_vllm, load_engine
from agents.generator.stats import CacheCounters, EngineStats
from agents.generator.worker import load_weights, pull_weights
from forge_env.core.errors import PolicyError, TurnRefused

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)
STOP = object()
"""As an item of the inbox it ends the thread."""


class EngineThread(threading.Thread):
    """Loads an `LLMEngine`, and works through its inbox. Its methods run in this thread, except `progress`."""

    def __init__(self, model: str, settings: EngineSettings, answers: Answers) -> None:
        super().__init__(name="vllm-engine", daemon=True)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """`SampleRequest`, `Batch`, `Command` or STOP."""
        self.ready: asyncio.Future[None]
        """Resolved when the model is loaded; set it before the thread starts."""
        self.engine: Any = None
        """vLLM's `LLMEngine`."""
        self.version = 0
        """The version of the weights that tokens are sampled with."""
        self.adapters = AdapterTable(settings.lora_rank, settings.named_adapters)
        self.stats = EngineStats()
        self.counters: CacheCounters | None = None
        """Set with `engine`."""
        self.phases: dict[str, tuple[float | None, float]] = {}
        self.pending: dict[str, SampleRequest] = {}
        """Requests in the engine, by id."""
        self.num_answers = 0
        """The number of requests that have ended."""
        self.is_commanded = False
        """Whether a command runs instead of steps."""
        self.is_asleep = False
        self.grammars: Grammars | None = None
        """Opened for the first request that needs them."""
        self._model = model
        self._settings = settings
        self._answers = answers
        self._batch_delay = BatchDelay(settings.gather_s, settings.gather_most_s)
        self._batches: deque[Batch] = deque()  # the next ones; each starts when the engine is idle

    def progress(self) -> tuple[int, int]:
        """A value that changes whenever a token is computed; it is read on the event loop."""
        running = list(self.engine.engine_core.engine_core.scheduler.running)
        return self.num_answers, sum(request.num_computed_tokens for request in running)

    def run(self) -> None:
        if self._settings.has_worker_processes:  # the process group belongs to the workers
            self._load_and_drive()
            return
        group.join()
        try:
            self._load_and_drive()
        finally:
            group.leave()

    def _load_and_drive(self) -> None:
        try:
            self._load()
        except BaseException as error:
            self._answers.why_broken = f"the engine did not start: {type(error).__name__}: {error}"
            self._answers.resolve(self.ready, error=error)
            return
        self._answers.resolve(self.ready, None)
        try:
            self._drive()
        except BaseException as error:
            logger.exception("the engine broke")
            self._answers.broke(f"the engine broke: {type(error).__name__}: {error}")
        finally:
            if self._settings.has_worker_processes:
                self.engine.engine_core.shutdown()  # ends its processes

    def _load(self) -> None:
        began = time.time()
        import_vllm(self._settings)
        loading = time.time()
        self.engine = load_engine(self._model, self._settings)
        self.phases = {"import": (began, loading - began), "load": (loading, time.time() - loading)}
        if compiling := self.engine.vllm_config.compilation_config.compilation_time:
            self.phases["load: compile"] = None, compiling
        self.engine.set_weight_version(self.adapters.stamp(self.version))
        if self._settings.lora_rank:
            self.engine.collective_rpc(load_adapter, args=(PUBLISHED, {}))
        if self._logs_routes:
            self.engine.collective_rpc(log_routes)
        self.counters = CacheCounters(self.engine)
        self.vocabulary: int = self.engine.model_config.get_vocab_size()

    @property
    def _logs_routes(self) -> bool:
        """Whether the workers log routes; on a GPU vLLM's outputs have them."""
        return self._settings.return_routes and not self.engine.vllm_config.aux_output_config.enabled

    # ---- steps ----

    def _drive(self) -> None:
        assert self.counters is not None
        while True:
            if not self._admit_requests():
                return
            if self.engine.has_unfinished_requests() and not self.is_asleep:
                start_time = time.perf_counter()
                self.stats.request_steps += len(self.pending)
                self._step()
                self.counters.step(self.stats, time.perf_counter() - start_time)

    def _step(self) -> None:
        outputs = [output for output in self.engine.step() if output.finished]
        routes = self._routes_of(outputs) if self._logs_routes and outputs else {}
        self._answers.resolve_all([self._answer(output, routes.get(output.request_id)) for output in outputs])

    def _answer(self, output: Any, routes: Any) -> Answer:
        request = self.pending.pop(output.request_id)
        self.num_answers += 1
        if request.scores_prompt:
            return request.future, prompt_logprobs_of(output), None
        grammar, reason = request.sampling.grammar, output.outputs[0].finish_reason
        if reason not in ("error", "abort"):
            return request.future, completion_of(output, request.adapter, routes, grammar=grammar), None
        if grammar and reason == "error":
            return request.future, None, TurnRefused("the engine cannot compile this form")
        return request.future, None, PolicyError(f"the engine ended the answer with the finish reason {reason!r}")

    def _routes_of(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """The experts of finished requests, by id. Read them before the next step, which may use their blocks again."""
        tokens = {
            output.request_id: len(output.prompt_token_ids) + len(output.outputs[0].token_ids) - 1 for output in outputs
        }
        routes: dict[str, Any] = self.engine.collective_rpc(routes_of, args=(tokens,))[0]
        return routes

    def _finish_scheduled_steps(self) -> None:
        """Finish the steps that a GPU computes while the next ones are scheduled. Otherwise vLLM would read their
        tokens, and record their weight version, after the swap."""
        from vllm.v1.core.sched.interface import PauseState

        core = self.engine.engine_core.engine_core
        if not core.batch_queue:
            return
        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        try:
            while core.batch_queue:
                self._step()
        finally:
            core.scheduler.set_pause_state(PauseState.UNPAUSED)

    # ---- requests ----

    def _admit_requests(self) -> bool:
        """Handle the inbox, and wait for more requests if a delay pays; returns False after STOP."""
        while True:
            if self._batches and not self.is_asleep:
                if self.engine.has_unfinished_requests():
                    return True
                self._begin(self._batches.popleft())
            wait = None if self.is_asleep else self._batch_delay.seconds_to_wait(len(self.pending))
            try:
                item = self.inbox.get(block=wait != 0, timeout=wait or None)
            except queue.Empty:
                if wait == 0:
                    return True
                continue
            if item is STOP:
                return False
            if isinstance(item, Command):
                self._run(item)
            elif isinstance(item, Batch):
                self._batches.append(item)
            elif not item.future.done():
                self._admit(item)
                if not item.scores_prompt:  # a scored prompt does not announce more requests
                    self._batch_delay.on_arrival(len(self.pending))

    def _begin(self, batch: Batch) -> None:
        self.engine.reset_prefix_cache()
        for request in batch.requests:
            if not request.future.done():
                self._admit(request)
        self._batch_delay.on_arrival(len(self.pending))

    def _run(self, command: Command) -> None:
        self.is_commanded = True
        try:
            self._answers.resolve(command.future, command.run())
        except Exception as error:
            self._answers.resolve(command.future, error=error)
        finally:
            self.is_commanded = False

    def _admit(self, request: SampleRequest) -> None:
        from vllm.inputs import TokensPrompt

        start_time = time.perf_counter()
        self._abort_older(request.request_id)
        try:
            adapter = self.adapters.request(request.adapter)
            salt = self.adapters.salt(request.adapter, self.version)
            prompt = TokensPrompt(prompt_token_ids=request.prompt_ids, cache_salt=salt)
            if request.sampling.stop:
                self._load_tokenizer()
            check_tokens(request.prompt_ids, self.vocabulary)
            if request.sampling.grammar:
                self.open_grammars().admit(self.engine, request.sampling.grammar)
            if hasattr(self.engine, "admit") and not request.scores_prompt:
                self.engine.admit(request, prompt, adapter)
            else:
                params = vllm_sampling(request.sampling)
                if request.scores_prompt:
                    params.prompt_logprobs = 0  # of no other tokens; the prefix cache has none, so it is not read
                self.engine.add_request(request.request_id, prompt, params, lora_request=adapter)
        except TurnRefused as error:
            self._answers.resolve(request.future, error=error)
            return
        except Exception as error:
            self._answers.resolve(request.future, error=PolicyError(f"the engine refused a request: {error}"))
            return
        self.pending[request.request_id] = request
        self.stats.admission_seconds += time.perf_counter() - start_time

    def _load_tokenizer(self) -> None:
        """Load the tokenizer that vLLM needs for stop strings. The engine starts without one, since few requests have
        stop strings."""
        from vllm.tokenizers import get_tokenizer

        if self.engine.output_processor.tokenizer is None:
            self.engine.output_processor.tokenizer = get_tokenizer(self._model)

    def open_grammars(self) -> Grammars:
        """Return the grammars of the engine, which starts without them, since few requests have one."""
        if self.grammars is None:
            self.grammars = open_grammars(self._model)
        return self.grammars

    def _abort_older(self, request_id: str) -> None:
        """Abort a request with the same id: if its caller died, the same group runs again with the same ids."""
        older = self.pending.pop(request_id, None)
        if older is not None:
            self.engine.abort_request([request_id])
            error = PolicyError(f"another request came with the same id {request_id!r}")
            self._answers.resolve(older.future, error=error)

    def abort(self, requests: Sequence[SampleRequest]) -> None:
        """Abort requests whose callers are gone, unless a newer request has the id."""
        for request in requests:
            if self.pending.get(request.request_id) is request:
                del self.pending[request.request_id]
                self.engine.abort_request([request.request_id])

    # ---- weights and memory: commands ----

    def fall_asleep(self) -> None:
        """Return the memory of weights and cache; requests in flight will be computed again."""
        if self.is_asleep:
            return
        self._finish_scheduled_steps()
        self.engine.reset_prefix_cache(reset_running_requests=True)
        # First: if another process on the GPU has grown meanwhile, vLLM raises after the memory is gone. A step of an
        # engine that is not marked as asleep would then read missing weights.
        self.is_asleep = True
        # Level 2 keeps no copy of the weights: new weights, or the ones in the store, wake the engine. Nobody sends the
        # frozen weights of a model with adapters: level 1 keeps them in the host's memory.
        self.engine.collective_rpc("sleep", kwargs={"level": 1 if self._settings.lora_rank else 2})

    def swap_weights(self, version: int, state_dict: dict[str, Tensor]) -> float:
        """Load weights by their Hugging Face names, and wake; returns the seconds of waking, 0 if it was awake."""
        self._finish_scheduled_steps()
        with self._waking() as waking:
            self.engine.collective_rpc(load_weights, args=(state_dict,))
        self._set_version(version)
        return sum(waking)

    def pull_weights(self, version: int, store: bytes, stored_as: int, seconds: float) -> dict[str, float]:
        """Let every worker process fetch weights from a pickled store, and wake.

        Returns:
            Seconds of fetching and of swapping, of the slowest process, and of waking.
        """
        self._finish_scheduled_steps()
        with self._waking() as waking:
            pulls = self.engine.collective_rpc(pull_weights, timeout=seconds, args=(store, stored_as))
        self._set_version(version)
        slowest = {part: max(pull[part] for pull in pulls) for part in ("fetch", "swap")}
        return slowest | {"swap": slowest["swap"] + sum(waking), "wake": sum(waking)}

    @contextmanager
    def _waking(self) -> Iterator[list[float]]:
        """Surrounds the loading of weights: a sleeping engine gets memory for them before it, and for its cache after
        it.

        Yields the seconds of each of the two, complete at the end.
        """
        seconds: list[float] = []
        if not self.is_asleep:
            yield seconds
            return
        seconds.append(self._wake("weights"))
        yield seconds
        seconds.append(self._wake("kv_cache"))
        self.is_asleep = False

    def _wake(self, part: str) -> float:
        start_time = time.perf_counter()
        self.engine.collective_rpc("wake_up", kwargs={"tags": [part]})
        return time.perf_counter() - start_time

    def _set_version(self, version: int) -> None:
        self.version = version
        self._stamp()

    def _stamp(self) -> None:
        hand_over(self.engine)
        self.engine.set_weight_version(self.adapters.stamp(self.version))
        # Old cache entries are never used again, since the salt contains all versions. This frees their memory.
        recompute = self._settings.cache_on_update == "recompute"
        if recompute or not self.engine.has_unfinished_requests():
            self.engine.reset_prefix_cache(reset_running_requests=recompute)

    # ---- adapters: commands ----

    def load_adapter(self, name: str, version: int, tensors: dict[str, Tensor]) -> None:
        """Load an adapter by its name, or replace it; requests in flight that name it go on with the new one."""
        number = self.adapters.free_slot(name, tensors)
        self._check_awake()
        self._finish_scheduled_steps()
        self.engine.collective_rpc(load_adapter, args=(number, tensors))
        self.adapters.put(name, number, version)
        self._stamp()

    def drop_adapter(self, name: str) -> None:
        number = self.adapters.slot(name)
        self._check_awake()
        if count := sum(request.adapter == name for request in self.pending.values()):
            raise PolicyError(f"adapter {name} has {count} requests in flight: let them end before it is dropped")
        self._finish_scheduled_steps()
        self.engine.collective_rpc(drop_adapter, args=(number,))
        self.adapters.drop(name)
        self._stamp()

    def _check_awake(self) -> None:
        if self.is_asleep:
            raise PolicyError("the engine sleeps, and has no memory for adapters: wake it by new weights first")
