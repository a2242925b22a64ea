"""New weights in vLLM's workers, loaded between two steps of their engine.

With one GPU the worker is in the engine's process, and receives the tensors. With several, every worker is a process
that vLLM starts; it fetches the weights from the store and keeps its shard of every matrix.
"""

from __future__ import annotations

import asyncio
import functools
import pickle
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agents.generator.expert_weights import check_complete, forget_kernels, one_by_one, set_sinks
from agents.generator.lora_slot import PUBLISHED, is_adapter, load_adapter
from agents.model_weights import EMBEDDING, HEAD
from forge_env.core.errors import PolicyError
from forge_env.runtime.process.children import die_with

if TYPE_CHECKING:
    from torch import Tensor

    from forge_env.runtime.weights import WeightStore


def load_weights(worker: Any, weights: Mapping[str, Tensor]) -> None:
    """Put weights, or an adapter, into the model of a worker.

    Args:
        weights: full tensors by their Hugging Face names, or an adapter's by PEFT's, on any device and in any dtype. In
            the model's dtype they need no cast, and no memory for one. Weights of experts must be complete.
    """
    import torch

    if is_adapter(weights):
        load_adapter(worker, PUBLISHED, weights)
        return
    if worker.vllm_config.lora_config is not None:
        raise PolicyError("an engine with adapters keeps its frozen weights: give it an adapter, by PEFT's names")
    config = worker.vllm_config.model_config
    if config.word_embeddings_untied_by_checkpoint and HEAD not in weights:
        # The folder holds a copy of the embedding as its output layer, so vLLM has made a layer of its own. The trainer
        # has one matrix, and publishes it once.
        weights = {**weights, HEAD: weights[EMBEDDING]}
    check_complete(config.hf_text_config, weights)
    if torch.version.cuda and worker.device.type == "cuda" and config.quantization is None:
        # The parameters have the layout of the checkpoint: copy_ writes in place, and casts.
        with torch.no_grad():
            worker.model_runner.get_model().load_weights(one_by_one(weights))
        return
    # In other cases layers have repacked their weights, and vLLM repacks the new ones. Another dtype is cast here,
    # tensor by tensor: vLLM would log a warning for each of them.
    if worker.device.type == "cpu":
        forget_kernels(worker.model_runner.get_model())
    # A router's bias has its own dtype.
    cast = (
        (name, tensor if name.endswith("correction_bias") else tensor.to(config.dtype))
        for name, tensor in one_by_one(weights)
    )
    worker.reload_weights(weights_iterator=cast)
    set_sinks(worker.model_runner.get_model(), weights)
    if worker.device.type == "cpu" and config.hf_text_config.tie_word_embeddings:
        # On a CPU the output layer computes with a packed copy of its weight. If it shares the embedding's weight,
        # nothing is loaded into the layer itself, and vLLM leaves the copy as it was.
        head = worker.model_runner.get_model().lm_head
        head.quant_method.process_weights_after_loading(head)


def pull_weights(worker: Any, store: bytes, version: int) -> dict[str, float]:
    """Fetch a published version in the worker's process, and load it; returns the seconds of both."""
    return asyncio.run(_pull(worker, _attach(store), version))


def end_with(worker: Any, pid: int) -> None:
    """End a worker's process when the process `pid` ends, for any reason."""
    die_with(pid)


async def _pull(worker: Any, store: WeightStore, version: int) -> dict[str, float]:
    start_time = time.perf_counter()
    async with store.fetch(version) as weights:
        fetch_time = time.perf_counter()
        load_weights(worker, weights)
    return {"fetch": fetch_time - start_time, "swap": time.perf_counter() - fetch_time}


@functools.cache
def _attach(store: bytes) -> WeightStore:
    """One attached object per store in this process: it keeps the shared memory open."""
    weight_store: WeightStore = pickle.loads(store)
    weight_store.attach()
    return weight_store
