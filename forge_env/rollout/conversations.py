"""The conversations of one episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from forge_env.core.episode import Lineage, Turn
from forge_env.core.protocols import Conversation, NextTurn, RowBegan
from forge_env.core.types import EpisodeLimits, Message

_SEED_STRIDE = 15_485_863
"""Difference between the seeds of an episode's conversations. A large prime: adjacent seeds belong to the siblings."""

_FIRST = RowBegan("", "")
_BY_ENVIRONMENT = RowBegan("environment", "the environment began a conversation")
_BY_TEMPLATE = {
    "kind": "template",
    "why": "the chat template writes earlier messages otherwise, without their thoughts for example",
}
_BY_SUMMARY = RowBegan(
    "summary", "a summary replaced the turns before, since the context was nearly full", known_by="summary"
)
_ENDED = -(2**40)
"""The turns before a summary have a number below this one, which no environment gives to a conversation."""
_RETRIED = "a retry: the same request was asked again, and the work went on from the later answer"


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
        """All turns, grouped by conversation so that rows stay contiguous. Auxiliary ones come first, and the turns of
        the conversation that was asked last come last."""
        if len(self._by_number) == 1:
            return tuple(self.current.turns)
        return tuple(turn for _, conversation in self._in_order() for turn in conversation.turns)

    @property
    def tail(self) -> tuple[Message, ...]:
        """The messages after the last turn."""
        return self._in_order()[-1][1].observation

    @property
    def are_several(self) -> bool:
        return len(self._by_number) > 1

    def _in_order(self) -> list[tuple[int, Conversation]]:
        return sorted(self._by_number.items(), key=lambda item: not item[1].auxiliary)

    def mark_retries(self) -> None:
        """Make a turn auxiliary if its request was asked again, and only that answer was built on."""
        for number, began in self._began.items():
            if began is None or began.kind != "repeated" or began.parent not in self._by_number:
                continue
            turns, earlier = self._by_number[number].turns, self._by_number[began.parent].turns
            if len(turns) > 1 and len(earlier) == began.turns + 1:
                earlier[-1].auxiliary = _RETRIED

    def lineage(self) -> tuple[Lineage, ...]:
        """Return where each row comes from. A conversation without tokens counts as a row."""
        rows: list[Lineage] = []
        starts: dict[int, int] = {}
        count = 0
        for number, conversation in self._in_order():
            starts[number] = count
            count += len(conversation.turns)
        work = [number for number in self._began if self._by_number[number].turns]
        first = next((number for number in work if not self._by_number[number].auxiliary), -1)
        for number, conversation in self._in_order():
            for i, turn in enumerate(conversation.turns):
                at = starts[number] + i
                if not i:
                    began = self._began[number] or (_FIRST if number == first else _BY_ENVIRONMENT)
                    rows.append(
                        Lineage(
                            turn=at,
                            parent=self._parent(began, starts),
                            known_by=began.known_by,
                            agent=began.agent,
                            kind="" if number == first else began.kind,
                            why="" if number == first else began.why,
                        )
                    )
                elif turn.starts_row:
                    rows.append(replace(rows[-1], turn=at, parent=at - 1, known_by="template", **_BY_TEMPLATE))
        return tuple(rows)

    def _parent(self, began: RowBegan, starts: Mapping[int, int]) -> int | None:
        parent = self._by_number.get(-1 if began.parent is None else began.parent)
        if parent is None or not parent.turns:
            return None
        return starts[began.parent or 0] + max(min(began.turns, len(parent.turns)) - 1, 0)

    def observe(self, observation: tuple[Message, ...], next_turn: NextTurn | None) -> None:
        """Add new messages to the conversation that `next_turn` names, and make it the current one."""
        if next_turn is not None:
            number = next_turn.context
            if number in self._by_number:
                self.current = self._by_number.pop(number)
            else:
                self.current, self._began[number] = self._new(number), None
            self.current.auxiliary = next_turn.auxiliary
            if next_turn.began is not None:
                self._began[number] = next_turn.began
            self._by_number[number] = self.current
        self.current.next_turn = next_turn
        self.current.observation = observation

    def compact(self, summary: str, observation: Sequence[Message]) -> None:
        """Begin the current conversation again, after a turn that is a summary: with the messages that it began with,
        the summary, and the last exchange before it, which `Conversation.shorter` leaves out.

        Args:
            observation: what the environment has said since the turn before.
        """
        old = self.current
        [number] = [number for number, conversation in self._by_number.items() if conversation is old]
        before = _ENDED - len(self._by_number)
        self._by_number[before] = self._by_number.pop(number)
        self._began = {before if key == number else key: began for key, began in self._began.items()}
        self._began[number] = _BY_SUMMARY._replace(parent=before, turns=len(old.turns))
        new = self.current = self._by_number[number] = self._new(number)
        new.request_id, new.next_turn = f"{old.request_id}/summary", old.next_turn
        new.seed = None if old.seed is None else old.seed - _SEED_STRIDE
        new.head = old.head or old.turns[0].observation
        new.shorter = with_text(new.head, summary)
        new.observation = (*new.shorter, old.turns[-2].message, *observation)

    def _new(self, number: int) -> Conversation:
        return Conversation(
            request_id=f"{self._request_id}/context{number}" if number else self._request_id,
            seed=self._seed + number * _SEED_STRIDE,
            max_turn_tokens=self._limits.max_turn_tokens,
            max_tokens=self._limits.max_tokens,
            max_thinking_tokens=self._limits.max_thinking_tokens,
            compact_at=self._limits.compact_at,
        )


def with_text(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The messages, and a user's text behind a last one of the user: some templates demand that roles alternate."""
    *before, last = messages
    if last["role"] != "user" or not isinstance(last["content"], str):
        return (*messages, {"role": "user", "content": text})
    return (*before, {**last, "content": f"{last['content']}\n\n{text}"})
