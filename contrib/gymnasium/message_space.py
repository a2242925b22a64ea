"""MessageSpace: the Gymnasium space of chat text, for observations and actions."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

SAMPLE_LENGTH = 64


class MessageSpace(Text):
    """Any text of at most `max_length` characters, the empty one too.

    Any characters are allowed, but samples are up to 64 printable ASCII characters, because random Unicode is useless.
    `make_vec(..., vectorization_mode="async")` passes texts through shared memory.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is None and probability is None:
            mask = (int(self.np_random.integers(min(self.max_length, SAMPLE_LENGTH) + 1)), None)
        return super().sample(mask, probability)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"MessageSpace({self.max_length})"

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, MessageSpace) and self.max_length == other.max_length


# Layout of a text in shared memory: its length, then its code points.


@create_shared_memory.register(MessageSpace)
def _create(space: MessageSpace, n: int = 1, ctx: Any = None) -> Any:
    return ctx.Array("i", n * (space.max_length + 1))


@write_to_shared_memory.register(MessageSpace)
def _write(space: MessageSpace, index: int, value: str, shared_memory: Any) -> None:
    cells = np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(-1, space.max_length + 1)
    cells[index, 1 : len(value) + 1] = np.frombuffer(value.encode("utf-32-le", "surrogatepass"), dtype=np.int32)
    cells[index, 0] = len(value)


@read_from_shared_memory.register(MessageSpace)
def _read(space: MessageSpace, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(n, space.max_length + 1))


class SharedTexts(Sequence[str]):
    """A view of the texts in shared memory; a deep copy is a tuple of the present texts.

    An AsyncVectorEnv reads its shared memory once, when it is created, and returns a deep copy after each step. This
    works because arrays are views, so the texts must be a view, too.
    """

    def __init__(self, cells: np.ndarray[Any, Any]) -> None:
        self._cells = cells

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self._cells[index]
        return row[1 : row[0] + 1].tobytes().decode("utf-32-le", "surrogatepass")

    def __deepcopy__(self, memo: object) -> tuple[str, ...]:
        return tuple(self)
