"""Patch of vLLM 0.32: a request that only gets one token from a step costs a few instructions, and makes no objects.

In most steps most requests are such: no block of the KV cache begins, none is full, and nothing ends. vLLM's scheduler
does the rest. Its order decides about block tables, so it is kept: all that changes more than the request itself
happens in vLLM's code, one request after the other. Tokens are handed over when their request ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from agents.generator.fast_path.logprobs import Outputs

_RUNNING = RequestStatus.RUNNING


class _Plain:
    """A plain request.

    Attributes:
        stops: tokens that end it.
        limit: tokens, with the prompt, that end it.
        logprobs: of its last tokens, which nobody has got yet.
    """

    __slots__ = ("limit", "logprobs", "request", "stops")

    def __init__(self, request: Request, most_tokens: int) -> None:
        params = request.sampling_params
        self.request = request
        self.stops = {*(params.stop_token_ids or ()), params.eos_token_id}
        self.limit = min(most_tokens, request.num_prompt_tokens + request.max_tokens)
        self.logprobs: list[float] = []

    def take(self, output: EngineCoreOutput) -> None:
        """Put the tokens that nobody has got before the tokens of an output."""
        tokens, new = self.request._output_token_ids, output.new_token_ids
        output.new_token_ids = tokens[len(tokens) - len(new) - len(self.logprobs) :]
        if output.new_logprobs is not None:
            self.logprobs += output.new_logprobs.logprobs[: len(new), 0].tolist()
        values = np.array(self.logprobs, np.float32).reshape(-1, 1)
        output.new_logprobs = LogprobsLists(values, values, values)  # the reader takes the logprobs only
        self.logprobs = []


def _is_plain(request: Request) -> bool:
    """Whether a step may add a token to a request without any other effect."""
    params = request.sampling_params
    return (
        params is not None
        and params.output_kind is RequestOutputKind.FINAL_ONLY
        and params.num_logprobs == 0
        and params.prompt_logprobs is None
        and params.repetition_detection is None
        and not (params.detokenize or params.stop)
        and not (request.use_structured_output or request.resumable or request.mm_features)
    )


class Blocks(KVCacheManager):
    """A manager of one group of layers with full attention."""

    def allocate_slots(self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        if num_new_tokens == 1 and request.status is _RUNNING:  # all other arguments are of waiting requests
            num_computed, block = request.num_computed_tokens, self.coordinator.scheduler_block_size
            # The slot is there, and no block is full that may be found by other prompts.
            if num_computed % block and min(num_computed + 1, request.num_tokens) % block:
                return self.empty_kv_cache_blocks
        return super().allocate_slots(request, num_new_tokens, *args, **kwargs)


class FastScheduler(Scheduler):
    """A scheduler with a short way for plain requests."""

    plain: dict[str, _Plain]
    """By the id of the request."""
    running: list[Request]
    ahead = 0
    """Tokens of a request that a step schedules and its output then brings."""

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if _is_plain(request):
            self.plain[request.request_id] = _Plain(request, self.max_model_len)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        requests = [] if throttle_prefills else self._plain_requests()
        if not requests:
            return super().schedule(throttle_prefills)
        manager, names, blocks, counts, sampled = self.kv_cache_manager, [], [], [], []
        for request in requests:
            names.append(request.request_id)
            slots = manager.allocate_slots(request, 1)  # in the order in which vLLM allocates
            blocks.append(None if slots is manager.empty_kv_cache_blocks else slots.get_block_ids())
            counts.append(request.num_computed_tokens)
            sampled.append(len(request._output_token_ids) + request.num_output_placeholders)
            request.num_computed_tokens += 1
            request.num_in_flight_tokens += 1
            request.num_output_placeholders += self.ahead
        before = set(self.prev_step_scheduled_req_ids)
        output = self._schedule_waiting(len(names))
        cached = output.scheduled_cached_reqs
        cached.req_ids, cached.new_block_ids = names + cached.req_ids, blocks + cached.new_block_ids
        cached.num_computed_tokens = counts + cached.num_computed_tokens
        cached.num_output_tokens = sampled + cached.num_output_tokens
        output.num_scheduled_tokens = dict.fromkeys(names, 1) | output.num_scheduled_tokens
        output.total_num_scheduled_tokens += len(names)
        if not self.use_v2_model_runner:
            cached.all_token_ids |= {n: self.requests[n].all_token_ids.copy() for n in names if n not in before}
            self.prev_step_scheduled_req_ids.update(names)
        return output

    def _schedule_waiting(self, num_taken: int) -> SchedulerOutput:
        """All of a step but the running requests, which take some of its tokens."""
        running, self.running = self.running, []
        self.max_num_active_reqs -= len(running)
        self.max_num_scheduled_tokens -= num_taken
        output = super().schedule()
        self.max_num_active_reqs += len(running)
        self.max_num_scheduled_tokens += num_taken
        self.running = running + self.running
        return output

    def _plain_requests(self) -> list[Request]:
        """The running requests of the next step, if each is plain, gets one token, and finds a slot; otherwise none."""
        manager, plain = self.kv_cache_manager, self.plain
        if self._pause_state is not PauseState.UNPAUSED or (
            # Then vLLM looks at the running requests when it takes a waiting one.
            (self.lora_config or manager.watermark_blocks) and (self.waiting or self.kv_holding_waiting)
        ):
            return []
        block, requests, new_blocks = self.block_size, [], 0
        for request in self.running:
            num_computed, ahead = request.num_computed_tokens, request.num_output_placeholders
            if ahead and num_computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens:
                continue  # the step before computes its last token
            if (
                request.request_id not in plain
                or len(request._all_token_ids) + ahead - num_computed != 1
                or request.is_prefill_chunk
                or num_computed + 1 >= self.max_model_len
            ):
                return []
            requests.append(request)
            new_blocks += num_computed % block == 0
        fits = len(requests) <= self.max_num_scheduled_tokens and new_blocks <= manager.block_pool.get_num_free_blocks()
        return requests if fits else []

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        others = copy(scheduler_output)
        others.num_scheduled_tokens = self._add_tokens(scheduler_output.num_scheduled_tokens, model_runner_output)
        outputs = super().update_from_output(others, model_runner_output)
        for of_client in outputs.values():
            for output in of_client.outputs:
                # Put the tokens that nobody has got into an output.
                is_last = output.finish_reason is not None
                plain = self.plain.pop(output.request_id, None) if is_last else self.plain.get(output.request_id)
                if plain is not None and plain.logprobs:
                    plain.take(output)
        return outputs

    def _add_tokens(self, token_counts: Mapping[str, int], output: ModelRunnerOutput) -> dict[str, int]:
        """Add the sampled tokens of requests that get nothing else; returns the other scheduled requests."""
        lists, sampled = output.logprobs, output.sampled_token_ids
        if lists is None or lists.cu_num_generated_tokens is not None or not sampled or output.num_nans_in_logits:
            return dict(token_counts)
        logprobs, rows, others = lists.logprobs[:, 0].tolist(), output.req_id_to_index, {}
        block, cached = self.block_size, self.kv_cache_manager.coordinator.single_type_managers[0].num_cached_block
        for name, count in token_counts.items():
            if count == 1 and (plain := self.plain.get(name)) is not None:
                request, row = plain.request, rows[name]
                tokens, new = request._all_token_ids, sampled[row]
                length = len(tokens) + 1
                if (
                    len(new) == 1
                    and length < plain.limit
                    and new[0] not in plain.stops
                    and request.status is _RUNNING
                    and not request.num_stale_output_tokens
                    and request.prefill_stats is None  # its first output has them
                    # The block that was full before may be cached now, but mostly the plan of a step has done it.
                    and (length % block != 1 or cached.get(name, -1) * block >= length - 1 or not self.ahead)
                ):
                    tokens.append(new[0])
                    request._output_token_ids.append(new[0])
                    if length % block == 0:
                        request.update_block_hashes()
                    request.num_in_flight_tokens -= 1
                    if request.num_output_placeholders:
                        request.num_output_placeholders -= 1
                    plain.logprobs.append(logprobs[row])
                    continue
            others[name] = count
        return others

    def hand_over(self) -> list[EngineCoreOutput]:
        """Outputs with all tokens that nobody has got. The reader believes that they have the present weights."""
        outputs = []
        for name, plain in self.plain.items():
            if plain.logprobs:
                outputs.append(EngineCoreOutput(request_id=name, new_token_ids=[]))
                plain.take(outputs[-1])
        return outputs

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        requests: list[Request] = super().finish_requests(request_ids, finished_status)
        for request in requests:
            self.plain.pop(request.request_id, None)
        return requests


class FastAsyncScheduler(FastScheduler, AsyncScheduler):
    """The same for an engine that schedules a step while the one before is computed."""

    ahead = 1


_NOT_PROVEN = (
    *("adaptive_long_prefill_threshold", "aux_output_connector", "connector", "defer_block_free", "ec_connector"),
    *("enable_kv_cache_events", "finished_req_ids_dict", "is_encoder_decoder", "log_stats", "model_uses_mrope"),
    *("need_mamba_block_aligned_split", "needs_kv_cache_zeroing", "num_lookahead_tokens", "num_prefill_lookahead"),
    *("num_spec_tokens", "perf_metrics", "prefix_replay_tokens", "return_sampling_mask", "use_pp"),
)
"""Attributes of vLLM's scheduler that must be empty."""
_CLASSES: dict[type, type] = {Scheduler: FastScheduler, AsyncScheduler: FastAsyncScheduler}


def install(engine: Any) -> None:
    """Patch an engine if all layers have full attention, and it does nothing beside sampling."""
    scheduler = engine.engine_core.engine_core.scheduler
    if type(scheduler) in _CLASSES and _is_simple(scheduler) and isinstance(engine.output_processor, Outputs):
        scheduler.plain = {}
        scheduler.__class__ = _CLASSES[type(scheduler)]
        scheduler.kv_cache_manager.__class__ = Blocks


def _is_simple(scheduler: Scheduler) -> bool:
    manager = scheduler.kv_cache_manager
    groups = manager.coordinator.single_type_managers
    return (
        type(manager) is KVCacheManager
        and [type(group) for group in groups] == [FullAttentionManager]
        and groups[0].block_size == scheduler.block_size == scheduler.hash_block_size
        and scheduler.block_size > 2
        and scheduler.policy is SchedulingPolicy.FCFS
        and scheduler.num_sampled_tokens_per_step == 1
        and scheduler.dcp_world_size == 1
        and not scheduler.scheduler_config.long_prefill_token_threshold
        and scheduler.max_num_scheduled_tokens <= scheduler.scheduler_config.max_num_batched_tokens
        and not any(map(scheduler.__dict__.__getitem__, _NOT_PROVEN))
    )
