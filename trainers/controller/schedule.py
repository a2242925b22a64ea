"""When a group may begin, and which groups a step trains on: the rule that bounds staleness.

A group that is admitted while the engines hold version v trains at the latest in the step that starts from version
v + S; that step is its deadline. Two rules keep this promise whatever the latencies are, and drop nothing for its age:

- A group is admitted only if the steps up to every deadline still have room for all open groups due by then.
- A step takes ready groups, earliest deadline first, and waits for more until what it leaves behind has room too.

So a quick group overtakes a slow one as long as the slow one has time left. At the deadline of a straggler the trainer
waits. At most (S + 1) * batch_size groups are open, open meaning admitted and neither taken nor dropped.

Versions count optimizer steps: version v are the weights after v of them, and step t starts from version t.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from forge_env.core.errors import InvariantError, UserError

K = TypeVar("K", bound=Hashable)


class Schedule(Generic[K]):
    """The open groups of a run, by any key, and their deadlines. All methods take time in S, and none waits.

    Args:
        staleness: S, in optimizer steps; 0 is synchronous.
    """

    def __init__(self, *, batch_size: int, staleness: int, step: int = 0) -> None:
        if batch_size < 1 or staleness < 0:
            raise UserError(f"batch_size is {batch_size} and staleness {staleness}: at least 1, and not negative")
        self.batch_size = batch_size
        self.staleness = staleness
        self.step = step
        self._deadlines: dict[K, int] = {}
        self._ready: dict[K, int] = {}  # in the order of their finish
        # How many open and how many ready groups are due in step, step + 1, ..., step + S.
        self._open_due = [0] * (staleness + 1)
        self._ready_due = [0] * (staleness + 1)

    @property
    def open(self) -> int:
        """Groups that were admitted, and neither taken nor dropped."""
        return len(self._deadlines)

    @property
    def ready(self) -> int:
        """Groups that wait to be taken."""
        return len(self._ready)

    def admits(self, version: int) -> bool:
        """Whether one more group may begin while the engines hold `version`."""
        first = version + self.staleness - self.step  # its deadline, counted from the next step
        if first < 0:
            return False
        due, room = sum(self._open_due[:first]), first * self.batch_size
        for count in self._open_due[first:]:
            due, room = due + count, room + self.batch_size
            if due + 1 > room:
                return False
        return True

    def admit(self, key: K, version: int) -> None:
        """Open a group; `admits` must have said yes."""
        if key in self._deadlines or not self.admits(version):
            raise InvariantError(f"group {key!r} of version {version} was not to be admitted before step {self.step}")
        self._open(key, version + self.staleness)

    def restore(self, key: K, deadline: int) -> None:
        """Open a group that was ready when the run stopped, under the deadline that it had."""
        if key in self._deadlines or not self.step <= deadline <= self.step + self.staleness:
            raise InvariantError(f"group {key!r} of deadline {deadline} cannot be restored before step {self.step}")
        self._open(key, deadline)
        self.finish(key)

    def deadline(self, key: K) -> int:
        """The step that trains on an open group at the latest."""
        return self._deadlines[key]

    def finish(self, key: K) -> None:
        """The group is ready to be taken."""
        deadline = self._deadlines[key]
        if key in self._ready:
            raise InvariantError(f"group {key!r} finished twice")
        self._ready[key] = deadline
        self._ready_due[deadline - self.step] += 1

    def drop(self, key: K) -> None:
        """The group will not be trained on, or it is taken; its place is free at once."""
        place = self._deadlines.pop(key) - self.step
        self._open_due[place] -= 1
        if self._ready.pop(key, None) is not None:
            self._ready_due[place] -= 1

    def take(self) -> list[K] | None:
        """The groups of the next step, or None while it has to wait; what is taken is no longer open.

        It has to wait while fewer than `batch_size` groups are ready, or while leaving one that is not ready would
        leave the steps up to its deadline without room for it.
        """
        if len(self._ready) < self.batch_size or not self._leaves_room():
            return None
        keys = sorted(self._ready, key=self._ready.__getitem__)[: self.batch_size]
        for key in keys:
            self.drop(key)
        if self._open_due[0]:
            raise InvariantError(f"step {self.step} left groups behind that were due")
        self.step += 1
        for due in (self._open_due, self._ready_due):
            due.append(0)
            del due[0]
        return keys

    def overdue(self) -> list[K]:
        """The groups that the next step has to wait for: not ready, and due now."""
        return [key for key, deadline in self._deadlines.items() if deadline == self.step and key not in self._ready]

    def _open(self, key: K, deadline: int) -> None:
        self._deadlines[key] = deadline
        self._open_due[deadline - self.step] += 1

    def _leaves_room(self) -> bool:
        is_open = is_ready = room = 0
        for open_due, ready_due in zip(self._open_due, self._ready_due, strict=True):
            is_open, is_ready = is_open + open_due, is_ready + ready_due
            if is_open - min(is_ready, self.batch_size) > room:
                return False
            room += self.batch_size
        return True
