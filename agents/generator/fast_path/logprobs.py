"""Patch of vLLM 0.32: the logprobs of sampled tokens stay numbers. vLLM makes an object in a dict of each of them."""

from __future__ import annotations

from typing import Any

from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.engine.output_processor import OutputProcessor


class SampledLogprobs(LogprobsProcessor):
    """Its `logprobs` are floats, one for each sampled token."""

    def _update_sample_logprobs(self, logprobs_lists: Any) -> None:
        self.logprobs += logprobs_lists.logprobs[:, 0].tolist()  # the sampled token is the first of its row


class Outputs(OutputProcessor):
    """An output processor for requests with logprobs of their sampled tokens only."""

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().add_request(request, *args, **kwargs)
        processor = self.request_states[request.request_id].logprobs_processor
        if processor is not None and processor.num_logprobs == 0:
            processor.__class__ = SampledLogprobs


def install(engine: Any) -> None:
    """Patch an engine with vLLM's own output processor."""
    if type(engine.output_processor) is OutputProcessor:
        engine.output_processor.__class__ = Outputs
