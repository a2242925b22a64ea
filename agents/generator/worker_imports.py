"""The imports of vLLM's worker processes, for their fork server. vLLM imports most of them by name, in each worker."""

import importlib
from contextlib import suppress

from agents.generator.sampler_warmup import warm_up_what_is_asked
from forge_env.utils.quick_imports import quick_imports

NAMES = """
vllm.v1.executor.multiproc_executor vllm.v1.worker.gpu_worker vllm.v1.worker.gpu_model_runner
vllm.v1.worker.gpu.model_runner vllm.v1.attention.backends.flash_attn
vllm.model_executor.layers.quantization.online.base agents.generator.worker
"""
with quick_imports():
    for name in NAMES.split():
        with suppress(Exception):  # a worker that needs it says why
            importlib.import_module(name)
    with suppress(Exception):
        warm_up_what_is_asked()
