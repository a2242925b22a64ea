"""Answers in a model's text: finding the final one, and telling whether it equals the target.

Only one answer counts, so that naming many earns nothing: the last `<answer>` tag, else the last `\\boxed{}`, else the
last `#### 42`, else the last number (or, for a target that is no number, the last formula). What stands inside a tag or
box is the whole answer: `\\boxed{3 or 4}` is not 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envs.math.answer_forms import computes_more, exact_decimals, stated_values, tell_cases_apart
from envs.math.numerals import Number, last_number, parse_number, plain
from envs.math.verifier import equal_expressions
from forge_env.core.errors import UserError, nearest

FORMATS = ("answer", "boxed", "gsm8k", "number", "text")
"""How an answer may be marked, in the order in which the marks are looked for."""

MAX_RESPONSE = 200_000
"""Characters of a response's end that are searched for an answer."""
MAX_ANSWER = 1000
"""A longer answer is compared as text only."""

_ANSWER_END = re.compile(r"</answer\s*>", re.IGNORECASE)
_ANSWER_START = re.compile(r"<answer\s*>", re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]*)", re.MULTILINE)
_FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(((?:[^$\\]|\\(?!\())*?)\\\)|\\\[((?:[^$\\]|\\(?!\[))*?)\\\]", re.DOTALL
)
_INTRODUCED = re.compile(r"\banswer\s*(?:is|:|=)\s*:?", re.IGNORECASE)
_ARITHMETIC = re.compile(
    r"\$?\s*(?:[a-zA-Z](?:\([a-z]\))?\s*=?)?(?:[\d\s+*/().^{}=-]|\\(?:times|cdot|div|[dt]?frac))*", re.ASCII
)
_WORDS = re.compile(
    r"(?:\\(?:text|mathrm|textbf|mathbf)\s*\{)?\s*([^\W\d_][^\W\d_]+(?:[\s-]+[^\W\d_]+)*|[A-Z])\s*\}?\.?"
)
_LETTER = re.compile(r"[a-j]")
_CHOICE = re.compile(r"(?:\\(?:text|mathrm|textbf|mathbf)\s*\{)?\s*\(?[A-J]\)?\s*\}?")
_HUGE = re.compile(r"(?<!\d)\d{5,}\s*!|[!)}]\s*!|\^[^\w^]*\d{5,}|\^[+-]?[\d.]+\^", re.ASCII)
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

    Raises:
        UserError: for a format that does not exist.
    """
    text = after_thinking(response)[-MAX_RESPONSE:]
    for name in formats:
        if name not in _FINDERS:
            raise UserError(f"there is no answer format {name!r}. {nearest(name, FORMATS)}")
        found = _FINDERS[name](text)
        if found is not None:
            return Answer(text=found.strip(), format=name)
    return None


def after_thinking(response: str) -> str:
    """Return what follows the last `</think>`; nothing when a `<think>` is left open."""
    start, end = response.rfind("<think>"), response.rfind("</think>")
    if start > end:
        return ""
    return response[end + len("</think>") :] if end >= 0 else response


def last_boxed(text: str) -> str | None:
    """Return what the last `\\boxed{}` (or `\\fbox{}`) holds, nested braces and all; None when it never closes."""
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


def same_answer(answer: str, target: str, *, tolerance: float = 0.0) -> bool:
    """Tell whether an answer equals the target.

    A target that is a number wants a number, compared exactly or within the relative `tolerance`: unevaluated
    arithmetic is no answer to it. Words are compared as words. Everything else (expressions, sets, intervals,
    equations) is compared by math-verify, in a process of its own, and has the target's form besides: no operation is
    left to do that the target does not have, no equation stands where it has none, and symbols have its case.

    Raises:
        UserError: when math-verify is needed and not installed.
        EnvError: when the target takes too long to read.
        ServiceError: when the process that compares broke; never for what the answer says.
    """
    number = parse_number(target)
    if number is not None:
        return _is_number(answer, number, tolerance)
    if _as_words(answer) == _as_words(target):
        return bool(answer.strip())
    if _WORDS.fullmatch(plain(target)) or not (_is_bounded(answer) and _is_bounded(target)):
        return False
    return _same_expression(expression(answer), expression(target), tolerance)


def _same_expression(answer: str, target: str, tolerance: float) -> bool:
    if {_shape(answer), _shape(target)} == {"set", "bracket"} or computes_more(answer, target):
        return False
    if not _CHOICE.fullmatch(target):
        answer, target = tell_cases_apart(answer, target)
    values = stated_values(answer, target)
    return bool(values) and all(equal_expressions(target, value, tolerance=tolerance) for value in values)


def needs_verifier(target: str) -> bool:
    """Whether answers to this target are compared by math-verify, and not as numbers or words."""
    return parse_number(target) is None and not _WORDS.fullmatch(plain(target))


def expression(text: str) -> str:
    """Write an answer as LaTeX that math-verify reads: powers, roots and relations of programs become LaTeX's."""
    text = plain(text).strip("$ ").removesuffix(".")
    text = text.replace("**", "^").replace("∞", "\\infty ").replace("π", "\\pi ").replace("∪", "\\cup ")
    text = text.replace("≤", "\\le ").replace("≥", "\\ge ").replace("<=", "\\le ").replace(">=", "\\ge ")
    text = re.sub(r"√\s*(\d+)", r"\\sqrt{\1}", text)
    # LaTeX reads 3/2 x as 3 over 2x, people read it as a coefficient
    text = re.sub(r"(?<![\w.^])(\d+)/(\d+)\s+(?=[a-zA-Z(])", r"\\frac{\1}{\2}", text)
    return exact_decimals(text)


def _is_number(answer: str, target: Number, tolerance: float) -> bool:
    answer = answer[1:-1] if answer.startswith("$") and answer.endswith("$") else answer
    left, _, right = answer.rpartition("=") if len(answer) <= MAX_ANSWER else ("", "", "")
    if left and not _ARITHMETIC.fullmatch(plain(left)):
        return False
    number = parse_number(right)  # of "37 * 24 = 888" the right-hand side is the answer
    return number is not None and number.equals(target, tolerance=tolerance)


def _as_words(text: str) -> str:
    """Words without their case, a letter of a choice (A to J) too; any other text as it is: R is not r."""
    match = _WORDS.fullmatch(plain(text)) if len(text) <= MAX_ANSWER else None
    if match is None:
        return " ".join(text.split()).upper() if _LETTER.fullmatch(text.strip()) else " ".join(text.split())
    return match[1] if len(match[1]) == 1 else " ".join(match[1].casefold().split())


def _shape(text: str) -> str:
    """Tell sets from tuples and intervals, which math-verify does not: {1, 2} is not (1, 2)."""
    text = text.strip()
    if text.startswith(("\\{", "{")) and text.endswith("}"):
        return "set"
    return "bracket" if text.startswith(("(", "[")) and text.endswith((")", "]")) and "," in text else ""


def _is_bounded(text: str) -> bool:
    """Whether a text may be given to the computer algebra at all: short, not deeply nested, no tower of powers."""
    if len(text) > MAX_ANSWER:
        return False
    powers = re.sub(r"\s", "", plain(text)).replace("**", "^")
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
    if not ends:
        return None
    starts = list(_ANSWER_START.finditer(text, 0, ends[-1].start()))
    if not starts:
        return None
    inside = text[starts[-1].end() : ends[-1].start()]
    boxed = last_boxed(inside)
    return inside if boxed is None else boxed


def _last_hashes(text: str) -> str | None:
    """The last line `#### 42`: a heading that happens to have four marks is none."""
    numbers = [line for line in _HASHES.findall(text) if parse_number(line) is not None]
    return numbers[-1] if numbers else None


def _last_formula(text: str) -> str | None:
    text = text[-2 * MAX_ANSWER :]  # so that no pattern can take long
    formulas = [next(part for part in found if part) for found in _FORMULA.findall(text) if any(found)]
    if formulas:
        return formulas[-1]
    return _INTRODUCED.split(text)[-1].strip() or None


_FINDERS = {
    "answer": _last_tag,
    "boxed": last_boxed,
    "gsm8k": _last_hashes,
    "number": last_number,
    "text": _last_formula,
}
