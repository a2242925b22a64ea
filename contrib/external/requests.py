"""A program's request, whatever the dialect that it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contrib.external.constraint import Constraint
from contrib.external.told import Told
from forge_env.core.types import Message, ToolSpec


def whole_number(value: Any) -> Any:
    """Return 16.0 as 16, since JSON has one kind of number; any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    model: str
    """As the program calls it; all names mean the same model."""
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    """Text or token ids of /v1/completions; None for a chat."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    """The form that the answer must have."""
    logprobs: bool = False
    """Whether the response has the logprobs of the sampled tokens."""
    counts: bool = False
    """Whether the tokens of the prompt are to be counted, and nothing is sampled."""
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()
    """Fields that the program set and that are ignored; a part of a field as "tools.strict"."""
    echo: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the response repeats of the request, in the dialect's form."""
    told: Told = field(default=Told())
    """What the client says of the request beside its content."""
    leading: int = 0
    """Messages at the beginning that a later request which names this one does not take over."""
