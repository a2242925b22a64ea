"""What vLLM's workers do for us, between two steps of their engine: they take new weights over.

With one GPU the worker lives in the engine's own process, and is handed the tensors. With several, each worker is a
process of vLLM's own, which fetches the weights from the store by itself and keeps its part of every matrix.
"""

from __future__ import annotations

import asyncio
import functools
import pickle
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forge_env.runtime.lifetime import die_with

if TYPE_CHECKING:
    from torch import Tensor

    from forge_env.runtime.weights import WeightStore


def load_weights(worker: Any, weights: Mapping[str, Tensor]) -> None:
    """Put weights into the model of a worker.

    Args:
        worker: vLLM's.
        weights: whole, under their Hugging Face names, in any dtype and on any device.
    """
    import torch

    config = worker.vllm_config.model_config
    if torch.version.cuda and worker.device.type == "cuda" and config.quantization is None:
        # The parameters lie as in the checkpoint: each is copied over where it is, and cast on the way.
        with torch.no_grad():
            worker.model_runner.get_model().load_weights(weights.items())
        return
    # Elsewhere layers have repacked their weights, and vLLM repacks the new ones; it would cast them as well, warning
    # of each.
    cast = ((name, tensor.to(config.dtype)) for name, tensor in weights.items())
    worker.reload_weights(weights_iterator=cast)


def pull_weights(worker: Any, store: bytes, version: int) -> dict[str, float]:
    """Fetch a published version in a worker's process, and load it; returns the seconds of both.

    Args:
        worker: vLLM's.
        store: a WeightStore, pickled, that needs no actor around it.
        version: of the weights.
    """
    return asyncio.run(_pull(worker, _attached(store), version))


def end_with(worker: Any, pid: int) -> None:
    """Let a worker's process end when another one does, however that ends."""
    die_with(pid)


async def _pull(worker: Any, store: WeightStore, version: int) -> dict[str, float]:
    started = time.perf_counter()
    async with store.fetch(version) as weights:
        fetched = time.perf_counter()
        load_weights(worker, weights)
    return {"fetch": fetched - started, "swap": time.perf_counter() - fetched}


@functools.cache
def _attached(store: bytes) -> WeightStore:
    """One object for each store in this process: it knows which memory is open already."""
    found: WeightStore = pickle.loads(store)
    found.attach()
    return found
