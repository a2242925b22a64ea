"""The structure of an answer: matrices, vectors, tuples, intervals, sets, lists, unions, ratios, numerals of a base.

Structures are compared part by part, so that math-verify reads single values only. It adds what stands side by side,
takes any D = (0, a) for another, reads 12:00 as a quotient, and forgets the index of 123_5 (Math-Verify#2, #14).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from envs.math.latex import inside_brackets, split
from envs.math.numerals import parse_number

Same = Callable[[str, str], bool]
"""Compares an answer's part with a target's."""

_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[lcr|\s]*\})?((?:(?!\\begin).)*)\\end\{\1\}\s*[)\]]?"
)
_TRANSPOSED = re.compile(r"(.*[)\]}])\s*\^\s*(?:\{\s*)?(?:T|\\top|\\mathsf\{T\}|\\mathrm\{T\}|\\text\{T\})\s*\}?")
_SEPARATORS = frozenset({",", ";", "or", "and"})
_BUILDER = re.compile(r"([a-z])\s*(?:\\in[^|:]*)?[|:](.+)")
_TIME = re.compile(r"(\d{1,2}:[0-5]\d(?::[0-5]\d)?)\s*(?:\\text\{)?\s*(?:([ap])\.?\s*m)?\.?\s*\}?", re.IGNORECASE)
_TO = re.compile(r"(?<=[\d}])\s*(?:\\text\{to\}|\bto\b)\s*(?=[\d\\])")
_BASE = re.compile(r"\(?([0-9A-Z]+)\)?\s*_\s*\{\s*(?:\\text\{)?\s*(\w+)\s*\}?\s*\}")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_NAME = (
    r"\\?[a-zA-Z]+'?(?:\s*_\{\w+\})?(?:\s*\^\{-1\})?(?:\s*\([a-z](?:,\s*[a-z])*\))?|\(\s*[a-z](?:\s*,\s*[a-z])*\s*\)"
)
_NAMED = re.compile(rf"({_NAME})\s*(?:=|\\in(?![a-zA-Z]))\s*([^=]+)")
_RELATION = re.compile(r"(<|>|\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z]))")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_SYMBOLS = re.compile(r"(?<!\\)\b(?!e\b)[a-zA-Z]\b|\\(?:theta|alpha|beta|lambda|mu|phi)")


@dataclass(frozen=True, slots=True)
class Shape:
    """A structure, its parts, and its formula without a name.

    `brackets` are those of a tuple, or the number of a matrix's columns.
    """

    kind: str
    parts: tuple[str, ...]
    text: str
    brackets: str = ""
    name: str = ""


def same_shape(answer: str, target: str, same_value: Same) -> bool:
    """Compare two formulas in normal form part by part; `same_value` compares what has no parts.

    Lists and sets have no order. A vector needs brackets or rows, or the names of its coordinates.
    """
    mine, theirs = read(answer), read(target)
    kinds = {mine.kind, theirs.kind}

    def same(part: str, other: str) -> bool:
        return same_shape(part, other, same_value)

    if kinds == {"list"} and any(
        one.name and {read(part).name for part in other.parts} == {one.name}
        for one, other in ((mine, theirs), (theirs, mine))
    ):
        return _same_in_any_order(mine.parts, theirs.parts, same)  # x = 2 or 3, and x = 2 or x = 3
    if "=" in answer and "=" in target and mine.name != theirs.name:
        return kinds == {"value"} and same_value(answer, target)
    if mine.name and theirs.name and mine.name != theirs.name:
        return False
    if kinds in ({"base"}, {"time"}):
        return all(a == b or not (a and b) for a, b in zip(mine.parts, theirs.parts, strict=True))
    if theirs.kind == "ratio" and mine.kind in ("ratio", "time", "value"):
        return _same_ratio(mine, theirs)
    if kinds == {"list"} and _are_named(theirs) and not any(read(part).name for part in mine.parts):
        return _same_in_order(mine, theirs, same)  # the values of p = 3, q = 5
    if kinds <= {"set", "list"} or (mine.kind, theirs.kind) == ("value", "set"):
        return _same_in_any_order(mine.parts, theirs.parts, same)
    if kinds <= {"tuple", "matrix"} and _same_brackets(mine, theirs):
        return _same_in_order(mine, theirs, same)
    if (mine.kind, theirs.kind) == ("list", "tuple"):
        return theirs.brackets == "()" and _are_named(mine) and _same_in_order(mine, theirs, same)
    if kinds == {"union"} and _same_in_any_order(mine.parts, theirs.parts, same):
        return True
    # values, and what math-verify must calculate with: a union that overlaps, a number times a matrix
    are_sets = kinds <= {"value", "union", "tuple"} and kinds != {"tuple"}
    return (are_sets or kinds in ({"value", "matrix"}, {"value", "set"})) and same_value(mine.text, theirs.text)


def read(text: str) -> Shape:
    equation = _NAMED.fullmatch(text)
    if equation and not _RELATION.search(equation[2]):
        return replace(read(equation[2].strip()), name=re.sub(r"\s", "", equation[1]))
    if base := _BASE.fullmatch(text):
        return Shape("base", (base[1].lstrip("0"), _BASES.get(base[2], base[2])), text)
    if time := _TIME.fullmatch(text):
        return Shape("time", (time[1].lstrip("0"), (time[2] or "").lower()), text)
    if (transposed := _TRANSPOSED.fullmatch(text)) and (shape := read(transposed[1].strip())).kind == "tuple":
        return shape
    terms = split(_TO.sub(":", text), frozenset({":"}))
    if len(terms) > 1 and all(map(parse_number, terms)):
        return Shape("ratio", tuple(terms), text)
    if matrix := _MATRIX.fullmatch(text):
        rows = split(matrix[2].replace("\\hline", ""), frozenset({"\\\\"}))
        return _matrix(text, [split(row, frozenset("&")) for row in rows if row]) or _value(text)
    parts = [each for part in split(text, _SEPARATORS) if part for each in _both_signs(part)]
    if len(parts) > 1:
        return _list(text, parts)
    if brackets := inside_brackets(text):
        return _in_brackets(text, *brackets)
    union = split(text, frozenset({"\\cup"}))
    return Shape("union", tuple(union), text) if len(union) > 1 else _interval(text) or _value(text)


def _value(text: str) -> Shape:
    return Shape("value", (text,), text)


def _in_brackets(text: str, first: str, inside: str, last: str) -> Shape:
    if first == "\\{" and (builder := _BUILDER.fullmatch(inside)):
        return read(builder[2].strip())
    parts = [part for part in split(inside, _SEPARATORS) if part]
    if (first, last) == ("[", "]"):
        inner = [inside_brackets(part) for part in parts]
        rows = [split(part, frozenset(",")) for part in split(inside, frozenset(";"))]
        if len(rows) == 1:
            rows = [split(each[1], frozenset(",")) for each in inner if each and each[0] == "["]
        if len(rows) > 1 and (matrix := _matrix(text, rows)):
            return matrix
    if first == "\\{" or (first == "{" and len(parts) > 1):
        return Shape("set", tuple(each for part in parts for each in _both_signs(part)), f"\\{{{inside}\\}}")
    if len(parts) > 1:
        first, last = {"\\langle": "("}.get(first, first), {"\\rangle": ")"}.get(last, last)
        return Shape("tuple", tuple(parts), f"{first}{inside}{last}", first + last)
    return read(inside) if first in ("(", "{") and inside else _value(text)


def _matrix(text: str, rows: Sequence[Sequence[str]]) -> Shape | None:
    if len({len(row) for row in rows}) != 1:
        return None
    return Shape("matrix", tuple(cell for row in rows for cell in row), text, str(len(rows[0])))


def _list(text: str, parts: Sequence[str]) -> Shape:
    """A list; `x < 1 or x > 3` is a union of intervals."""
    intervals = [interval for part in parts if (interval := _interval(part))]
    if len(intervals) == len(parts) and len({interval.name for interval in intervals}) == 1:
        if len(split(text, frozenset({"and"}))) == 1:
            pieces = tuple(interval.text for interval in intervals)
            return Shape("union", pieces, " \\cup ".join(pieces), name=intervals[0].name)
        *_, low, high = sorted(intervals, key=lambda interval: interval.parts[0] == "-\\infty")
        if len(parts) == 2 and (low.parts[-1], high.parts[0]) == ("\\infty", "-\\infty"):  # x > 2 and x < 5
            return replace(read(f"{low.brackets[0]}{low.parts[0]}, {high.parts[-1]}{high.brackets[1]}"), name=low.name)
    return Shape("list", tuple(parts), text)


def _both_signs(part: str) -> list[str]:
    """Write what has one plus-minus as two."""
    signs = _PLUS_MINUS.findall(part)
    return [_PLUS_MINUS.sub(sign, part) for sign in "+-"] if len(signs) == 1 else [part]


def _interval(text: str) -> Shape | None:
    """Read an inequality of one symbol and numbers as an interval: x < 2, 1 < x \\le 3."""
    sides = [side.strip() for side in _RELATION.split(text)]
    symbols = [_SYMBOLS.findall(side) for side in sides]
    names = [place for place in range(0, len(sides), 2) if symbols[place] == [sides[place]]]
    if len(sides) not in (3, 5) or len(names) != 1 or sum(map(len, symbols)) != 1:
        return None
    [place], signs = names, sides[1::2]
    if len(sides) == 5 and place != 2:
        return None
    name, bounds = sides[place], dict[str, tuple[str, bool]]()
    for i in range(1, len(sides), 2):
        sign, is_right = sides[i], i > place
        other = sides[i + 1] if is_right else sides[i - 1]
        if sign == "\\ne":
            pieces = (f"(-\\infty, {other})", f"({other}, \\infty)")
            return Shape("union", pieces, " \\cup ".join(pieces), name=name) if len(sides) == 3 else None
        bounds["high" if (sign in ("<", "\\le")) == is_right else "low"] = (other, sign in ("\\le", "\\ge"))
    if len(bounds) != len(signs):
        return None
    low, has_low = bounds.get("low", ("-\\infty", False))
    high, has_high = bounds.get("high", ("\\infty", False))
    brackets = ("[" if has_low else "(") + ("]" if has_high else ")")
    return Shape("tuple", (low, high), f"{brackets[0]}{low}, {high}{brackets[1]}", brackets, name)


def _same_brackets(mine: Shape, theirs: Shape) -> bool:
    brackets = {mine.brackets, theirs.brackets}
    if mine.kind == theirs.kind:
        return len(brackets) == 1 or (brackets == {"()", "[]"} and len(mine.parts) > 2)
    matrix = mine if mine.kind == "matrix" else theirs
    return matrix.brackets in ("1", str(len(matrix.parts))) and bool(brackets & {"()", "[]"})


def _are_named(shape: Shape) -> bool:
    """Whether each part has a name of its own: x = 1, y = 2, but not x = 1, x = 2."""
    names = {read(part).name for part in shape.parts}
    return "" not in names and len(names) == len(shape.parts)


def _same_in_order(mine: Shape, theirs: Shape, same: Same) -> bool:
    return len(mine.parts) == len(theirs.parts) and all(map(same, mine.parts, theirs.parts))


def _same_in_any_order(mine: Sequence[str], theirs: Sequence[str], same: Same) -> bool:
    """Each of the target's parts takes one of the answer's; at the first that finds none the rest is not tried."""
    rest = list(mine)
    if len(rest) != len(theirs):
        return False
    for part in theirs:
        place = next((i for i, other in enumerate(rest) if same(other, part)), None)
        if place is None:
            return False
        rest.pop(place)
    return True


def _same_ratio(mine: Shape, theirs: Shape) -> bool:
    """2:4 is 1:2, and so is 1/2."""
    terms, target_terms = (_terms(shape) for shape in (mine, theirs))
    if mine.kind == "value" and len(target_terms) == 2:
        terms = [*terms, Fraction(1)]
    if len(terms) != len(target_terms) or not any(terms):
        return False
    return all(a * target_terms[0] == b * terms[0] for a, b in zip(terms, target_terms, strict=True))


def _terms(shape: Shape) -> list[Fraction]:
    numbers = [parse_number(part) for part in (shape.text.split(":") if shape.kind == "time" else shape.parts)]
    return [number.value for number in numbers if number is not None and not number.unit]
