"""Arrays of tokens: one number per token, from the engine to the loss.

Every array is a view of `bytes` of its own. So nobody can write to it, episodes and samples may share it, it keeps no
longer array alive, and a message takes the bytes as they are. A list of 32,000 numbers would be pickled one object at a
time, and no other thread of the process runs meanwhile.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeAlias

import numpy as np

from forge_env.core.errors import UserError

Ids: TypeAlias = Sequence[int] | np.ndarray
IDS = np.dtype(np.int32)
"""Token ids, and weight versions."""
FLOATS = np.dtype(np.float64)
"""Logprobs as the engine reports them: Python's floats, so that JSON and back is the same number."""
SINGLES = np.dtype(np.float32)
"""Logprobs as a trainer computes them."""
MASK = np.dtype(np.bool_)
MOST_NUMBERS = 2048
"""Numbers that are written as JSON at once: about 2 ms of floats, after which other threads may run."""

_ARRAY: Any = np.ndarray
_EXAMPLES = {"i": "integers from -2^31 to 2^31 - 1, such as (9, 2)", "?": "booleans, such as (False, True)"}


def array_of(values: Any, kind: np.dtype, name: str = "tokens") -> np.ndarray:
    """Return numbers as an array that cannot be written to; one that is such an array already is returned itself."""
    if type(values) is _ARRAY and values.ndim == 1:
        if values.dtype == kind:
            is_made = type(values.base) is bytes and len(values.base) == values.nbytes
            return values if is_made else np.frombuffer(values.tobytes(), kind)
        if kind.kind == "f" and values.dtype.kind in "fiu":
            return np.frombuffer(values.astype(kind).tobytes(), kind)
        values = values.tolist()  # its numbers are checked as those of a list
    packed = FLOATS if kind.kind == "f" else kind
    try:
        array = np.frombuffer(struct.pack(f"{len(values)}{packed.char}", *values), packed)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        text = " ".join(repr(values).split())
        examples = _EXAMPLES.get(kind.char, "numbers, such as (-0.5, -0.1)")
        raise UserError(f"{name}={text:.80} is no sequence of {examples}, and no array of them: {error}") from None
    return array if packed is kind else array_of(array, kind)


def join_arrays(kind: np.dtype, *parts: Any) -> np.ndarray:
    """Join arrays, or bytes that hold such numbers."""
    return np.frombuffer(b"".join(parts), kind)


def bytes_of(array: np.ndarray) -> bytes:
    """The bytes of an array of `array_of`, without a copy."""
    data: Any = array.base
    assert type(data) is bytes
    return data


def as_list(values: Ids) -> list[int]:
    """Return ids as Python's own integers, which tokenizers and engines want."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


NO_IDS, NO_FLOATS = array_of((), IDS), array_of((), FLOATS)


class TokenRecord:
    """A dataclass with arrays of tokens. It takes any sequence for them, compares by number and is pickled as bytes.

    Two of them are equal if all their fields are; a NaN equals a NaN. They have no hash.
    """

    __slots__ = ()
    ARRAYS: ClassVar[Mapping[str, np.dtype]] = {}
    """The fields that are arrays, and the kind of their numbers."""

    def __post_init__(self) -> None:
        for name, kind in self.ARRAYS.items():
            values = getattr(self, name)
            # As `array_of` does: the call would take as long as the check, for several arrays of every turn.
            if type(values) is _ARRAY and values.dtype is kind:
                base = values.base
                if type(base) is bytes and len(base) == values.nbytes:
                    continue
            object.__setattr__(self, name, array_of(values, kind, name))

    def __eq__(self, other: object) -> bool:
        cls: Any = type(self)
        names = _names(cls)
        if type(other) is not cls:
            return NotImplemented
        return all(_is_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        cls: Any = type(self)
        values = [getattr(self, name) for name in _names(cls)]
        return _restore, (cls, [bytes_of(value) if type(value) is np.ndarray else value for value in values])


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other)


def _restore(cls: Any, values: Sequence[Any]) -> TokenRecord:
    record: TokenRecord = object.__new__(cls)
    arrays = cls.ARRAYS
    for name, value in zip(_names(cls), values, strict=True):
        is_array = type(value) is bytes and name in arrays
        object.__setattr__(record, name, np.frombuffer(value, arrays[name]) if is_array else value)
    return record


def json_list(values: np.ndarray) -> str:
    """Write numbers as `json.dumps` does, but in parts: between two of them other threads may run."""
    parts = (values[start : start + MOST_NUMBERS].tolist() for start in range(0, len(values), MOST_NUMBERS))
    return f"[{', '.join(json.dumps(part)[1:-1] for part in parts)}]"
