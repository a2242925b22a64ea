"""The budget of a thought: the agent ends a thought that has reached it, and the model goes on with the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from forge_env.core.turn import Completion, digest
from forge_env.core.types import NOT_SAMPLED, Sampling

Ask = Callable[[np.ndarray, Sampling, int], Awaitable[Completion]]
"""Samples a completion of a prompt; the number is the request's place in its turn, 0 or 1."""


async def sample_within(
    ask: Ask,
    prompt: np.ndarray,
    sampling: Sampling,
    *,
    budget: int,
    close: Sequence[int],
    is_in_thought: Callable[[Sequence[int]], bool],
) -> tuple[Completion, list[np.ndarray]]:
    """Sample a turn with a thought of at most `budget` tokens.

    The first request ends at the budget. If the turn is not complete by then, a second request continues it: after the
    tokens `close` if it is still in its thought, and otherwise at once. If the turn has no room for a thought of
    `budget` tokens, `close` and an answer, there is one request, and the budget has no effect.

    Args:
        sampling: `max_tokens` is the limit of the full turn, inserted tokens included.
        budget: tokens of a thought, including its opening token; 0 means no limit.
        close: the tokens that end a thought.
        is_in_thought: whether the tokens of a turn begin a thought and do not end it.

    Returns:
        The completion of the full turn, and the prompt of each request as the engine reports it.
    """
    has_room = 0 < budget < sampling.max_tokens - len(close)
    first = await ask(prompt, replace(sampling, max_tokens=budget) if has_room else sampling, 0)
    if not has_room or first.finish_reason != "length" or len(first.token_ids) < budget:
        return first, [first.prompt_ids]
    sampled = first.token_ids.tolist()
    insertion = tuple(close) if is_in_thought(sampled) else ()
    remaining_tokens = sampling.max_tokens - len(sampled) - len(insertion)
    rest = await ask(first.with_inserted(insertion), replace(sampling, max_tokens=remaining_tokens), 1)
    return first.then(insertion, rest), [first.prompt_ids, rest.prompt_ids]


def context_digest(prompts: Sequence[np.ndarray], versions: Sequence[tuple[int, int]]) -> str:
    """The `Turn.context_digest` of a turn.

    Args:
        versions: of the turn's tokens; a stop string may have cut off the versions of the second request.
    """
    if len(prompts) == 1:
        return digest(prompts[0])
    requests = 1 + sum(version == NOT_SAMPLED for version, _ in versions[:-1])
    return " ".join(map(digest, prompts[:requests]))
