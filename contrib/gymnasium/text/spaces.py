"""Text of Gymnasium spaces: describes and parses actions, and writes observations."""

from __future__ import annotations

import contextlib
import json
import math
import re
from bisect import bisect, bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from forge_env.core.errors import UserError

ParseAction = Callable[[str, Space[Any]], Any]
"""Parses an action from the model's text. Raises ValueError, with the reason, for text without one."""

MAX_TEXT = 20_000
"""Characters at the end of an answer that are searched for an action."""

# A comma within a number is of a thousand or of a fraction: nobody knows which.
_INTEGER = re.compile(r"(?<![\w.])(?<!\d,)-?\d{1,18}(?:\.0{1,18})?(?!\w|[.,]\d)")  # 1.0 is 1
_NUMBER = re.compile(r"(?<![\w.])(?<!\d,)[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?!\w|[.,]\d)")
_MARK = re.compile(r"\b(?:action|answer|choice|decision|move)\b[*_`\"' ]{0,4}[:=][*_`\"'\s]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|(?<!\d)[.!?][*_`\"')]{0,4}\s+(?=\W{0,4}[A-Z])")  # "1. Left 2. Right" is one sentence
_COMPARED = 16
"""Numbers, names or lists of a sentence that are compared; each takes longer than to find it."""
_MINUS = re.compile(r"[\N{MINUS SIGN}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}\u2010-\u2013](?=\.?\d)")
"""A sign before a number, with the hyphens and dashes that models write for it."""
_ARRAYS = (spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)


def check_action_space(space: Space[Any], env: str) -> None:
    if not isinstance(space, (spaces.Discrete, spaces.Text, *_ARRAYS)):
        raise UserError(
            f"the actions of {env} are of the space {type(space).__name__}, and only Discrete, MultiDiscrete, "
            "MultiBinary, Box and Text are read: pass parse_action to from_gymnasium"
        )


def describe_actions(space: Space[Any], names: Sequence[str] = ()) -> str:
    """Return a sentence about the allowed actions.

    >>> describe_actions(spaces.Discrete(2), ["stick", "hit"])
    'Your action is one integer: 0 (stick), 1 (hit).'
    """
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n - 1)
        if names:
            return f"Your action is one integer: {', '.join(f'{first + i} ({name})' for i, name in enumerate(names))}."
        return f"Your action is one integer from {first} to {last}."
    if isinstance(space, spaces.MultiDiscrete):
        return f"Your action is a JSON list of integers from {' to '.join(map(write_observation, _bounds(space)))}."
    if isinstance(space, spaces.MultiBinary):
        return f"Your action is a JSON list of zeros and ones, of shape {list(space.shape)}."
    if isinstance(space, spaces.Box):
        return f"Your action is a JSON list of numbers of shape {list(space.shape)}, {_from_to(space.low, space.high)}."
    if isinstance(space, spaces.Text):
        return (
            f"Your action is your whole answer, {space.min_length} to {space.max_length} characters out of "
            f"{_characters(space)}."
        )
    return f"Your action is of the space {space}."


def parse_action(text: str, space: Space[Any], names: Sequence[str] = ()) -> Any:
    """Parse an action: an integer or name for Discrete, a list for arrays, the whole text for Text.

    The first one after the last "Action:" counts; without such a mark, the last one of the answer. A sentence that
    names two different actions there, as in "0 or 1", names none.
    """
    if isinstance(space, spaces.Text):
        return _member(text.strip(), space)
    end = _MINUS.sub("-", text[-MAX_TEXT:])
    if isinstance(space, spaces.Discrete):
        pairs = _choices(end, int(space.start), names)
    else:
        pairs = _lists(end, is_scalar=math.prod(space.shape or ()) == 1)
    value, *others = _last_statement(end, pairs)
    action = _action(value, space)
    for other_value in others[:_COMPARED]:
        try:
            other = _action(other_value, space)
        except ValueError:
            continue
        if not np.array_equal(other, action):
            two = " and ".join(write_observation(one)[:100] for one in (action, other))
            raise ValueError(f'a sentence of your answer names two actions, {two}; end with one line "Action: ..."')
    return action


def _last_statement(text: str, pairs: Sequence[tuple[int, Any]]) -> list[Any]:
    """Return the value that counts, and after it the others of its sentence."""
    places, starts = [place for place, _ in pairs], [match.end() for match in _SENTENCE_END.finditer(text)]
    sentences = [bisect(starts, place) for place in places]
    for mark in reversed([match.end() for match in _MARK.finditer(text)]):
        first, sentence = bisect_left(places, mark), bisect(starts, mark)
        if first < len(pairs) and sentences[first] == sentence:
            return [value for (_, value), of in zip(pairs[first:], sentences[first:], strict=True) if of == sentence]
    return [value for (_, value), of in zip(pairs[::-1], sentences[::-1], strict=True) if of == sentences[-1]]


