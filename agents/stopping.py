"""Stop strings: where an answer ends, said in text and kept in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from forge_env.core.types import Completion


def cut_at(completion: Completion, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Completion:
    """Return a completion up to the token that completes the first of the stop strings in it.

    Where to stop is decided by the tokens up to there alone, so what is kept was sampled just as if nothing had come
    after it: its logprobs stand.
    """
    ids = completion.token_ids

    def stops(count: int) -> bool:
        text = decode(ids[:count])
        return any(each in text for each in stop)

    if not stops(len(ids)):
        return completion
    low, high = 1, len(ids)  # the least count that stops; more tokens never take a text away
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if stops(middle) else (middle + 1, high)
    return replace(
        completion,
        token_ids=ids[:low],
        logprobs=completion.logprobs[:low],
        versions=_first(completion.versions, low),
        finish_reason="stop",
    )


def _first(versions: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int, int], ...]:
    """The version spans of the first `count` tokens."""
    kept: list[tuple[int, int]] = []
    for version, length in versions:
        if count > 0:
            kept.append((version, min(length, count)))
        count -= length
    return tuple(kept)
