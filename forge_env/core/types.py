"""The basic data types of forge_env: messages, tools, tasks, outcomes.

Messages and tool specs are plain dictionaries in the shape of OpenAI's chat API. The other types are
frozen dataclasses, or a `record`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Interval

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a dataclass that type checkers treat as frozen; nothing changes its objects once they are made.

    For classes that every turn makes: Python freezes an object by a slow call for each field, which would take a tenth
    of the time of a step of a simple environment.
    """
    return dataclass(slots=True, kw_only=True)(cls)


THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""The names of a thought in messages of other programs; the first one is ours."""


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


@record
class ToolCall:
    """A tool call of the model, parsed by the agent.

    Example: ``ToolCall(id="call_0", name="python", arguments={"code": "print(1)"})``
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    """None when the text of the model is not a JSON object; then `error` gives the reason."""
    raw: str = ""
    """The text of the model, when it could not be parsed."""
    error: str = ""


@record
class Action:
    """An action in an environment: an assistant message with its parsed tool calls."""

    message: Message
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    """"stop", or "length" when the model was cut off."""
    usage: Mapping[str, int] | None = None
    """"prompt_tokens" and "completion_tokens" of the turn, where the agent counts them."""

    @property
    def text(self) -> str:
        return self.message["content"]


@record
class ToolUse:
    """Duration and result of one tool call.

    Example: ``ToolUse(name="python", seconds=0.004)``
    """

    name: str
    seconds: float = 0.0
    """Duration of the call with all its attempts, without the wait for a free slot."""
    error: str = ""
    """"", "unknown_tool", "bad_arguments", "timeout", "raised", or the kind of a `ToolFailure`, as "http_404"."""


class ToolFailure(str):
    """The result of a failed call: a text for the model, like any result, that is counted as an error.

    Example: ``return ToolFailure("Error: 404 Not Found", kind="http_404")``
    """

    kind: str
    """The kind of error, from a small fixed set: each kind becomes a figure of its own."""

    def __new__(cls, text: str, *, kind: str = "failed") -> ToolFailure:
        failure = super().__new__(cls, text)
        failure.kind = kind
        return failure


class Outcome(StrEnum):
    """How an episode ended.

    The first three are due to the model and have a reward; the others are not and have none. TIMEOUT: services or the
    environment used up `EpisodeLimits.episode_seconds`, see `Env.time_spent_by`.
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
        return self in _VALID

    @property
    def is_attempt(self) -> bool:
        """Whether it counts in an evaluation: valid, or a TIMEOUT, which is an attempt that did not succeed."""
        return self.is_valid or self is Outcome.TIMEOUT


_VALID = (Outcome.SCORED, Outcome.TRUNCATED, Outcome.MODEL_FAULT)

NOT_SAMPLED = -1
"""The weight version of tokens that no weights sampled: tokens of prompts, and tokens that an agent inserted."""


CONTEXT = "context"
"""Ends an episode in the place of "max_tokens" when the agent's own context is full, see `Episode.ended_by`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Limits of an episode, in counts and seconds: options of every command that plays episodes.

    Generation, waiting in a queue of forge_env, and scoring count towards neither `step_seconds` nor `episode_seconds`.
    A tool has a shorter limit than a step: `ToolOptions.timeout`. `Env.time_spent_by` decides the outcome of an episode
    that took too long.
    """

    max_turns: Annotated[int, Ge(1)] = 8
    """Turns of an episode at most."""
    max_turn_tokens: Annotated[int, Ge(1)] = 512
    """Sampled tokens of one turn at most, and tokens that an agent inserts into it."""
    max_tokens: Annotated[int, Ge(2)] = 4096
    """Prompt and sampled tokens of an episode at most: the context length. With `compact_at`, those of each of its
    rows."""
    compact_at: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Share of the context. A prompt that is longer is not answered: the agent writes a summary first, which then
    stands in the place of the old turns. 0 ends such an episode when the context is full."""
    max_thinking_tokens: Annotated[int, Ge(0)] = 0
    """Tokens at most of the thought in one turn. A longer one is ended, and the model goes on with the answer. 0 means
    no limit but the turn's own."""
    step_seconds: Annotated[float, Gt(0)] = 60.0
    """Time limit of one reset or step of the environment."""
    episode_seconds: Annotated[float, Gt(0)] = 600.0
    """Time limit of the environment's own work in an episode, without generation and queues."""
    scoring_seconds: Annotated[float, Gt(0)] = 120.0
    """Time limit of the rewards of one episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of an episode. `id` is a hash of the content by default.

    Example: ``Task(prompt=({"role": "user", "content": "What is 2 + 2?"},), target="4")``
    """

    prompt: tuple[Message, ...]
    target: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    kind: str = ""
    """What kind of task it is, out of a small fixed set of names, such as the operation that it asks for; "" is none.
    Success is reported for each kind, see `forge_env.evaluation.kinds`. The agent does not see it. It is not part of
    the id."""

    def __post_init__(self) -> None:
        if not self.id:
            content = json.dumps([self.prompt, self.target, dict(self.metadata)], sort_keys=True, default=str)
            object.__setattr__(self, "id", hashlib.blake2b(content.encode(), digest_size=8).hexdigest())


HOTTEST = 2.0
"""The highest sampling temperature: engines and endpoints refuse a higher one."""


@record
class Sampling:
    """Sampling parameters of a policy."""

    temperature: float = 1.0
    top_p: float = 1.0
    """Samples only from the likeliest tokens with this total probability; 1 is all. For evaluations only: the
    renormalised logprobs would bias the importance ratio of a training step."""
    max_tokens: int = 512
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Texts that end the turn. A policy may ignore them: the agent then cuts the completion."""
    grammar: str = ""
    """A structural tag of XGrammar, as JSON, that the sampled tokens must match; "" is none. A policy that has applied
    it says so in `Completion.constrained`."""
