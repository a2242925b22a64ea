"""The conversations of one episode."""

from __future__ import annotations

from forge_env.core.episode import Turn
from forge_env.core.protocols import Conversation, NextTurn
from forge_env.core.types import EpisodeLimits, Message

_SEED_STRIDE = 15_485_863
"""Difference between the seeds of an episode's conversations. A large prime: adjacent seeds belong to the siblings."""


class Conversations:
    """The conversations of one episode: almost always one; an environment may start more, see `NextTurn`.

    Attributes:
        current: the conversation of the next turn.
    """

    __slots__ = ("_by_number", "_limits", "_request_id", "_seed", "current")

    def __init__(self, request_id: str, seed: int, limits: EpisodeLimits) -> None:
        self._request_id = request_id
        self._seed = seed
        self._limits = limits
        self.current = self._new(0)
        self._by_number = {0: self.current}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns, grouped by conversation so that rows stay contiguous; those of `current` come last."""
        return tuple(turn for conversation in self._by_number.values() for turn in conversation.turns)

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Of the conversations that have turns."""
        return tuple(conversation.request_id for conversation in self._by_number.values() if conversation.turns)

    def observe(self, observation: tuple[Message, ...], next_turn: NextTurn | None) -> None:
        """Add new messages to the conversation that `next_turn` names, and make it the current one."""
        if next_turn is not None:
            number = next_turn.context
            self.current = self._by_number.pop(number) if number in self._by_number else self._new(number)
            self._by_number[number] = self.current
        self.current.asked = next_turn
        self.current.observation = observation

    def _new(self, number: int) -> Conversation:
        return Conversation(
            request_id=f"{self._request_id}/context{number}" if number else self._request_id,
            seed=self._seed + number * _SEED_STRIDE,
            max_turn_tokens=self._limits.max_turn_tokens,
            max_tokens=self._limits.max_tokens,
            max_thinking_tokens=self._limits.max_thinking_tokens,
        )
