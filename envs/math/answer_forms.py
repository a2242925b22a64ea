"""The form of an answer, beside its value: an operation that is left to do, an added equation, the case of a symbol.

Two expressions may be equal and one of them no answer: the integral that was asked for equals its own result.
"""

from __future__ import annotations

import re

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|"
    "psi|omega"
)
_TOKEN = re.compile(r"\\mathbb\s*(?:\{\s*)?[A-Z]|\\[a-zA-Z]+|[a-zA-Z]")
_SPARE = "qwzkhjuvpmyncstabgl"
_SYMBOL = re.compile(rf"\\(?:{_GREEK})(?![a-zA-Z])|(?<![\\a-zA-Z])[a-zA-Z]+", re.IGNORECASE)
_ARGUMENTS = re.compile(r"(?<=[a-zA-Z'}])\s*\([^()]*\)|_(?:\{[^{}]*\}|\w)")
_OPERATION = re.compile(
    r"\\(?:i*int|sum|prod|lim)(?![a-zA-Z])|\\[dt]?frac\s*(?:\{\s*)?(?:\\mathrm\s*\{?)?(?:d|\\partial)"
)
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])", re.ASCII)
_COMPUTATION = re.compile(
    r"(?<![a-zA-Z])[dt]?(gcd|lcm|det|binom|choose|max|min|bmod|pmod|mod|lfloor|lceil|floor|ceil|cap)(?![a-zA-Z])"
)
_SEVERAL = re.compile(r"[,;]|\b(?:or|and)\b")


def exact_decimals(text: str) -> str:
    """Write decimals as fractions, so that 3.141593 is a number of its own and never a rounded pi.

    >>> exact_decimals("1.5x")
    '\\\\frac{15}{10}x'
    """
    return _DECIMAL.sub(lambda m: f"\\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}", text)


def computes_more(answer: str, target: str) -> bool:
    """Whether an answer names a computation that the algebra does while it reads, and that the target does not name."""
    return bool(set(_COMPUTATION.findall(answer)) - set(_COMPUTATION.findall(target)))


def tell_cases_apart(answer: str, target: str) -> tuple[str, str]:
    """Give symbols that differ in case only names of their own, since the algebra reads R as r.

    >>> tell_cases_apart("R+r", "2R")
    ('q+r', '2q')
    """
    used = {token for text in (answer, target) for token in _TOKEN.findall(text)}
    clashing = [token for token in sorted(used) if token != token.lower() != "i" and token.lower() in used]
    spare = [letter for letter in _SPARE if not used & {letter, letter.upper()}]
    names = dict(zip(clashing, spare, strict=False)) | ({"I": "i"} if {"i", "I"} <= used else {})
    ours, theirs = (_TOKEN.sub(lambda m: names.get(m[0], m[0]), text) for text in (answer, target))
    return ours, theirs


def stated_values(answer: str, target: str) -> list[str]:
    """Return the parts of an answer that must equal a target; [] when it states an equation and the target does not.

    The left side of "A = 9\\pi" names what was asked for, and only the right side is compared. In "0 = x^2 - 1" and
    "x = x^2 - 1" it names nothing, so that it has to be equal as well.
    """
    if "=" in target or "=" not in answer:
        return [answer]
    if _SEVERAL.search(answer):
        pieces = [piece.split("=") for piece in _SEVERAL.split(answer)]
        return [answer] if all(_names(piece[0], piece[-1]) for piece in pieces if len(piece) > 1) else []
    *left, right = answer.split("=")
    return [*(side for side in left if not _names(side, right)), right]


def _names(left: str, right: str) -> bool:
    """Whether the left side of an equation says what its right side is the value of."""
    if _OPERATION.search(left):
        return True
    named = set(_SYMBOL.findall(_ARGUMENTS.sub("", left)))
    return bool(named) and named.isdisjoint(_SYMBOL.findall(right))
