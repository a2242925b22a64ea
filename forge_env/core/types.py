"""The small words of forge_env: messages, tools, tasks, completions, outcomes.

Messages and tool specs are OpenAI chat shapes (plain dictionaries), which is what every tool of the ecosystem reads.
Everything else is a frozen dataclass.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NotRequired, Required, TypedDict


class Message(TypedDict, total=False):
    """One chat message, in OpenAI's shape."""

    role: Required[Literal["system", "user", "assistant", "tool"]]
    content: Required[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class FunctionSpec(TypedDict):
    name: str
    description: str
    parameters: dict[str, Any]


class ToolSpec(TypedDict):
    """One tool, in OpenAI's shape; `parameters` is a JSON schema."""

    type: Literal["function"]
    function: FunctionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the model asked for, parsed by the agent.

    Example: ``ToolCall(id="call_0", name="python", arguments={"code": "print(1)"})``
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    """None when what the model wrote is not a JSON object; then `error` says why."""
    raw: str = ""
    """What the model wrote, when it could not be parsed."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What an agent does in an environment: an assistant message with its parsed tool calls."""

    message: Message
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    """"stop", or "length" when the model was cut off."""
    usage: Mapping[str, int] | None = None
    """"prompt_tokens" and "completion_tokens" of the turn, where the agent counts them."""

    @property
    def text(self) -> str:
        return self.message["content"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What one tool call cost and whether it went well.

    Example: ``ToolUse(name="python", seconds=0.004)``
    """

    name: str
    seconds: float = 0.0
    """Of the work, further attempts included; waiting for a place is not."""
    error: str = ""
    """"", "unknown_tool", "bad_arguments", "timeout", "raised", or the kind of a `ToolFailure`, as "http_404"."""


class ToolFailure(str):
    """What a tool returns where its call failed: a text for the model, as any result, which is counted as an error.

    Example: ``return ToolFailure("Error: 404 Not Found", kind="http_404")``
    """

    kind: str
    """A few words at most: they are names of figures."""

    def __new__(cls, text: str, *, kind: str = "failed") -> ToolFailure:
        failure = super().__new__(cls, text)
        failure.kind = kind
        return failure


class Outcome(StrEnum):
    """How an episode ended.

    The first three are the model's doing and carry a reward; the others are not and carry none. TIMEOUT: what is not
    the model's doing used up `EpisodeLimits.episode_seconds`, see `Env.time_spent_by`.
    """

    SCORED = "scored"
    TRUNCATED = "truncated"
    MODEL_FAULT = "model_fault"
    TIMEOUT = "timeout"
    ENV_FAULT = "env_fault"
    INFRA_FAULT = "infra_fault"

    @property
    def is_valid(self) -> bool:
        """Whether the episode has a reward and takes part in its group's baseline."""
        return self in (Outcome.SCORED, Outcome.TRUNCATED, Outcome.MODEL_FAULT)

    @property
    def is_attempt(self) -> bool:
        """Whether it counts in an evaluation: valid, or a TIMEOUT, which is an attempt that did not succeed."""
        return self.is_valid or self is Outcome.TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Ends an episode that goes on for too long. Counts and seconds."""

    max_turns: int = 8
    max_turn_tokens: int = 512
    """Sampled tokens of one turn at most."""
    max_tokens: int = 4096
    """Prompt and sampled tokens of a training row at most: the context length."""
    step_seconds: float = 60.0
    """One `reset` or `step` of the environment. A tool has its own, shorter one: `ToolOptions.timeout`."""
    episode_seconds: float = 600.0
    """All `reset` and `step` of the episode. Generation, queues of ours and the scoring count in neither of these two.

    What an episode is worth that runs out of it says `Env.time_spent_by`."""
    scoring_seconds: float = 120.0
    """The reward functions of the final answer, all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an environment is given. `id` is a hash of the content when none is given.

    Example: ``Task(prompt=({"role": "user", "content": "What is 2 + 2?"},), target="4")``
    """

    prompt: tuple[Message, ...]
    target: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            content = json.dumps([self.prompt, self.target, dict(self.metadata)], sort_keys=True, default=str)
            object.__setattr__(self, "id", hashlib.blake2b(content.encode(), digest_size=8).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a policy samples."""

    temperature: float = 1.0
    top_p: float = 1.0
    """The share of the probability, the likeliest tokens first, that is sampled from; 1 is all. For evaluations alone:
    cut off and scaled up, the logprobs of what is left would bias the importance ratio of a training step."""
    max_tokens: int = 512
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Texts that end it as well. A policy need not know them: the agent cuts what it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a policy sampled for one prompt, token-exact.

    Example: ``Completion(prompt_ids=(5, 9), token_ids=(7, 2), logprobs=(-0.1, -0.7), versions=((3, 2),))``
    """

    prompt_ids: tuple[int, ...]
    """The ids that the engine says it saw."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each sampled token, at the sampling temperature; `generator_logprobs` from here to the loss."""
    versions: tuple[tuple[int, int], ...]
    """Spans (weight version, number of tokens) that cover `token_ids` in order."""
    text: str = ""
    finish_reason: str = "stop"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def generator_logprobs(self) -> tuple[float, ...]:
        """The logprobs of `token_ids` under the policy that sampled them."""
        return self.logprobs
