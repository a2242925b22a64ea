"""The sampler's kernels that a run needs. vLLM compiles those of every feature before its engine is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.generator.requests import vllm_sampling
from forge_env.core.types import Sampling

if TYPE_CHECKING:
    from vllm import SamplingParams


def warm_up_what_is_asked() -> None:
    """Let vLLM's warm-up sample as our requests do: a first start takes seconds less.

    Kernels of other features, such as top_p or a grammar, are compiled when the first request asks for them.
    """
    from vllm import SamplingParams

    if hasattr(SamplingParams, "for_sampler_warmup"):  # otherwise this version warms up in another way
        SamplingParams.for_sampler_warmup = staticmethod(_ours)


def _ours() -> SamplingParams:
    return vllm_sampling(Sampling(temperature=0.9, max_tokens=16, seed=0))
