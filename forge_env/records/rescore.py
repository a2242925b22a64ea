"""Scores episodes that lie on disk anew, with another reward function; nothing is generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from itertools import islice

from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, InfraError, UserError
from forge_env.core.types import Outcome
from forge_env.core.user_code import told
from forge_env.registry.registry import load
from forge_env.tool_env.rubric import RewardPart, score
from forge_env.utils.deadlines import Deadline

AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """One episode before and after. Without a final answer it stays as it was.

    Where the reward function failed, what comes after is an `env_fault` without a reward, as in an episode that is
    played: the old reward is no answer of the new function.
    """

    before: Episode
    after: Episode
    error: str = ""
    """Why the reward function failed."""

    @property
    def has_answer(self) -> bool:
        return has_answer(self.before)


def load_reward(target: str) -> RewardPart:
    """Import a reward function, or a class whose instances are one.

    Raises:
        UserError: when it cannot be imported, or called as `forge_env.tool_env.rubric` says.
    """
    found = load(target)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise UserError(f"{target!r}: {found.__qualname__}() raised {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UserError(f"{target!r} is {found!r}; a reward is a function of what forge_env.tool_env.rubric names")
    return RewardPart.of(found)


def has_answer(episode: Episode) -> bool:
    """Whether an episode ended with a final answer, which is what a reward function scores."""
    return episode.outcome is Outcome.SCORED and bool(episode.turns) and not episode.tail


async def rescore(episodes: Iterable[Episode], part: RewardPart, *, seconds: float = 120.0) -> AsyncIterator[Rescored]:
    """Score episodes anew, in order; `seconds` is the deadline of one.

    The last turn's reward is changed with the episode's, so that they still add up.
    """
    rest = iter(episodes)
    while batch := list(islice(rest, AT_ONCE)):
        for rescored in await asyncio.gather(*(_rescored(episode, part, seconds) for episode in batch)):
            yield rescored


async def _rescored(episode: Episode, part: RewardPart, seconds: float) -> Rescored:
    if not has_answer(episode):
        return Rescored(before=episode, after=episode)
    messages, deadline = episode.messages, Deadline(seconds)
    try:
        reward, parts = await deadline.run(score([part], episode.task, messages, messages[-1]["content"]))
    except TimeoutError as error:
        reason = f"it took longer than {seconds:g} s" if deadline.expired else f"the reward timed out: {error}"
        return _failed(episode, reason)
    except (EnvError, InfraError) as error:
        return _failed(episode, told(error))
    last = episode.turns[-1]
    turn = replace(last, reward=last.reward + reward - (episode.reward or 0.0))
    # What the environment called a success was said of its own reward.
    after = replace(episode, turns=(*episode.turns[:-1], turn), reward=reward, rewards=parts, success=None)
    return Rescored(before=episode, after=after)


def _failed(episode: Episode, reason: str) -> Rescored:
    after = replace(episode, outcome=Outcome.ENV_FAULT, reward=None, rewards={}, success=None, error=reason)
    return Rescored(before=episode, after=after, error=reason)
