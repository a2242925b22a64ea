"""The experts that vLLM's worker on a CPU chose for every token, stored at the place of the token's keys and values.

A token that is found in the prefix cache was computed by an earlier request, and has that request's experts. So they
are stored by the token's place in the cache of keys and values, and read when a request has finished. On a GPU vLLM
returns them itself (`enable_return_routed_experts`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from forge_env.core.errors import PolicyError

_SUFFIX = 9
"""vLLM adds a dash and eight characters to the id of a request."""


class RouteLog:
    """The experts that one worker has chosen."""

    def __init__(self, worker: Any) -> None:
        from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
            RoutedExpertsCapturer,
            bind_routed_experts_capturer,
        )
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        config, runner = worker.vllm_config, worker.model_runner
        try:
            self._capturer = RoutedExpertsCapturer(config.scheduler_config.max_num_batched_tokens, config)
            bind_routed_experts_capturer(runner.get_model(), self._capturer)
        except ValueError as error:
            raise PolicyError(f"this engine cannot return the experts of its tokens: {error}") from None
        groups = [group.kv_cache_spec for group in runner.kv_cache_config.kv_cache_groups]
        # Layers with a window give up the places of tokens that have left it; those of the other layers stay.
        self._group = next((i for i, group in enumerate(groups) if isinstance(group, FullAttentionSpec)), 0)
        self._block: int = groups[self._group].block_size
        tokens = config.cache_config.num_gpu_blocks * self._block
        kind = np.uint8 if self._capturer.output_dtype_name == "uint8" else np.uint16
        self._experts = np.zeros((tokens, *self._capturer.shape_per_token), dtype=kind)

    def record(self, runner: Any, token_counts: Mapping[str, int]) -> None:
        """Store the experts of the last step."""
        requests = runner.input_batch.req_ids
        starts = runner.input_batch.num_computed_tokens_cpu
        places = [
            self._places(runner, name, int(starts[row]), int(starts[row]) + token_counts[name])
            for row, name in enumerate(requests)
            if name in token_counts
        ]
        at = np.concatenate(places)
        self._experts[at] = self._capturer.device_buffer[: len(at)].numpy()

    def read(self, runner: Any, name: str, tokens: int) -> np.ndarray:
        """The experts of the first tokens of a request, (tokens, layers, active)."""
        return self._experts[self._places(runner, name, 0, tokens)]

    def _places(self, runner: Any, name: str, first: int, end: int) -> np.ndarray:
        """The places of the keys and values of tokens `first` to `end - 1` of a request."""
        position = np.arange(first, end)
        blocks = np.asarray(runner.requests[name].block_ids[self._group])
        return blocks[position // self._block] * self._block + position % self._block


_LOGS: weakref.WeakKeyDictionary[Any, RouteLog] = weakref.WeakKeyDictionary()
"""By the model runner. Nothing may refer back to it: vLLM calls gc.freeze(), and a cycle would stay forever."""


def log_routes(worker: Any) -> None:
    """Begin to store the experts of a worker's steps; this does not change the sampled tokens."""
    runner = worker.model_runner
    _LOGS[runner] = RouteLog(worker)
    runner.execute_model = functools.partial(_execute, weakref.ref(runner))


def routes_of(worker: Any, tokens: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The experts of requests that have just finished: no further step may have begun.

    Args:
        tokens: by the id of each request, the number of its tokens.

    Returns:
        (tokens, layers, active) by the same ids.
    """
    runner = worker.model_runner
    log = _LOGS[runner]
    inner = {name[:-_SUFFIX]: name for name in runner.requests}
    return {name: log.read(runner, inner[name], count) for name, count in tokens.items()}


def _execute(of: weakref.ref[Any], scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
    runner = of()
    assert runner is not None
    result = type(runner).execute_model(runner, scheduler_output, *args, **kwargs)
    if scheduler_output.total_num_scheduled_tokens:
        _LOGS[runner].record(runner, scheduler_output.num_scheduled_tokens)
    return result
