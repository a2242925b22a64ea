"""The requests and commands for the engine's thread, in the forms of forge_env and of vLLM, and their answers."""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agents.generator.lora_slot import version_of
from forge_env.core.errors import PolicyError
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


Answer = tuple[asyncio.Future[Any], Any, BaseException | None]
"""A call, and its value or its error."""


class Answers:
    """Futures that the engine's thread resolves. All but its last three methods are called on the event loop."""

    def __init__(self) -> None:
        self.waiting: set[asyncio.Future[Any]] = set()
        """Unanswered futures; changed only on the event loop."""
        self.why_broken = ""
        """The reason why the engine is broken for good, as a sentence; empty while it runs."""
        self._loop: asyncio.AbstractEventLoop

    def attach(self) -> None:
        """Take the running event loop."""
        self._loop = asyncio.get_running_loop()

    def new_future(self) -> asyncio.Future[Any]:
        """A future that only `resolve` ends."""
        return self._loop.create_future()

    def future(self) -> asyncio.Future[Any]:
        """A future that ends with the engine at the latest."""
        future = self.new_future()
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        return future

    def fail_all(self, reason: str) -> None:
        """Fail every waiting call. It runs on the event loop, so no call can begin to wait meanwhile."""
        for future in list(self.waiting):
            if not future.done():
                future.set_exception(PolicyError(reason))

    def break_all(self, reason: str) -> None:
        """Fail every waiting call, and refuse all later ones."""
        self.why_broken = self.why_broken or reason
        self.fail_all(reason)

    # ---- from the engine's thread ----

    def resolve(self, future: asyncio.Future[Any], value: Any = None, *, error: BaseException | None = None) -> None:
        self.resolve_all([(future, value, error)])

    def resolve_all(self, answers: Sequence[Answer]) -> None:
        """Answer calls that have no answer yet. The event loop is woken once: it then takes the interpreter."""

        def deliver() -> None:
            for future, value, error in answers:
                if not future.done():
                    future.set_result(value) if error is None else future.set_exception(error)

        if answers:
            self._loop.call_soon_threadsafe(deliver)

    def broke(self, reason: str) -> None:
        """Let the event loop call `break_all`."""
        self._loop.call_soon_threadsafe(self.break_all, reason)
