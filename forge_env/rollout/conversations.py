"""The conversations of one episode."""

from __future__ import annotations

from typing import Any

from forge_env.core.episode import Turn
from forge_env.core.protocols import Conversation, NextTurn, RowBegan
from forge_env.core.types import EpisodeLimits, Message

_SEED_STRIDE = 15_485_863
"""Difference between the seeds of an episode's conversations. A large prime: adjacent seeds belong to the siblings."""

_BY_ENVIRONMENT = RowBegan("environment", "the environment began a conversation")
_BY_TEMPLATE = RowBegan(
    "template", "the chat template writes earlier messages otherwise, without their thoughts for example"
)


class Conversations:
    """The conversations of one episode: almost always one; an environment may start more, see `NextTurn`.

    Attributes:
        current: the conversation of the next turn.
    """

    __slots__ = ("_began", "_by_number", "_limits", "_request_id", "_seed", "current")

    def __init__(self, request_id: str, seed: int, limits: EpisodeLimits) -> None:
        self._request_id = request_id
        self._seed = seed
        self._limits = limits
        self.current = self._new(0)
        self._by_number = {0: self.current}
        self._began: dict[int, RowBegan | None] = {0: None}  # in the order of their beginnings

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns, grouped by conversation so that rows stay contiguous; those of `current` come last."""
        if len(self._by_number) == 1:
            return tuple(self.current.turns)
        return tuple(turn for conversation in self._by_number.values() for turn in conversation.turns)

    @property
    def are_several(self) -> bool:
        return len(self._by_number) > 1

    def rows_began(self) -> list[dict[str, Any]]:
        """Return why each row but the first began: the number of its first turn in `turns`, a kind, and a sentence.

        A conversation without tokens counts as a row.
        """
        found: list[dict[str, Any]] = []
        count = 0
        first = next((number for number in self._began if self._by_number[number].turns), 0)
        for number, conversation in self._by_number.items():
            for i, turn in enumerate(conversation.turns):
                began: RowBegan | None = None
                if not i and number != first:
                    began = self._began[number] or _BY_ENVIRONMENT
                elif i and turn.starts_row:
                    began = _BY_TEMPLATE
                if began is not None:
                    found.append({"turn": count, "kind": began.kind, "why": began.why})
                count += 1
        return found

    def observe(self, observation: tuple[Message, ...], next_turn: NextTurn | None) -> None:
        """Add new messages to the conversation that `next_turn` names, and make it the current one."""
        if next_turn is not None:
            number = next_turn.context
            if number in self._by_number:
                self.current = self._by_number.pop(number)
            else:
                self.current, self._began[number] = self._new(number), next_turn.began
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
