"""Numbers in text, read exactly: decimals, thousands separators, fractions, percentages, powers of ten, and units.

A number is a `Fraction`, so that 0.1 is a tenth and 1/3 is not 0.333333. Nothing here needs a package.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 200
"""A longer text is not read as a number, so that parsing is cheap for any text of a model."""
_MAX_EXPONENT = 300

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_LATEX_FRACTION = re.compile(
    r"\\(?:[dtcs]?|nice)frac\s*(?:\{\s*([-+]?[\d.]+)\s*\}|(\d))\s*(?:\{\s*([-+]?[\d.]+)\s*\}|(\d))"
)
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)\s+(?=\d+\s*/))?(?P<top>{_DECIMAL})(?:e(?P<exponent>[-+]?\d+))?"
    rf"(?:\s*/\s*(?P<bottom>[-+]?{_DECIMAL}))?"
    r"(?:\s*\*\s*10\s*(?:\^|\*\*)\s*(?P<power>[-+]?\d+))?\s*(?P<unit>.*)",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_SIMPLE = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_POWER_OF_TEN = re.compile(r"([-+]?\s*)10\s*(?=\^|\*\*)")  # without a factor in front
_LAST = re.compile(
    r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?(?:\s*/\s*\d[\d,]*(?:\.\d+)?)?(?:\s*\\?%)?", re.I | re.ASCII
)
_DECIMALS = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])", re.ASCII)
_RECURRING = re.compile(
    r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))|\((\d+)\)"
    r"|(\\dot\s*\{?\d\}?(?:\d*\\dot\s*\{?\d\}?)?))",
    re.ASCII,
)
_SIZES = re.compile(
    r"\\\\|\\(?:left|right)(?![a-zA-Z])\s*\.?|\\(?:[bB]igg?[lrm]?|(?:display|text|script)style|(?:no)?limits)(?![a-zA-Z])|\\!"
)
_SPACES = re.compile(
    r"\\\\(?:\s*\[[\d.]+(?:pt|em|ex|mm)\])?|\\[,;:> ]|\\(?:qquad|quad|enspace|thinspace)(?![a-zA-Z])|\\(?=\s)|~"
)
_OVER = re.compile(r"\{([^{}]*)\\(over|choose)(?![a-zA-Z])([^{}]*)\}")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_VULGAR = re.compile("(\\d?)([¼-¾⅐-⅞])")
_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": "*", "⋅": "*", "·": "*", "∙": "*", "⁄": "/", "\u00a0": " ", "\u2009": " ",
        "\u202f": " ", "π": "\\pi ", "∞": "\\infty ", "√": "\\sqrt ", "∛": "\\sqrt[3]", "±": "\\pm ", "∓": "\\mp ",
        "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∅": "\\emptyset ",
        "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℚ": "\\mathbb{Q}", "ℕ": "\\mathbb{N}", "⟨": "\\langle ",
        "⟩": "\\rangle ", "°": "^\\circ ", "÷": "\\div ", "∨": "\\lor ", "∧": "\\land ", "\u200b": "",
    }
)  # fmt: skip
_GROUPED = re.compile(r"(?<=\d),(?=\d)", re.ASCII)
_GROUPS_OF_THREE = re.compile(r"(?<![\d.,])\d{1,3}([ ,])\d{3}(?:\1\d{3})*(?![\d,]|\s*/)", re.ASCII)
_WORD = r"[a-z]+\.?(?:\s*\^?\s*[23](?!\d))?"
_UNIT = re.compile(rf"{_WORD}(?:(?:\s+|\s*[/*]\s*){_WORD}){{0,3}}", re.IGNORECASE | re.ASCII)

_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_UNIT_ALIASES = {
    "cm": "centimeter", "centimetre": "centimeter", "m": "meter", "metre": "meter", "km": "kilometer",
    "kilometre": "kilometer", "mm": "millimeter", "millimetre": "millimeter", "g": "gram", "kg": "kilogram",
    "h": "hour", "hr": "hour", "min": "minute", "s": "second", "sec": "second", "l": "liter", "litre": "liter",
    "deg": "degree", "usd": "dollar", "eur": "euro", "in": "inch", "inche": "inch", "ft": "foot", "feet": "foot",
    "units": "unit",
}  # fmt: skip
_KNOWN_UNITS = frozenset(_UNIT_ALIASES) | frozenset(_UNIT_ALIASES.values())
_JOINING = ("or", "and", "to", "not", "nor", "but", "versus", "vs", "is", "are", "maybe", "either")
_OPERATIONS = (
    "plus", "minus", "times", "over", "divided", "modulo", "mod", "squared", "cubed", "factorial", "root", "power",
    "choose", "negative",
)  # fmt: skip
_FRACTIONS = ("halves", "thirds", "fifths", "tenths", "hundredths", "thousandths")
_SYMBOLS = ("pi", "infinity", "inf", "infty", "sqrt", "sin", "cos", "tan", "cot", "log", "ln", "exp", *"eixyz")
_LONG_UNITS = "|".join(sorted((unit for unit in _KNOWN_UNITS if len(unit) > 1), reverse=True))
_BEHIND = re.compile(
    r"(?P<value>.*?[^\s(\[{,=])\s*(?:(?P<circ>\^\{\s*\\circ\s*\})"
    r"|\\text\{(?P<text>[^{}]*)\}\s*(?:\^\{(?P<power>[23])\})?"
    rf"|(?<![a-zA-Z\\])(?P<word>(?:(?:square|cubic)\s+)?(?:{_LONG_UNITS})s?)\s*(?:\^\{{(?P<raised>[23])\}})?)"
)
_NO_UNITS = frozenset((*_JOINING, *_OPERATIONS, *_FRACTIONS, *_SYMBOLS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """An exact value with its unit ("" when it has none); `percent` says that it was followed by a percent sign."""

    value: Fraction
    unit: str = ""
    percent: bool = False

    def equals(self, other: Number, *, tolerance: float = 0.0) -> bool:
        """Whether both are the same quantity; `tolerance` is relative to the size of `other`.

        A unit is compared only where both have one. This holds for percent signs too: 50% equals 50 and 0.5.
        """
        if self.unit and other.unit and self.unit != other.unit:
            return False
        mine, theirs = {self.value}, {other.value}
        if self.percent != other.percent:
            mine |= {self.value / 100} if self.percent else set()
            theirs |= {other.value / 100} if other.percent else set()
        return any(abs(a - b) <= Fraction(tolerance) * abs(b) for a in mine for b in theirs)


def plain(text: str) -> str:
    """Write digits of every script, signs of mathematics and LaTeX spacing in one form, with single spaces."""
    if not text.isascii():
        text = _RAISED.sub(lambda m: "^{" + m[0].translate(_LOWERED) + "}", text)
        text = _VULGAR.sub(lambda m: f"{m[1]} " + unicodedata.normalize("NFKC", m[2]), text)
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text).translate(_SIGNS)
        text = re.sub(r"(\d)\u0305", r"\\overline{\1}", text).replace("}\\overline{", "")
        text = re.sub(r"\\sqrt\s*(\[3\])?\s*(\d+(?:\.\d+)?)", r"\\sqrt\1{\2}", text)
    if "\\" in text or "~" in text:
        text = text.replace(",\\!", "").replace("{,}", "")  # thousands
        text = _SIZES.sub(lambda m: m[0] if m[0] == "\\\\" else "", text)
        text = _SPACES.sub(lambda m: m[0][:2] if m[0].startswith("\\\\") else " ", text)
        text = _OVER.sub(lambda m: f"\\{'frac' if m[2] == 'over' else 'binom'}{{{m[1]}}}{{{m[3]}}}", text)
    return " ".join(text.split())


def exact_decimals(text: str) -> str:
    """Write decimals as fractions, so that 3.141593 is an exact number and not a rounded pi.

    >>> exact_decimals(r"1.5x + 0.\\overline{3}")
    '\\frac{15}{10}x + \\frac{3}{9}'
    """
    text = _RECURRING.sub(lambda m: "\\frac{{{}}}{{{}}}".format(*_recurring(m)), text)
    return _DECIMALS.sub(lambda m: f"\\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}", text)


def _recurring(match: re.Match[str]) -> tuple[int, int]:
    """Return numerator and denominator of a recurring decimal: 0.1(6) is 15/90."""
    block = re.sub(r"\D", "", next(group for group in match.groups()[2:] if group))
    start = match[1] + match[2]
    bottom = 10 ** len(match[2]) * (10 ** len(block) - 1)
    return int(start + block) - int(start or 0), bottom


def parse_number(text: str) -> Number | None:
    """Parse a text that is one number, with an optional name before it ("x = ") and a unit after it; else None.

    >>> parse_number(r"\\frac{3}{4}"), parse_number("3 or 4")
    (Number(value=Fraction(3, 4), unit='', percent=False), None)
    """
    return _parse(text) if len(text) <= MAX_CHARS else None


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> Number | None:
    if _SIMPLE.fullmatch(text):
        return Number(value=Fraction(text))
    text, currency = _bare(plain(text))
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    unit = _unit(match["unit"], attached=not match["unit"] or text[match.start("unit") - 1] != " ")
    if unit is None:
        return None
    value = _value(match)
    if value is None:
        return None
    name, scale, percent = unit
    return Number(value=value * scale, unit=currency or name, percent=percent)


def without_unit(text: str) -> tuple[str, str]:
    """Split a formula in normal form into its value and the unit behind it; "" when there is none."""
    match = _BEHIND.fullmatch(text)
    if match is None:
        return text, ""
    if match["circ"]:
        return match["value"], "degree"
    words = " ".join((match["text"] or match["word"]).split()) + "".join(
        f"^{power}" for power in (match["power"], match["raised"]) if power
    )
    unit = _unit(words, attached=False)
    return (match["value"], unit[0]) if unit is not None and unit[1] == 1 and unit[0] else (text, "")


def last_number(text: str) -> str | None:
    """Return the last number of a text, as it is written; commas between digits are thousands separators."""
    text = plain(text)
    numbers = _LAST.findall(_LATEX_FRACTION.sub(_as_quotient, text) if "\\" in text else text)
    return _GROUPED.sub("", numbers[-1]).rstrip(",") if numbers else None


def _bare(text: str) -> tuple[str, str]:
    """Remove what surrounds a number: brackets, dollar signs, `x =`, a currency, a full stop, LaTeX words."""
    text = text.strip().removesuffix(".").strip()
    while len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    text = re.sub(r"^\\?[a-zA-Z](?:\([a-z]\))?\s*=\s*", "", text)
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", r" \1 ", text).replace("\\%", "%")
    text = re.sub(r"\^?\s*\{?\s*\\circ\s*\}?", " degree", text)
    text = _GROUPS_OF_THREE.sub(lambda m: re.sub("[ ,]", "", m[0]), text.replace("{,}", ","))
    text = re.sub(r"\\(?:times|cdot)(?![a-zA-Z])|(?<=\d)\s*x\s*(?=10\s*\^)", "*", text)
    text = re.sub(r"\^\s*\{\s*([-+]?\d{1,4})\s*\}", r"^\1", text, flags=re.ASCII)
    text = _RECURRING.sub(lambda m: "{}/{}".format(*_recurring(m)), text)
    text = _LATEX_FRACTION.sub(_as_quotient, text).strip()
    while text[:1] + text[-1:] in ("()", "{}") and not re.search(r"[(){}]", text[1:-1]):
        text = text[1:-1].strip()
    text = re.sub(r"(?<=\d)\s*\^?\{?\s*(?:st|nd|rd|th)\s*\}?$", "", text)
    text = re.sub(r"^([-+])\s+", r"\1", text)
    sign, currency = "", ""
    money = re.match(r"([-+]?)\s*\\?([$€£¥])\s*", text)
    if money:
        sign, currency, text = money[1], _CURRENCIES[money[2]], text[money.end() :]
    text = (sign + text).strip()
    power = _POWER_OF_TEN.match(text)
    return (f"{power[1]}1*{text[power.end(1) :]}" if power else text), currency


def _as_quotient(match: re.Match[str]) -> str:
    return f" {match[1] or match[2]}/{match[3] or match[4]}"


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a matched number; None for a division by zero and for an exponent that is too large."""
    exponent, power = int(match["exponent"] or 0), int(match["power"] or 0)
    if max(abs(exponent), abs(power)) > _MAX_EXPONENT:
        return None
    value = Fraction(match["top"]) * Fraction(10) ** (exponent + power)
    if match["bottom"]:
        bottom = Fraction(match["bottom"])
        if bottom == 0:
            return None
        value /= bottom
    value += Fraction(match["whole"] or 0)
    return -value if match["sign"] == "-" else value


def _unit(text: str, *, attached: bool) -> tuple[str, int, bool] | None:
    """Parse the text after a number as (unit, factor, percent); None when it is no unit.

    Letters directly after a number must be a known unit: 5km has a unit, 5x and 5xy are algebra.
    """
    text = text.strip()
    if text.lower() in ("%", "percent", "per cent", "percentage points"):
        return "", 1, True
    if not text:
        return "", 1, False
    if not _UNIT.fullmatch(text) or (attached and (len(text) == 1 or text.lower() not in _KNOWN_UNITS)):
        return None
    words = [word.rstrip(".").lower() for word in re.findall(r"[a-zA-Z]+\.?|[23/*]", text)]
    factor = 1
    while words and words[0].rstrip("s") in _SCALES:
        factor *= _SCALES[words.pop(0).rstrip("s")]
    if any(word in _NO_UNITS for word in words):
        return None
    return " ".join(_unit_word(word) for word in words), factor, False


def _unit_word(word: str) -> str:
    word = "/" if word == "per" else word
    word = word.rstrip("s") if len(word) > 2 else word
    return _UNIT_ALIASES.get(word, word)