def _action(value: Any, space: Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return np.asarray(_member(value, space)).astype(space.dtype)[()]
    return _member(_array(value, space), space)


def write_observation(observation: Any, space: Space[Any] | None = None, names: Sequence[str] = ()) -> str:
    """Write an observation as text: text as it is, arrays as compact lists, mappings as JSON."""
    if isinstance(observation, str):
        return observation
    if names and isinstance(space, spaces.Discrete) and int(observation - space.start) < len(names):
        return names[int(observation - space.start)]
    return json.dumps(_plain(observation), ensure_ascii=False)


def _member(action: Any, space: Space[Any]) -> Any:
    if not space.contains(action):
        text = write_observation(action)
        raise ValueError(f"{text[:100]} is not allowed")
    return action


def _choices(text: str, first: int, names: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of integers and names, and the integers that they stand for."""
    spans = [(*match.span(), int(match.group().partition(".")[0])) for match in _INTEGER.finditer(text)]
    for value, name in enumerate(names, start=first):
        pattern = rf"(?<!\w){re.escape(name)}(?!\w)"
        spans += [(*match.span(), value) for match in re.finditer(pattern, text, re.IGNORECASE)]
    choices: list[tuple[int, int]] = []
    last_end = 0
    for start, end, value in sorted(spans, key=lambda span: (span[0], -span[1])):
        if end > last_end:  # else it is a part of a name
            choices.append((start, value))
            last_end = end
    if not choices:
        raise ValueError("there is no action in your answer")
    return choices


def _lists(text: str, *, is_scalar: bool) -> list[tuple[int, Any]]:
    """Return the places and values of JSON lists; if one number is enough, a text without lists gives its numbers."""
    lists, last_end, end = list[tuple[int, Any]](), 0, text.rfind("]") + 1
    if is_scalar and not end and (numbers := [(match.start(), float(match[0])) for match in _NUMBER.finditer(text)]):
        return numbers
    for start, stop in _brackets(text):
        with contextlib.suppress(ValueError, RecursionError):
            lists.append((start, json.loads(text[start:stop])))
            last_end = stop
    if not lists or last_end < end:
        raise ValueError("there is no JSON list at the end of your answer")
    return lists


def _brackets(text: str) -> list[tuple[int, int]]:
    """Return the places of texts in brackets, those inside of others left out, in time proportional to the text."""
    starts, pairs = list[int](), list[tuple[int, int]]()
    for match in re.finditer(r"[\[\]]", text):
        if match[0] == "[":
            starts.append(match.start())
        elif starts:
            start = starts.pop()
            while pairs and pairs[-1][0] > start:
                pairs.pop()
            pairs.append((start, match.end()))
    return pairs


def _array(value: Any, space: Space[Any]) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value, dtype=np.float64)
        if array.size != math.prod(space.shape or ()):
            raise ValueError(f"the list has the shape {list(array.shape)} and not {list(space.shape or ())}")
        if not np.isfinite(array).all() or (np.issubdtype(space.dtype, np.integer) and (array % 1).any()):
            raise ValueError("the list holds a value of the wrong kind")
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(space.dtype).reshape(space.shape)
    except (TypeError, OverflowError):
        raise ValueError("the list holds something that is no number") from None
    # Floats are compared as they are played; an integer that does not fit would be wrapped around by the cast.
    values = cast if np.issubdtype(space.dtype, np.floating) else array.reshape(space.shape)
    low, high = _bounds(space)
    if not ((values >= low) & (values <= high)).all():
        raise ValueError(f"a value is outside the bounds, {_from_to(low, high)}")
    return cast


def _plain(value: Any) -> Any:
    """Return a value as JSON data that reads back to the same numbers: of a small float the shortest ones that do."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind == "f":
            return (value.astype(str) if value.dtype.itemsize < 8 else value).astype(np.float64).tolist()
        return value.tolist() if value.dtype.kind in "biu" else _plain(value.tolist())
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _bounds(space: Space[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return np.zeros(1, int), np.ones(1, int)


def _from_to(low: np.ndarray[Any, Any], high: np.ndarray[Any, Any]) -> str:
    return f"from {_bound(low)} to {_bound(high)}"


def _characters(space: spaces.Text) -> str:
    """The allowed characters, in the order of their codes, with runs such as a-z; what cannot be seen has a name."""
    codes_of_space = sorted(map(ord, space.character_set))
    codes = [code for code in codes_of_space if chr(code).isprintable() and code != 32]
    unseen = [code for code in codes_of_space if code not in codes]
    runs = [[code for _, code in run] for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0])]
    text = "".join(f"{chr(run[0])}-{chr(run[-1])}" if len(run) > 3 else "".join(map(chr, run)) for run in runs)
    others = ["the space" if code == 32 else repr(chr(code)) for code in unseen]
    return " and ".join([*([text] if text else []), *others])


def _bound(values: np.ndarray[Any, Any]) -> str:
    is_one = values.size and (values == values.flat[0]).all()
    return write_observation(values.flat[0] if is_one else values)
