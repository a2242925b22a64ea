"""Stop strings: they are given as text, and the completion is truncated at a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from forge_env.core.turn import Completion


def truncate_at_stop(completion: Completion, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Completion:
    """The completion up to and with the token that completes the first stop string.

    The decision to stop depends only on the tokens before it. So the remaining tokens were sampled as if generation had
    ended there, and their logprobs stay valid.
    """
    ids = completion.token_ids.tolist()

    def stops(count: int) -> bool:
        text = decode(ids[:count])
        return any(string in text for string in stop)

    if not stops(len(ids)):
        return completion
    low, high = 1, len(ids)  # the smallest count that stops; decoding more tokens never removes text
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if stops(middle) else (middle + 1, high)
    return replace(completion.first(low), finish_reason="stop")
