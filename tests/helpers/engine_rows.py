"""What an engine has sampled, beside what a trainer computes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_env.core.episode import Episode, Row
from forge_env.core.turn import Completion
from trainers.batching.batch import Sample


def row_of(completion: Completion) -> Row:
    ids = {"prompt_ids": completion.prompt_ids, "response_ids": completion.token_ids}
    return Episode(**ids, logprobs=completion.logprobs, reward=0.0).rows[0]


def samples_of(completions: Sequence[Completion]) -> list[Sample]:
    return [Sample(rows=(row_of(completion),), advantage=0.0) for completion in completions]


def differences(completions: Sequence[Completion], logprobs: Sequence[Any]) -> list[float]:
    """The |difference| of the engine's logprobs and these, for each sampled token."""
    return [
        abs(a - b)
        for completion, values in zip(completions, logprobs, strict=True)
        for a, b in zip(completion.logprobs, values, strict=True)
    ]


def mean_difference(completions: Sequence[Completion], logprobs: Sequence[Any]) -> float:
    each = differences(completions, logprobs)
    return sum(each) / len(each)
