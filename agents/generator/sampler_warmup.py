"""The sampler's kernels that a run needs. vLLM compiles those of every feature before its engine is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.generator.requests import vllm_sampling
from forge_env.core.types import Sampling

if TYPE_CHECKING:
    from vllm import SamplingParams

VERSION = "0.32.0"
"""Of vLLM, whose warm-up was read. Any other version warms up in its own way."""


def warm_up_what_is_asked() -> None:
    """Let vLLM's warm-up sample as our requests do: a first start takes seconds less.

    Kernels of other features, such as top_p or a grammar, are compiled when the first request asks for them.
    """
    import vllm

    if vllm.__version__.partition("+")[0] == VERSION:
        vllm.SamplingParams.for_sampler_warmup = staticmethod(_ours)


def _ours() -> SamplingParams:
    return vllm_sampling(Sampling(temperature=0.9, max_tokens=16, seed=0))
