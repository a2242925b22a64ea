"""The requests and commands for the engine's thread, in the forms of forge_env and of vLLM."""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agents.generator.lora_slot import version_of
from forge_env.core.routes import Routes
from forge_env.core.tokens import FLOATS, IDS, array_of
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling

if TYPE_CHECKING:
    from vllm import SamplingParams


@dataclass(slots=True)
class SampleRequest:
    """One completion that somebody waits for."""

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    future: asyncio.Future[Any] = field(compare=False)
    adapter: str = ""
    scores_prompt: bool = False
    """Whether the result is the logprobs of the prompt, and not a completion."""


@dataclass(slots=True)
class Batch:
    """Requests that start together, on an idle engine."""

    requests: list[SampleRequest]


@dataclass(slots=True)
class Command:
    """A function to run in the engine's thread, between two steps."""

    run: Callable[[], Any]
    future: asyncio.Future[Any]


def check_tokens(prompt_ids: Sequence[int], vocabulary: int) -> None:
    """Refuse ids outside the vocabulary: inside a step they would break the engine for all requests."""
    if prompt_ids and not 0 <= min(prompt_ids) <= max(prompt_ids) < vocabulary:
        wrong = next(token for token in prompt_ids if not 0 <= token < vocabulary)
        raise ValueError(f"token {wrong} of the prompt is not in the vocabulary, which is 0 to {vocabulary - 1}")


def vllm_sampling(sampling: Sampling) -> SamplingParams:
    """Sampling in vLLM's form: with the logprob of each sampled token, and one output at the end."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
        stop_token_ids=list(map(int, sampling.stop_token_ids)),  # a token of an array is an integer of NumPy
        ignore_eos=True,  # only the renderer's stop tokens end a turn
        logprobs=0,
        stop=list(sampling.stop),
        detokenize=bool(sampling.stop),  # text costs time, and only stop strings need it
        skip_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        structured_outputs=StructuredOutputsParams(structural_tag=sampling.grammar) if sampling.grammar else None,
    )


def prompt_logprobs_of(output: Any) -> tuple[float, ...]:
    """The logprobs of a prompt's tokens after the first, at temperature 1, in vLLM's output of a finished request."""
    prompt = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
    return tuple(place[token].logprob for place, token in prompt)


def completion_of(output: Any, adapter: str = "", routes: Any = None, *, grammar: str = "") -> Completion:
    """The completion in vLLM's output of a finished request.

    Args:
        routes: (tokens, layers, active) uint8 or uint16, the experts of all tokens but the last; on a GPU vLLM's output
            has them.
    """
    answer = output.outputs[0]
    spans = [(version_of(span.version, adapter), span.end - span.start) for span in answer.weight_versions or ()]
    by_version = itertools.groupby(spans, key=operator.itemgetter(0))  # another adapter's version may have changed
    logprobs = answer.logprobs
    if logprobs and not isinstance(logprobs[0], float):  # as vLLM without `agents.generator.fast_path` has them
        logprobs = [step[token].logprob for step, token in zip(logprobs, answer.token_ids, strict=True)]
    routes = answer.routed_experts if routes is None else routes
    return Completion(
        prompt_ids=array_of(output.prompt_token_ids, IDS),
        token_ids=array_of(answer.token_ids, IDS),
        logprobs=array_of(logprobs, FLOATS),
        versions=tuple((version, sum(count for _, count in group)) for version, group in by_version),
        finish_reason=answer.finish_reason,
        routes=() if routes is None else (Routes.of(0, routes),),
        constrained=len(answer.token_ids) if grammar else 0,
    )
