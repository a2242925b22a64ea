"""The imports of vLLM's worker processes: the fork server imports this file. None of them opens a GPU.

vLLM imports workers, models and attention by their names, in each worker.
"""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

from forge_env.utils.gc_settings import no_collections

with no_collections():
    for name in (
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.worker.gpu.model_runner",
        "vllm.v1.attention.backends.flash_attn",
        "vllm.model_executor.layers.quantization.online.base",
        "agents.generator.worker",
    ):
        with suppress(Exception):  # a worker that needs it says why
            importlib.import_module(name)
gc.freeze()  # a collection in a fork would copy the memory of all that was imported
