"""Reads the tokens of a model's calls: the rows that they make, and what forge_env has kept of them in an export."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from contrib.records.imports.build import BadRecord
from forge_env.core.routes import Routes
from forge_env.core.turn import digest
from forge_env.core.types import NOT_SAMPLED, ToolCall

_MOST_ID = 2**31 - 1  # ids are packed as 32 bits


class Rows:
    """The tokens of one conversation after another: a prompt that begins with the row so far goes on with it."""

    def __init__(self) -> None:
        self._row: list[int] = []

    def place(self, prompt: Sequence[int], tokens: Sequence[int], starts_row: Any = None) -> dict[str, Any]:
        """Return the fields of a Turn that say where its tokens are; the prompt is the whole one of the call."""
        known = len(self._row)
        is_same = bool(known) and list(prompt[:known]) == self._row
        starts = not is_same if starts_row is None else bool(starts_row)
        if not (starts or is_same):
            raise BadRecord("its prompt does not go on from the tokens before it, as what forge_env has kept says")
        self._row = [*prompt, *tokens]
        return {
            "starts_row": starts,
            "prompt_ids": prompt[0 if starts else known :],
            "token_ids": tokens,
        }


def check_ids(*lists: Sequence[Any]) -> None:
    if not all(type(token) is int and 0 <= token <= _MOST_ID for tokens in lists for token in tokens):
        raise BadRecord(f"a token id is no whole number from 0 to {_MOST_ID}")


def check_logprobs(logprobs: Sequence[Any], tokens: Sequence[int], most: float = math.inf) -> None:
    if len(logprobs) != len(tokens):
        raise BadRecord(f"it has {len(logprobs)} logprobs for {len(tokens)} tokens")
    if not all(type(p) in (int, float) and -math.inf < p < math.inf and p <= most for p in logprobs):
        raise BadRecord("a logprob is no finite number" + " up to 0" * (most == 0))


def kept_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `exports.conversation.token_facts` has written, as fields of a Turn."""
    try:
        return {
            "versions": tuple((NOT_SAMPLED if v is None else int(v), int(n)) for v, n in facts["weight_versions"]),
            "context_digest": str(facts["context_digest"]),
            "tool_calls": tuple(ToolCall(**item) for item in facts["tool_calls"]),
            "routes": tuple(map(Routes.of_text, facts.get("routes", ()))),
            "constraint": str(facts.get("constraint", "")),
            "constrained": int(facts.get("constrained", 0)),
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadRecord(f"what forge_env has kept of it is broken ({type(error).__name__}: {error})") from None


def unversioned(prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """The fields of a Turn with tokens that were all sampled by weights without a name."""
    return {"versions": ((0, len(tokens)),), "context_digest": digest(prompt)}
