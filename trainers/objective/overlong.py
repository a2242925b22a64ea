"""What DAPO does about episodes that grow too long (arXiv 2503.14476, section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongPunishment:
    """The soft overlong punishment, equation 13: nothing, then a straight line down, then the whole of it.

    verl's line goes on beyond `length`; the paper's, and this one, ends there.

    >>> punishment = OverlongPunishment(length=100, buffer=0.2)
    >>> [punishment(tokens) for tokens in (80, 90, 100, 200)]
    [0.0, -0.5, -1.0, -1.0]

    Raises:
        UserError: for a setting out of range.
    """

    length: int
    """Sampled tokens of an episode from which on the whole penalty is due."""
    buffer: float = 0.2
    """The share of `length`, at its end, over which the penalty rises from 0."""
    penalty: float = 1.0
    context: int = 0
    """Prompt and sampled tokens of an episode at most. Where it is above 0, the length of an episode is at most what
    its first prompt leaves of it: no episode can sample more."""

    def __post_init__(self) -> None:
        if self.length < 1 or not 0 <= self.buffer <= 1 or not self.penalty >= 0:
            raise UserError(
                f"overlong_length is {self.length}, overlong_buffer {self.buffer} and overlong_penalty {self.penalty}: "
                "the length is at least 1, the buffer a share of it from 0 to 1, and the penalty not negative"
            )

    def __call__(self, tokens: int, *, length: int = 0) -> float:
        """What an episode of so many sampled tokens gets, from 0 down to -penalty; `length` 0 is the setting."""
        length = length or self.length
        width = self.buffer * length
        beyond = tokens - (length - width)
        if beyond <= 0:
            return 0.0
        return -self.penalty * (beyond / width if tokens < length else 1.0)

    def length_of(self, episode: Episode) -> int:
        """The sampled tokens from which on the whole penalty is due for this episode, at least 1."""
        if not self.context or not episode.turns:
            return self.length
        return max(1, min(self.length, self.context - len(episode.turns[0].prompt_ids)))

    def reward(self, episode: Episode) -> float:
        """A valid episode's reward with the punishment for the tokens that it sampled in all its turns."""
        assert episode.reward is not None, "a valid episode has a reward"
        return episode.reward + self(episode.num_sampled, length=self.length_of(episode))


def is_truncated(episode: Episode) -> bool:
    """Whether a limit ended the episode: of tokens, turns or time."""
    return episode.outcome is Outcome.TRUNCATED
