"""Patch of vLLM 0.32: the parameters of requests are checked once for all that differ in seed and length only.

For every request vLLM checks them, renders the prompt and copies both deeply, which takes longer than the rest of the
admission. Most requests of a run, and all of a group, have the same parameters.
"""

from __future__ import annotations

import time
from copy import copy
from typing import Any

from vllm import LLMEngine, SamplingParams
from vllm.v1.engine import EngineCoreRequest

from agents.generator.requests import SampleRequest, vllm_sampling

MOST_KINDS = 64
"""Parameters that are kept."""


class FastEngine(LLMEngine):
    """An engine that keeps parameters."""

    templates: dict[Any, SamplingParams]
    """As vLLM has completed them, by all that they were made of but the seed and the length."""

    def admit(self, sample_request: SampleRequest, prompt: Any, adapter: Any) -> None:
        """Add a request for a completion.

        Args:
            prompt: vLLM's `TokensPrompt`; its ids are in the vocabulary.
        """
        sampling, ids = sample_request.sampling, sample_request.prompt_ids
        seed, count = sampling.seed, sampling.max_tokens
        key = sampling.temperature, sampling.top_p, tuple(sampling.stop_token_ids), seed is None, bool(adapter)
        is_usual = not (sampling.stop or sampling.grammar) and count > 0 and (seed is None or seed >= 0)
        if not (is_usual and 0 < len(ids) < self.model_config.max_model_len and key in self.templates):
            name = self.add_request(sample_request.request_id, prompt, vllm_sampling(sampling), lora_request=adapter)
            if is_usual and len(self.templates) < MOST_KINDS:
                self.templates[key] = self.engine_core.engine_core.scheduler.requests[name].sampling_params
            return
        params = copy(self.templates[key])
        params.seed, params.max_tokens = seed, count
        salt = prompt.get("cache_salt")
        request = EngineCoreRequest(
            sample_request.request_id, ids, None, params, None, time.time(), adapter, salt, None
        )
        self.input_processor.assign_request_id(request)
        self.output_processor.add_request(request, None)
        self.engine_core.add_request(request)


def install(engine: Any) -> None:
    if type(engine) is LLMEngine:
        engine.templates = {}
        engine.__class__ = FastEngine
