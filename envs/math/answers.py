"""Extracts the final answer of a response, and compares it with the target.

Only one answer counts, so that naming many earns nothing: the last `<answer>` tag, else the last `\\boxed{}`, else the
last `#### 42`, else the last number (or, for a target that is not a number, the last formula). The whole content of a
tag or box is the answer: `\\boxed{3 or 4}` is not 3.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from envs.math.latex import normal
from envs.math.numerals import Number, last_number, parse_number, plain, without_separators, without_unit
from envs.math.shapes import Same, same_shape
from envs.math.verifier import equal_expressions
from forge_env.core.errors import UserError, nearest

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

    A constant of integration is C in any case, if no other symbol of an answer or a target is a C. I is written as i,
    since the grammar drops the power of an I.

    >>> separate_cases("R+r", "2R"), separate_cases("2x + c", "2x + C")
    (('q+r', '2q'), ('2x + C', '2x + C'))
    """
    if _CONSTANT.findall(target) == ["C"] and _CONSTANT.findall(answer) == ["c"]:
        answer = _CONSTANT.sub("C", answer)
    tokens = {token for text in (answer, target) for token in _TOKEN.findall(text)}
    clashing = [token for token in sorted(tokens) if token != token.lower() != "i" and token.lower() in tokens]
    spare = [letter for letter in _SPARE if not tokens & {letter, letter.upper()}]
    names = dict(zip(clashing, spare, strict=False)) | {"I": "i"}
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


FORMATS = ("answer", "boxed", "gsm8k", "number", "text")
"""How an answer may be marked, in the order of precedence."""

MAX_RESPONSE = 200_000
"""Characters at the end of a response that are searched for an answer."""
MAX_ANSWER = 1000
"""A longer answer is compared as text only."""

