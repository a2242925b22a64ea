"""The form of an answer: unevaluated operations, added equations, and the case of symbols.

An expression may equal the target without being an answer, such as the integral that the task asks for.
"""

from __future__ import annotations

import re

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|"
    "psi|omega"
)
_TOKEN = re.compile(r"\\mathbb\s*(?:\{\s*)?[A-Z]|\\[a-zA-Z]+|[a-zA-Z]")
_CONSTANT = re.compile(r"(?<![a-zA-Z\\])[cC](?![a-zA-Z(_])")
_SPARE = "qwzkhjuvpmyncstabgl"
_SYMBOL = re.compile(rf"\\(?:{_GREEK})(?![a-zA-Z])|(?<![\\a-zA-Z])[a-zA-Z]+", re.IGNORECASE)
_ARGUMENTS = re.compile(r"(?<=[a-zA-Z'}])\s*\([^()]*\)|_(?:\{[^{}]*\}|\w)")
_OPERATION = re.compile(
    r"\\(?:i*int|sum|prod|lim)(?![a-zA-Z])|\\[dt]?frac\s*(?:\{\s*)?(?:\\mathrm\s*\{?)?(?:d|\\partial)"
)
_COMPUTATION = re.compile(
    r"(?<![a-zA-Z])[dt]?(gcd|lcm|det|binom|choose|max|min|bmod|pmod|mod|lfloor|lceil|floor|ceil|cap|[vV]matrix)(?![a-zA-Z])"
)
_SEVERAL = re.compile(r"[,;]|\b(?:or|and)\b")


def computes_more(answer: str, target: str) -> bool:
    """Whether an answer names a computation, such as gcd or max, that the target does not name.

    math-verify would evaluate it while it parses the answer.
    """
    return bool(set(_COMPUTATION.findall(answer)) - set(_COMPUTATION.findall(target)))


def separate_cases(answer: str, target: str) -> tuple[str, str]:
    """Rename symbols that differ in case only, since math-verify reads R as r.

    A constant of integration is C in any case, if no other symbol of an answer or a target is a C.

    >>> separate_cases("R+r", "2R"), separate_cases("2x + c", "2x + C")
    (('q+r', '2q'), ('2x + C', '2x + C'))
    """
    if _CONSTANT.findall(target) == ["C"] and _CONSTANT.findall(answer) == ["c"]:
        answer = _CONSTANT.sub("C", answer)
    tokens = {token for text in (answer, target) for token in _TOKEN.findall(text)}
    clashing = [token for token in sorted(tokens) if token != token.lower() != "i" and token.lower() in tokens]
    spare = [letter for letter in _SPARE if not tokens & {letter, letter.upper()}]
    names = dict(zip(clashing, spare, strict=False)) | ({"I": "i"} if {"i", "I"} <= tokens else {})
    new_answer, new_target = (_TOKEN.sub(lambda m: names.get(m[0], m[0]), text) for text in (answer, target))
    return new_answer, new_target


def stated_values(answer: str, target: str) -> list[str]:
    """Return the parts of an answer that must equal a target; [] for an equation where the target has none.

    The left side of "A = 9\\pi" is a name, so only the right side is compared. The left side of "0 = x^2 - 1" and
    "x = x^2 - 1" is not a name, so it must equal the target too.
    """
    if "=" in target or "=" not in answer:
        return [answer]
    if _SEVERAL.search(answer):
        pieces = [piece.split("=") for piece in _SEVERAL.split(answer)]
        return [answer] if all(_names(piece[0], piece[-1]) for piece in pieces if len(piece) > 1) else []
    *sides, right = answer.split("=")
    return [*(side for side in sides if not _names(side, right)), right]


def _names(name_side: str, right: str) -> bool:
    """Whether the left side of an equation is a name of its right side."""
    if _OPERATION.search(name_side):
        return True
    symbols = set(_SYMBOL.findall(_ARGUMENTS.sub("", name_side)))
    return bool(symbols) and symbols.isdisjoint(_SYMBOL.findall(right))
