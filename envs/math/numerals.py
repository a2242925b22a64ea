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
_LATEX_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*([-+]?[\d.]+)\s*\}|(\d))\s*(?:\{\s*([-+]?[\d.]+)\s*\}|(\d))")
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
_GROUPED = re.compile(r"(?<=\d),(?=\d)", re.ASCII)
_GROUPS_OF_THREE = re.compile(r"\d{1,3}(,\d{3})+(?![\d,])", re.ASCII)
_WORD = r"[a-z]+\.?(?:\s*\^?\s*[23²³](?!\d))?"
_UNIT = re.compile(rf"{_WORD}(?:(?:\s+|\s*[/*]\s*){_WORD}){{0,3}}", re.IGNORECASE | re.ASCII)

_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_UNIT_ALIASES = {
    "cm": "centimeter", "centimetre": "centimeter", "m": "meter", "metre": "meter", "km": "kilometer",
    "kilometre": "kilometer", "mm": "millimeter", "millimetre": "millimeter", "g": "gram", "kg": "kilogram",
    "h": "hour", "hr": "hour", "min": "minute", "s": "second", "sec": "second", "l": "liter", "litre": "liter",
    "deg": "degree", "usd": "dollar", "eur": "euro", "in": "inch", "inche": "inch", "ft": "foot", "feet": "foot",
}  # fmt: skip
_KNOWN_UNITS = frozenset(_UNIT_ALIASES) | frozenset(_UNIT_ALIASES.values())
_JOINING = ("or", "and", "to", "not", "nor", "but", "versus", "vs", "is", "are", "maybe", "either")
_OPERATIONS = ("plus", "minus", "times", "over", "modulo", "mod", "squared", "cubed", "factorial", "root", "power")
_SYMBOLS = ("pi", "infinity", "inf", "infty", "sqrt", "sin", "cos", "tan", "cot", "log", "ln", "exp", *"eixyz")
_NO_UNITS = frozenset((*_JOINING, *_OPERATIONS, *_SYMBOLS))


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
    """Write digits of every script, minus signs and LaTeX spacing in their ASCII form."""
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
        text = text.translate({0x2212: "-", 0x2013: "-", 0x00D7: "*", 0x22C5: "*", 0x00A0: " ", 0x202F: " "})
    if "\\" not in text and "~" not in text:
        return text.strip()
    text = re.sub(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[!;:]", "", text)
    return re.sub(r"\\(?:,|quad|qquad|(?=\s))|~", " ", text).strip()


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


def last_number(text: str) -> str | None:
    """Return the last number of a text, as it is written; commas between digits are thousands separators."""
    text = plain(text)
    numbers = _LAST.findall(_LATEX_FRACTION.sub(_as_quotient, text) if "\\" in text else text)
    return _GROUPED.sub("", numbers[-1]).rstrip(",") if numbers else None


def _bare(text: str) -> tuple[str, str]:
    """Remove what surrounds a number: dollar signs of mathematics, `x =`, a currency, a full stop, LaTeX words."""
    text = text.strip().removesuffix(".").strip()
    while len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    text = re.sub(r"^\\?[a-zA-Z](?:\([a-z]\))?\s*=\s*", "", text)
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", r" \1 ", text).replace("\\%", "%")
    text = re.sub(r"\^?\s*\{?\\circ\}?|°", " degree", text).replace("{,}", ",")
    text = re.sub(r"\\(?:times|cdot)(?![a-zA-Z])", "*", text)
    text = re.sub(r"\^\s*\{\s*([-+]?\d{1,4})\s*\}", r"^\1", text, flags=re.ASCII)
    text = _LATEX_FRACTION.sub(_as_quotient, text).strip()
    text = re.sub(r"^([-+])\s+", r"\1", text)
    sign, currency = "", ""
    money = re.match(r"([-+]?)\s*\\?([$€£¥])\s*", text)
    if money:
        sign, currency, text = money[1], _CURRENCIES[money[2]], text[money.end() :]
    text = _GROUPS_OF_THREE.sub(lambda m: m[0].replace(",", ""), text)
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
    words = [word.rstrip(".").lower() for word in re.findall(r"[a-zA-Z]+\.?|[23²³/*]", text)]
    factor = 1
    while words and words[0].rstrip("s") in _SCALES:
        factor *= _SCALES[words.pop(0).rstrip("s")]
    if any(word in _NO_UNITS for word in words):
        return None
    return " ".join(_unit_word(word) for word in words), factor, False


def _unit_word(word: str) -> str:
    word = {"²": "2", "³": "3", "per": "/"}.get(word, word)
    word = word.rstrip("s") if len(word) > 2 else word
    return _UNIT_ALIASES.get(word, word)