_ANSWER_END = re.compile(r"</answer\s*>", re.IGNORECASE)
_ANSWER_START = re.compile(r"<answer\s*>", re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]*)", re.MULTILINE)
_FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(((?:[^$\\]|\\(?!\())*?)\\\)|\\\[((?:[^$\\]|\\(?!\[))*?)\\\]", re.DOTALL
)
_ANSWER_IS = re.compile(r"\b(?:answer|option|choice)\s*(?:is|:|=)\s*:?", re.IGNORECASE)
_HEADING = re.compile(
    r"\A\s*(?:(\\text(?:bf|rm|it)?\{)\s*)?"
    r"((?=[a-zA-Z])(?![^:]*\b(?:not?|least|most|than)\b)[a-zA-Z][a-z]+(?: [a-z]+)*)\s*:\s*(\})?\s*"
)
"""Total: 5 is 5."""
_ARITHMETIC = re.compile(
    r"\$?\s*(?:[a-zA-Z](?:\([a-z]\))?\s*(?:=|$))?(?:[\d\s+*/().^{}=!|-]"
    r"|\\(?:times|cdot|div|[dt]?frac|[dt]?binom|sqrt|[lr](?:ceil|floor))(?![a-z]))*",
    re.ASCII,
)
_NAME = re.compile(
    r"(?!\\(?:ln|log|exp|sqrt|sin|cos|tan|cot)\b)(?:\\(?:text|mathrm|mathbb|operatorname)\{)?\\?[a-zA-Z][a-zA-Z ]*'?\}?"
    r"(?:\s*_\{?\\?\w+\}?)?(?:\s*(?:\([^()]*(?:\([^()]*\)[^()]*)?\)|\[[^\[\]]*\]))?\s*"
    r"|(?:m\s*)?\\(?:angle|overline|widehat)\s*\{?[A-Z]{1,3}\}?\s*|[\[|][A-Z]{2,4}[\]|]\s*"  # of geometry
    r"|\\\|[^|]*\\\|\s*|\\(?:i*int|sum|prod|lim)(?![a-zA-Z]).*"
)
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq)(?![a-zA-Z])|≈")
_NAMED_NUMBER, _LETTERS = re.compile(r"([a-zA-Z])\s*="), re.compile(r"[a-zA-Z]")
_UNREADABLE = re.compile(r"\d\s+\d|\d\s*_")
"""What math-verify reads otherwise than it is meant: it adds numbers side by side, and drops the base of 123_5."""
_WORDS = re.compile(
    r"(?:\\(?:text|mathrm|textbf|mathbf)\s*\{)?\s*([^\W\d_][^\W\d_]+(?:[\s-]+[^\W\d_]+)*|[A-Z])\s*\.?\}?\.?"
)
_CHOICE = re.compile(
    r"(?:\\(?:text|mathrm|textbf|mathbf)\s*\{)?\s*(?:(?:[Oo]ption|[Cc]hoice)\s+)?\(?([A-Ja-j])\)?\s*\}?\.?"
)
_FORMULA_WORDS = re.compile(r"[b-df-hj-np-tv-z]{2,3}|[ei]")
_HUGE = re.compile(r"(?<!\d)\d{5,}\s*!|[!)}]\s*!|\^[^\w^]*\d{5,}|\^[+-]?[\d.]+\^", re.ASCII)
_SYMBOLIC = re.compile(r"\(\d?[a-z](?:[+-](?:\d{1,2}|[a-z]))?\)!", re.ASCII)
_EXPONENT_GROUP = re.compile(r"\^[+-]?[{(\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A final answer as the model wrote it, and the mark by which it was found, one of `FORMATS`."""

    text: str
    format: str


def extract_answer(response: str, formats: Sequence[str] = FORMATS) -> Answer | None:
    """Find the final answer of a response; None when it is marked in none of `formats`. Thinking is not searched.

    >>> extract_answer("So <think>2</think> it is \\\\boxed{\\\\frac{1}{2}}.")
    Answer(text='\\\\frac{1}{2}', format='boxed')
    """
    text = after_thinking(response)[-MAX_RESPONSE:]
    for name in formats:
        if name not in _FINDERS:
            raise UserError(f"there is no answer format {name!r}. {nearest(name, FORMATS)}")
        answer = _FINDERS[name](text)
        if answer is not None:
            return Answer(text=answer.strip(), format=name)
    return None


def after_thinking(response: str) -> str:
    """Return what follows the first `</think>`; nothing when a response begins with `<think>` and does not close it.

    Later tags are text: an answer may speak of them (renderers#152).
    """
    _, end, rest = response.partition("</think>")
    if end:
        return rest
    return "" if response.lstrip().startswith("<think>") else response


def last_boxed(text: str) -> str | None:
    """Return the content of the last `\\boxed{}` or `\\fbox{}`, with nested braces; None when it is not closed."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[begin : match.start()]
    return None


def same_answer(answer: str, target: str, *, tolerance: float = 0.0, unevaluated: bool = False) -> bool:
    """Tell whether an answer equals the target.

    For a target that is a number the answer must be a number, equal exactly or within the relative `tolerance`. Words
    are compared as words. Everything else (expressions, sets, intervals, equations) is compared by math-verify in a
    helper process, and must have the form of the target: no equation where the target has none, and the same case of
    symbols. A target that math-verify cannot read is compared as text.

    Args:
        tolerance: relative to the target.
        unevaluated: whether an answer may have operations that the target does not have: \\sqrt{16} for 4.
    """
    if not _HEADING.match(target):
        answer = _HEADING.sub(lambda m: m[1] if m[1] and not m[3] else "", answer)
    number = parse_number(target)
    if number is not None:
        if (is_equal := _is_number(answer, target, number, tolerance)) or not unevaluated:
            return is_equal
        target = str(number.value)
    if _normal_words(answer) == _normal_words(target):
        return bool(answer.strip())
    exact, approximation = _around_approximately(answer)
    if approximation:
        answer = approximation if not exact or _NAME.fullmatch(exact) else exact
    if _is_words(target) or not (_is_bounded(answer) and _is_bounded(target)):
        return False
    same_value = functools.partial(_same_value, tolerance=tolerance, unevaluated=unevaluated)
    texts = [normal(answer), normal(target)]
    if computes_more(*texts) and not unevaluated:
        return False
    lists = [without_separators(text) for text in texts]  # 1,000 and 2,000; but 1,2 is a list
    return _same_expression(same_value, *texts) or (lists != texts and _same_expression(same_value, *lists))


def _same_expression(same_value: Same, answer: str, target: str) -> bool:
    values = stated_values(answer, target)
    return bool(values) and all(same_shape(value, target, same_value) for value in values)


def _same_value(answer: str, target: str, *, tolerance: float, unevaluated: bool) -> bool:
    """Compare two values in normal form: as text, numbers, words, or by math-verify, and their units."""
    answer, target = answer.removeprefix("+").strip(), target.removeprefix("+").strip()
    if answer.replace(" ", "") == target.replace(" ", "") or _normal_words(answer) == _normal_words(target):
        return bool(answer)
    number = parse_number(target) if "=" not in target else None
    if number is not None:
        mine = parse_number(answer, loose=True) if "=" not in answer else None
        if mine is not None or not unevaluated:
            return mine is not None and mine.equals(number, tolerance=tolerance)
    (answer, unit), (target, target_unit) = without_unit(answer), without_unit(target)
    if (unit and target_unit and unit != target_unit) or _UNREADABLE.search(answer):
        return False
    answer, target = separate_cases(answer, target)
    return equal_expressions(target, answer, tolerance=tolerance, unevaluated=unevaluated)


def needs_verifier(target: str) -> bool:
    """Whether answers to this target are compared by math-verify, and not as numbers or words."""
    return parse_number(target) is None and not _is_words(target)


def _is_words(text: str) -> bool:
    """Whether a target is words or the letter of a choice; xy is a product, and e a number."""
    text = plain(text)
    return bool(_WORDS.fullmatch(text) or _CHOICE.fullmatch(text)) and not _FORMULA_WORDS.fullmatch(text)


def _is_number(answer: str, target: str, number: Number, tolerance: float) -> bool:
    answer = answer[1:-1] if answer.startswith("$") and answer.endswith("$") else answer
    exact, approximation = (parse_number(side.rpartition("=")[2]) for side in _around_approximately(answer))
    is_close = exact is not None and approximation is not None and exact.equals(approximation, tolerance=0.01)
    if exact and is_close and exact.equals(number, tolerance=tolerance):
        return True  # 1/3 \\approx 0.333
    answer = _APPROXIMATELY.sub("=", answer)
    first_sides, _, right = answer.rpartition("=") if len(answer) <= MAX_ANSWER else ("", "", "")
    first_sides = plain(first_sides)
    sides = re.split(r"=(?![^()]*\)|[^{}]*\})", first_sides)  # P(X=1) and \\sum_{i=1} x_i are names
    if first_sides and not all(_ARITHMETIC.fullmatch(side) or _NAME.fullmatch(side) for side in map(str.strip, sides)):
        return False
    equation = _NAMED_NUMBER.match(plain(target))  # x = 5 is another line than y = 5
    if equation and first_sides and _LETTERS.fullmatch(first_sides) and first_sides != equation[1]:
        return False
    mine = parse_number(right, loose=True)  # the right-hand side, as in "37 * 24 = 888"
    return mine is not None and mine.equals(number, tolerance=tolerance)


def _around_approximately(answer: str) -> tuple[str, str]:
    """Return what stands before and after the first sign "approximately"; nothing when an answer has none."""
    exact, *approximation = _APPROXIMATELY.split(answer[: MAX_ANSWER + 1], maxsplit=1)
    return (exact.strip("$ "), approximation[0].strip("$ ")) if approximation else ("", "")


def _normal_words(text: str) -> str:
    """Return words, and the letter of a choice (A to J), in one case; other text keeps its case, since R is not r."""
    short = plain(text) if len(text) <= MAX_ANSWER else ""
    if choice := _CHOICE.fullmatch(short):
        return choice[1].upper()
    match = _WORDS.fullmatch(short)
    if match is None:
        return " ".join(text.split())
    return match[1] if len(match[1]) == 1 else " ".join(match[1].casefold().split())


def _is_bounded(text: str) -> bool:
    """Whether a text may be given to math-verify: it is short, not deeply nested, and has no tower of powers."""
    if len(text) > MAX_ANSWER:
        return False
    powers = _SYMBOLIC.sub("n!", re.sub(r"\s", "", plain(text)).replace("**", "^"))
    if _HUGE.search(re.sub(r"[{}]", "", powers)) or _has_tower(powers):
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, abs(depth))
    return deepest <= 20


def _has_tower(text: str) -> bool:
    """Whether an exponent in brackets holds another power: 9^{9^9} does, x^{2}-y^{2} does not."""
    for match in _EXPONENT_GROUP.finditer(text):
        depth = 1
        for place in range(match.end(), len(text)):
            character = text[place]
            depth += (character in "([{") - (character in ")]}")
            if depth == 0:
                break
            if character == "^":
                return True
    return False


def _last_tag(text: str) -> str | None:
    ends = list(_ANSWER_END.finditer(text))
    starts = list(_ANSWER_START.finditer(text, 0, ends[-1].start())) if ends else []
    if not starts:
        return None
    inside = text[starts[-1].end() : ends[-1].start()]
    box = last_boxed(inside)
    return inside if box is None else box


def _last_hashes(text: str) -> str | None:
    """Return the last line `#### 42`; a heading with four marks does not count."""
    numbers = [line for line in _HASHES.findall(text) if parse_number(line) is not None]
    return numbers[-1] if numbers else None


def _last_formula(text: str) -> str | None:
    text = text[-2 * MAX_ANSWER :]  # bounds the time of the patterns
    formulas = [next(part for part in groups if part) for groups in _FORMULA.findall(text) if any(groups)]
    if formulas:
        return formulas[-1]
    return _ANSWER_IS.split(text)[-1].strip() or None


_FINDERS = {
    "answer": _last_tag,
    "boxed": last_boxed,
    "gsm8k": _last_hashes,
    "number": last_number,
    "text": _last_formula,
}
