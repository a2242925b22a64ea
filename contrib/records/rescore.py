"""Scores recorded episodes with another reward function; nothing is generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from itertools import islice

from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, InfraError
from forge_env.core.types import Outcome
from forge_env.core.user_code import error_text
from forge_env.tool_env.rubric import RewardPart, score
from forge_env.utils.deadlines import Deadline

BATCH_SIZE = 16
"""Episodes that are scored at the same time."""
SECONDS = 120.0  # for the reward of one episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """An episode with its old and its new reward. Without a final answer, both are the same.

    If the reward function failed, `after` is an `env_fault` without a reward, as in a played episode: it must not keep
    the reward of another function.
    """

    before: Episode
    after: Episode
    error: str = ""
    """Why the reward function failed."""


def has_answer(episode: Episode) -> bool:
    """Whether an episode ended with a final answer, which is what a reward function scores."""
    return episode.outcome is Outcome.SCORED and bool(episode.turns) and not episode.tail


async def rescore(episodes: Iterable[Episode], part: RewardPart) -> AsyncIterator[Rescored]:
    """Score episodes again, in order; the last turn's reward changes with the episode's, so the turns add up."""
    remaining = iter(episodes)
    while batch := list(islice(remaining, BATCH_SIZE)):
        for answer in await asyncio.gather(*(_rescore(episode, part) for episode in batch)):
            yield answer


async def _rescore(episode: Episode, part: RewardPart) -> Rescored:
    if not has_answer(episode):
        return Rescored(before=episode, after=episode)
    messages, deadline = episode.messages, Deadline(SECONDS)
    try:
        reward, parts = await deadline.run(score([part], episode.task, messages, messages[-1]["content"]))
    except TimeoutError as error:
        reason = f"it took longer than {SECONDS:g} s" if deadline.has_expired else f"the reward timed out: {error}"
        return _failure(episode, reason)
    except (EnvError, InfraError) as error:
        return _failure(episode, error_text(error))
    last = episode.turns[-1]
    turn = replace(last, reward=last.reward + reward - (episode.reward or 0.0))
    # The environment's verdict on success belongs to the old reward.
    after = replace(episode, turns=(*episode.turns[:-1], turn), reward=reward, rewards=parts, success=None)
    return Rescored(before=episode, after=after)


def _failure(episode: Episode, reason: str) -> Rescored:
    after = replace(episode, outcome=Outcome.ENV_FAULT, reward=None, rewards={}, success=None, error=reason)
    return Rescored(before=episode, after=after, error=reason)
