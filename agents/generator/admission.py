"""Admission: which requests an engine gets now, so that its cache keeps the prefixes of the conversations in progress.

Without it, every turn of every conversation goes to the engine at once. Where the conversations need more cache than
there is, each turn evicts the prefix of a conversation whose tool is running, prompts are computed again in every turn,
and requests that outgrow the cache are preempted.

A conversation has a place while a turn of it runs, and after the turn as long as its prefix is kept. The tokens of all
places fit in the cache. Turns wait in three queues, each in the order of arrival: first those of conversations with a
place, then those of conversations that have lost theirs, then new conversations. Nothing waits while nothing runs.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

KEEP_SECONDS = 30.0
"""How long a prefix is worth keeping while others wait, where `Admission.prompt_seconds` is not known yet."""
RUNNING_SHARE = 0.5
"""Prefixes are kept as long as running turns have this share of the cache. With slow tools, the kept prefixes would
otherwise leave the engine a small batch."""
_WEIGHT = 1 / 64  # of one turn in the mean number of sampled tokens
_MOST_REMEMBERED = 65536  # conversations without a place, since some end unnoticed


@dataclass(slots=True, eq=False)
class Turn:
    """A request of a conversation; after its answer, the place of the conversation."""

    conversation: str
    first_prompt: tuple[int, int]
    """Tokens of its whole blocks, and its hash. Conversations that begin with the same prompt share these blocks."""
    prompt_tokens: int
    most_sampled: int
    begin: Callable[[], None] | None
    """Gives the request to the engine; None once it has it."""
    own: int = 0
    """Tokens that are counted for it, in whole blocks, without those of the first prompt."""
    shared: tuple[int, tuple[int, int]] | None = None
    """The first prompt that is counted for it, after the number of `Admission.forget_prefixes` before it."""
    left: float = 0.0
    """When its answer was complete."""


class Admission:
    """Decides when the engine gets a request. Use it on one thread; its properties may be read on others.

    Args:
        capacity: tokens that the engine's cache holds.
        most_running: requests that the engine runs at once. Others would wait in its queue, which is first come, first
            served.
        block: tokens of one block of the cache, which belongs to one prefix as a whole.
        clock: seconds.
    """

    def __init__(
        self, capacity: int, most_running: int, *, block: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.capacity = capacity
        self.used = 0
        """Tokens of all places."""
        self._most_running = most_running
        self._block = block
        self._clock = clock
        self._running: set[Turn] = set()
        self._kept: OrderedDict[str, Turn] = OrderedDict()  # by conversation; the engine evicts the oldest first, too
        self._lost: OrderedDict[str, Turn] = OrderedDict()  # conversations in progress that have no place
        self._queues: tuple[OrderedDict[Turn, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self._first_prompts: Counter[tuple[int, tuple[int, int]]] = Counter()  # number of places that share each
        self._edition = 0
        self._kept_tokens = 0  # of `_kept`, without first prompts
        self._mean_sampled: float | None = None
        self._mean_wait: float | None = None  # seconds from an answer to the next turn of its conversation
        self.prompt_seconds: float | None = None
        """Seconds in which the engine computes one token of a prompt, set by the engine; None where it is not known."""

    @property
    def running(self) -> int:
        """Requests that the engine has."""
        return len(self._running)

    @property
    def places(self) -> int:
        """Conversations that have a place, apart from those whose next turn waits."""
        return len(self._running) + len(self._kept)

    @property
    def waiting(self) -> int:
        """Turns that wait."""
        return sum(map(len, self._queues))

    @property
    def keep_seconds(self) -> float:
        """How long a prefix is worth keeping for the next turn of its conversation while others wait.

        A prefix of h tokens that is kept takes h / capacity of the room for running turns, and so of what the engine
        samples, as long as it is kept. To compute it again takes h * prompt_seconds of the engine's time. The two costs
        are equal after capacity * prompt_seconds.
        """
        return KEEP_SECONDS if self.prompt_seconds is None else self.capacity * self.prompt_seconds

    # ---- turns ----

    def arrive(
        self, conversation: str, prompt_ids: Sequence[int], most_sampled: int, begin: Callable[[], None]
    ) -> Turn:
        """A turn asks to run. `begin` is called when it may, which is now or within a later call.

        Args:
            conversation: its name; "" for a request without further turns.
            prompt_ids: of the turn, all earlier turns included.
            most_sampled: limit of sampled tokens.
            begin: gives the request to the engine; it raises nothing.
        """
        if (earlier := self._kept.pop(conversation, None)) is not None:
            self._kept_tokens -= earlier.own
            queue = 0
        else:
            earlier = self._lost.pop(conversation, None)
            queue = 2 if earlier is None else 1
        if earlier is None:
            first = len(prompt_ids) // self._block * self._block, hash(tuple(prompt_ids))
            turn = Turn(conversation, first, len(prompt_ids), most_sampled, begin)
        else:
            wait = self._clock() - earlier.left
            self._mean_wait = wait if self._mean_wait is None else self._mean_wait + _WEIGHT * (wait - self._mean_wait)
            turn = replace(earlier, prompt_tokens=len(prompt_ids), most_sampled=most_sampled, begin=begin)
        self._queues[queue][turn] = None
        self._begin_turns()
        return turn

    def answered(self, turn: Turn, sampled: int, *, is_cached: bool) -> None:
        """The engine has answered a turn that began.

        Args:
            turn: that began.
            sampled: number of tokens.
            is_cached: whether a prompt that goes on from here finds its prefix in the cache.
        """
        self._running.remove(turn)
        mean = turn.most_sampled if self._mean_sampled is None else self._mean_sampled
        self._mean_sampled = mean + _WEIGHT * (sampled - mean)
        self._uncount(turn)
        if turn.conversation:
            self.ended(turn.conversation)  # of two turns at once, the later one has the place
            turn.left = self._clock()
            if is_cached:
                self._count(turn, turn.prompt_tokens + sampled)
                self._kept[turn.conversation] = turn
                self._kept_tokens += turn.own
                while self.used > self.capacity and self._kept:
                    self._drop_oldest()
            else:
                self._remember(turn)
        self._begin_turns()

    def abandoned(self, turn: Turn) -> None:
        """A turn, whether it waits or runs, was cancelled or has failed; its conversation is over."""
        for queue in self._queues:
            queue.pop(turn, None)
        self._running.discard(turn)
        self._uncount(turn)
        self._begin_turns()

    def ended(self, conversation: str) -> None:
        """A conversation has no further turn."""
        self._lost.pop(conversation, None)
        if (turn := self._kept.pop(conversation, None)) is not None:
            self._kept_tokens -= turn.own
            self._uncount(turn)
            self._begin_turns()

    def forget_prefixes(self) -> None:
        """The engine has new weights, or an empty cache: no prefix that was computed before is found again."""
        self._edition += 1
        while self._kept:
            self._drop_oldest()
        for turn in self._queues[0]:
            self._uncount(turn)
        self._begin_turns()

    # ---- places ----

    def _begin_turns(self) -> None:
        """Let turns begin, as many as have room."""
        while (queue := next(filter(None, self._queues), None)) is not None:
            turn = next(iter(queue))
            if not self._make_room(turn, is_kept=queue is self._queues[0]):
                return
            del queue[turn]
            self._running.add(turn)
            begin, turn.begin = turn.begin, None  # the place would keep the request's tokens
            assert begin is not None
            begin()

    def _make_room(self, turn: Turn, *, is_kept: bool) -> bool:
        """Count the tokens that a turn needs, dropping kept prefixes where that pays; returns whether it may begin."""
        if len(self._running) >= self._most_running:
            return False
        before = turn.own + turn.first_prompt[0] if turn.shared else 0  # counted again where it has to wait
        self._uncount(turn)
        expected = turn.most_sampled if self._mean_sampled is None else round(self._mean_sampled)
        self._count(turn, turn.prompt_tokens + min(turn.most_sampled, expected))
        keep, now = self.keep_seconds, self._clock()
        while self.used > self.capacity and self._kept and now - next(iter(self._kept.values())).left > keep:
            self._drop_oldest()
        if self.used <= self.capacity:
            return True
        share = 1.0 if is_kept or (self._mean_wait or 0.0) > keep else RUNNING_SHARE
        if self._running and self.used - self._kept_tokens > share * self.capacity:
            self._uncount(turn)
            if before:
                self._count(turn, before)
            return False
        while self.used > self.capacity and self._kept:
            self._drop_oldest()
        for other in reversed(self._queues[0]):  # nothing runs, and what waits holds all of the cache
            if self.used > self.capacity and other is not turn:
                self._uncount(other)
        return True

    def _drop_oldest(self) -> None:
        _, turn = self._kept.popitem(last=False)
        self._kept_tokens -= turn.own
        self._uncount(turn)
        self._remember(turn)

    def _remember(self, turn: Turn) -> None:
        self._lost[turn.conversation] = turn
        if len(self._lost) > _MOST_REMEMBERED:
            self._lost.popitem(last=False)

    def _count(self, turn: Turn, tokens: int) -> None:
        """Count `tokens` for a turn, those of its first prompt once for all turns that share it."""
        turn.shared = self._edition, turn.first_prompt
        turn.own = -(max(0, tokens - turn.first_prompt[0]) // -self._block) * self._block
        self._first_prompts[turn.shared] += 1
        self.used += turn.own + turn.first_prompt[0] * (self._first_prompts[turn.shared] == 1)

    def _uncount(self, turn: Turn) -> None:
        if turn.shared is None:
            return
        self._first_prompts[turn.shared] -= 1
        self.used -= turn.own
        if not self._first_prompts[turn.shared]:
            del self._first_prompts[turn.shared]
            self.used -= turn.first_prompt[0]
        turn.own, turn.shared = 0, None
