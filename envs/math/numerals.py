"""Numbers in text, read exactly by one grammar: `parse_number` reads a whole text, `last_number` the end of prose.

    number = [sign] [currency] value [scale ...] [unit]
    value  = mixed | digits ["e" digits] ["/" digits] ["*" power of ten] | power of ten

A number is a `Fraction`, so that 0.1 is a tenth and 1/3 is not 0.333333. Nothing here needs a package.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 200
"""A longer text is not read as a number, so that parsing is cheap for any text of a model."""
_MAX_EXPONENT = 300

_CURRENCIES = {"\x02": "dollar", "$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "¢": "cent"}
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_LETTER_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "bn": 10**9, "m": 10**6}
_LETTER_SCALE = re.compile(r"(bn|[kKMBm])(?![a-zA-Z^*])\s*")
"""Directly behind the digits of an answer, or of a price. Elsewhere 5k is algebra, and 5m is a length."""
_UNIT_ALIASES = {
    "cm": "centimeter", "centimetre": "centimeter", "m": "meter", "metre": "meter", "km": "kilometer",
    "kilometre": "kilometer", "mm": "millimeter", "millimetre": "millimeter", "g": "gram", "kg": "kilogram",
    "h": "hour", "hr": "hour", "min": "minute", "s": "second", "sec": "second", "l": "liter", "litre": "liter",
    "ml": "milliliter", "deg": "degree", "usd": "dollar", "eur": "euro", "in": "inch", "inche": "inch", "ft": "foot",
    "feet": "foot", "yd": "yard", "lb": "pound", "oz": "ounce", "kph": "kilometer hour^-1",
    "mph": "mile hour^-1", "n": "newton", "j": "joule", "w": "watt", "v": "volt", "hz": "hertz", "c": "celsiu",
    "f": "fahrenheit", "square": "square", "unit": "unit", "day": "day", "week": "week", "month": "month",
    "year": "year", "radian": "radian", "mile": "mile", "cent": "cent",
    "kmh": "kilometer hour^-1", "kmph": "kilometer hour^-1", "yr": "year",
}  # fmt: skip
_KNOWN_UNITS = frozenset(_UNIT_ALIASES) | frozenset(_UNIT_ALIASES.values())
_ONE_LETTER = "hmsglLNJWV"
"""Units that may stand directly behind a number in an answer: 5h. In a target 5t and 3m are algebra."""
_LETTERS = _ONE_LETTER + "AKTCF"
"""Units that may stand apart: 5 A. 5 a is algebra."""
_CODES = {"us$": "$", "usd": "$", "eur": "€", "gbp": "£", "jpy": "¥", "inr": "₹", "rs": "₹"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_BEHIND = {"squared": 2, "cubed": 3}
_OTHER_WORDS = """or and to not nor but versus vs is are maybe either plus minus modulo mod squared cubed factorial root
    power choose negative halves thirds fifths tenths hundredths thousandths pi infinity inf infty sqrt sin cos tan cot
    log ln exp at least most than above below"""
_NO_UNITS = frozenset(_OTHER_WORDS.split())
"""Of words with numbers behind them, and of single letters, this is known anyway: 5 times is 5, 5 times 6 is none."""

_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)", re.ASCII)
_SPACED = r"(?: \d{3})+(?!,?\d|\s*/)"
_CODE = re.compile(r"(?<![a-zA-Z])(US\\?\$|USD|EUR|GBP|JPY|INR|Rs\.?)\s*(?=\$?\d)")
_SCALED = re.compile(rf"(?<=\d)-(?=(?:{'|'.join(_SCALES)})\b)")
_SUM_OF_UNITS = re.compile(
    r"(?<=\d)(\s*(?:year|month|week|day|h|hr|hour|min|minute|ft|foot|feet|lb|pound|dollar|m|kg|km)s?)\s(?:and\s)?"
    r"(?=\d+\s?(?:month|week|day|hour|min|minute|sec|second|s|in|inch|inche|oz|ounce|cent|cm|g|m)s?\b)"
)
"""5 min 30 s is a sum: it has no last number."""
_NUM = rf"(?:(?:[1-9]\d{{0,2}}(?:(?:,\d{{3}})+|{_SPACED})|\d+)(?:\.\d*)?|\.\d+)(?![.,]?\d)"
_TEN = r"10\s*(?:\^|\*\*)\s*[({]?\s*(?P<power>[-+]?\d+)\s*[)}]?"
_MIXED = r"(?P<whole>\d+)\s+(?:and\s+)?(?P<part>\d+\s*/\s*\d+)(?![.,]?\d)"
_DECIMAL = (
    rf"(?P<top>{_NUM})(?:e(?P<exponent>[-+]?\d+))?(?:\s*/\s*(?P<bottom>[-+]?{_NUM}))?"
    rf"(?:\s*\*\s*{_TEN.replace('power', 'factor')})?"
)
_VALUE = f"(?:{_MIXED}|{_TEN}|{_DECIMAL})"
_MONEY = f"[{''.join(_CURRENCIES)}]"
_NUMBER = re.compile(
    rf"(?P<sign>[-+])?\s*(?P<money>{_MONEY})?\s*(?P<inner>[-+])?\s*"
    rf"{_VALUE}\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_SIMPLE = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_LEAD = re.compile(
    r"(?:\\?[a-z](?:\([a-z]\))?\s*=\s*)?"
    r"(?:\\(?:approx|simeq|sim)(?![a-z])\s*"
    r"|(?:about|approximately|approx\.?|roughly|around|circa|exactly|precisely|only|just)\s+)?",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"([-+]?)\s*(?:\(([^(),]*)\)|\{([^{},]*)\})(?!\s*[\^*\d])(.*)", re.DOTALL)
_ORDINAL = r"(?:\s*\^?\{?\s*(?:st|nd|rd|th)\b\s*\}?)"
_UNIT = re.compile(
    r"\s*(?:(?P<join>[/*]|per(?![a-z])|(?<=[a-z])-(?=[a-z]))|(?P<word>[a-z]+)\.?"
    r"(?:\s*(?:\^|\*\*)\s*[({]?\s*(?P<power>[-+]?[1-9])\s*[)}]?(?!\d))?)",
    re.IGNORECASE | re.ASCII,
)
_PERCENT = r"\\?%|per ?cent\b|percentage points\b"
_LATEX_FRACTION = re.compile(
    r"\\(?:[dtcs]?|nice)frac\s*(?:\{\s*([-+]?[\d.,]+)\s*\}|(\d))\s*(?:\{\s*([-+]?[\d.,]+)\s*\}|(\d))"
)
_UNIT_FRACTION = re.compile(r"\\[dtc]?frac\s*\{\s*([a-zA-Z]+)\s*\}\s*\{\s*([a-zA-Z]+(?:\s*\^\d)?)\s*\}")
_FORMULA = re.compile(r"(\$\$?)([^$]+)\1(?!\d)")
_FORMAT = re.compile(
    r"\\(?:text(?:rm|bf|it|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|normal)|mbox|fbox|underline|operatorname|boldsymbol|pmb|bm"
    r"|emph)\s*\{([^{}]*)\}|\\(?:rm|bf|it|sf|tt)(?![a-z])"
)
_LABEL = re.compile(
    r"(\\text(?:bf|rm)?\{\s*)?(?:the\s)?(?:final\s)?answer\s*(?:is\b|:|=)[\s:]*(\})?\s*(?!\s|$)", re.IGNORECASE
)
_SIGN_WORDS = re.compile(
    r"(?:\\text\{\s*)?(?<![\w-])(negative|minus|positive|plus)(?:\s*\}|\s)\s*(?=[\d.$\\({€£¥])", re.IGNORECASE
)
_AND_A_PART = re.compile(r"(?<=\d)\s+and (?:a|one)[ -](half|third|quarter)\b", re.IGNORECASE)
_PARTS = {"half": " 1/2", "third": " 1/3", "quarter": " 1/4"}
_EMPHASIS = re.compile(r"(?<![\w)\]}*^])(\*{1,3}|_{1,3})(?=[^\s*_])([^*_]*[^\s*_])\1(?![\w*])")
_CITATION = re.compile(r"\^?\[\d{1,3}\]|(?<=[.,;:!?])\^\{?\d{1,3}\}?")
_DOTTED = re.compile(
    r"(?<![\d.])(\d{0,12})\.(\d{0,8}?)(\d{1,6}?)\3{1,20}\s*(?:\\[lc]?dots(?![a-zA-Z])|\.\.\.)", re.ASCII
)
_DECIMALS = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])", re.ASCII)
_RECURRING = re.compile(
    r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))|\((\d+)\)"
    r"|(\\dot\s*\{?\d\}?(?:\d*\\dot\s*\{?\d\}?)?))",
    re.ASCII,
)
_QUOTED = re.compile("\\A(?:\"(.*)\"|'(.*)'|“(.*)”)\\Z")
_TAG = re.compile(r"</?[a-z]+\s*/?>|<([-+]?[\d./]+)>", re.IGNORECASE)
_COLOR = re.compile(r"\\(?:(?:text)?color|colorbox)\s*(?:\[\w+\])?\s*\{[^{}]*\}\s*")
_SIZES = re.compile(
    r"\\\\|\\(?:left|right)(?![a-zA-Z])\s*\.?|\\(?:[bB]igg?[lrm]?|(?:display|text|script)style|(?:no)?limits"
    r"|(?:normal|footnote|script)size|small|large|Large|LARGE|huge|Huge|therefore|checkmark|blacksquare)(?![a-zA-Z])|\\!"
)
_SPACES = re.compile(
    r"\\\\(?:\s*\[[\d.]+(?:pt|em|ex|mm)\])?|\\[,;:> ]|\\(?:qquad|quad|enspace|thinspace)(?![a-zA-Z])"
    r"|\\[hv]space\*?\{[^{}]*\}|\\(?=\s|\Z)|~"
)
_DOUBLE = re.compile(r"(?<!\\)\{\{([^{}]*)\}\}")
_EXACT = re.compile(r"\\text\{\s*\(exact(?:ly)?\)\s*\}|(?<=[\d)}])\s*\(exact(?:ly)?\)", re.IGNORECASE)
_FROM_TO = re.compile(r"(?<=\d)[ ]?~[ ]?(?=\d)")
_OVER = re.compile(r"\{([^{}]*)\\(over|choose)(?![a-zA-Z])([^{}]*)\}")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_SIGNS = str.maketrans(
    {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}  # the wide forms of ASCII, as in Chinese
    | {
        "−": "-", "–": "-", "—": "-", "×": "*", "⋅": "*", "·": "*", "∙": "*", "⁄": "/", "\u00a0": " ", "\u2009": " ",
        "\u202f": " ", "π": "\\pi ", "∞": "\\infty ", "√": "\\sqrt ", "∛": "\\sqrt[3]", "±": "\\pm ", "∓": "\\mp ",
        "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∅": "\\emptyset ",
        "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℚ": "\\mathbb{Q}", "ℕ": "\\mathbb{N}", "⟨": "\\langle ",
        "⟩": "\\rangle ", "…": "\\ldots ", "°": "^\\circ ", "÷": "\\div ", "∨": "\\lor ", "∧": "\\land ", "\u200b": "",
        "✕": "*", "∗": "*", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "～": "-",
        "。": ". ", "、": ", ",
    }
)  # fmt: skip
_LONG_UNITS = "|".join(sorted((u for u in _KNOWN_UNITS if len(u) > 1 and " " not in u), reverse=True))
_NAMED = (
    rf"(?:(?:square|cubic|sq\.?|cu\.?)\s+)?(?:(?!in\b)(?:{_LONG_UNITS})(?:e?s)?|[msghl])(?![a-z])"
    r"(?:\s*(?:\^|\*\*)\s*\{?[-+]?\d\}?(?!\d)|\s(?:squared|cubed)\b)?"
)
_UNITS = rf"(?:(?:[/*]|per\s)\s*)?{_NAMED}(?:(?:\s*[/*]\s*|\sper\s|[-\s]){_NAMED}){{0,3}}"
_SIGN = r"(?:(?:(?<=[\x01=({])|(?<=[\x01=({]\s))[-+]\s*|[-+](?=\S))"
_QUANTITY = (
    rf"(?:{_SIGN}\x01?)?(?:{_MONEY}\s*[-+]?\s*)?{re.sub('[?]P<[a-z]+>', '?:', _VALUE)}{_ORDINAL}?"
    rf"(?:[\x01\s]*(?:{'|'.join(_SCALES)})s?\b)*(?:[\x01\s]*(?:{_PERCENT}|{_UNITS}|{_MONEY}))?(?!\w)"
)
_LETTER = r"(?<![a-z\\])(?!(?:a|i) [a-z]{2})[a-z](?![a-z])"
_COMMAND = (
    r"(?:\\(?:[dtc]?frac|[dt]?binom|sqrt|overline|ln|log|lg|sin|cos|tan|exp|pi|abs|norm|floor|ceil|max|min|gcd|lcm)"
    r"|(?<![a-z\\])(?:sqrt|log|ln|lg|sin|cos|tan|exp|pi|(?:floor|ceil|round|abs|int|max|min|gcd|lcm)(?=\s?\()))(?![a-z])"
)
_RELATION = r"(?:[<>]=?|\\(?:le|ge|lt|gt|ne)(?:q|q?slant)?(?![a-z]))"
_ONE_INSIDE = rf"(?:[^()\[\]{{}}a-z\\]|{_COMMAND}|{_LETTER})"
_INSIDE = f"{_ONE_INSIDE}*"
_GROUP = (
    rf"(?:[(\[{{]{_INSIDE}(?:[(\[{{]{_INSIDE}[)\]}}]{_INSIDE})*[)\]}}]"
    rf"|\|(?:(?!\|){_ONE_INSIDE}|[(\[{{]{_INSIDE}[)\]}}])+\||\\l(?:floor|ceil)\b{_INSIDE}\\r(?:floor|ceil)\b)"
)
_WORDS_BEFORE = (
    r"(?:not|never|cannot|[a-z]+n['’]t)(?:\s(?:be|an?|the|number|value|equal|to|just|exactly|really)){0,3}|than"
    r"|(?:than|greater|less|larger|smaller) or equal(?: to)?|up to|different from|unequal to|except(?: for)?"
    r"|(?:any|every|all)\w* but|instead of|at (?:least|most)|over|under|above|below|beyond|within|exceed(?:s|ing)?"
    r"|divi(?:ded|sible) by|twice|double|triple|(?:half|third|quarter|roots?|squares?|cubes?|absolute value"
    r"|reciprocal|inverse|opposite|negative|logarithm|factorial|multiples?|(?<!by a )factors?|(?:one|two|three) out) of"
    r"|(?:one|two|three|four|five|six|seven|eight|nine|ten) (?:in(?: every)?|to)"
)
_WORDS_BETWEEN = (
    r",?\s+\(?or\s+\x01?(?:[a-z]\s*=\s*)?|\s+\(?(?:to|and|in|per|by|vs?\.?|versus|(?:out )?of|nor|through|thru|until"
    r"|up to|added to|subtracted from|multiplied by|(?:with )?(?:an? )?rem(?:ainder|\.)(?: of)?)\s+\x01?"
)
_WORDS_BEHIND = (
    r"at (?:least|most)|squared|cubed|factorial|halves|thirds|(?:ten|hundred|thousand)ths"
    r"|(?:or|and) (?:more|less|fewer|above|over|up|below|under|(?:high|low|great|larg|small)er)"
)
"""Words that make of a number, or of two numbers, a bound, a ratio, a range or arithmetic."""
_NO_VALUE = rf"\\(?:pm|mp)\s*|(?<![-=]){_RELATION}\s*|between\s.{{1,40}}?\sand\s+|(?:{_WORDS_BEFORE})\s+\x01?"
_EXPONENT = rf"(?:\s?\^\s?|\*\*|_)(?:[-+]?[\w.]+|{_GROUP}|\\[a-z]+)"
_TERM = (
    rf"(?:{_QUANTITY}|\d(?:[\w.,]*\w)?|{_COMMAND}(?:{_EXPONENT})*\s?|{_LETTER}|{_GROUP})(?:{_EXPONENT})*"
    r"(?:!(?=\s*[\x01)*/]))?"
)
_OPERATOR = (
    r"\s*(?:\*\*?|\.\.+(?=\d)|[-+/≈]|\\(?:div|pm|approx)(?![a-z])|(?<=\d):(?=\d))\s*|(?<=\d)\sx\s(?=\d)"
    r"|\s(?:times|over|divided by|choose)\s|\s?(?:\\p?b?|[(\s]\s?)mod(?:ulo)?(?![a-z])\s?"
    rf"|\s*{_RELATION}\s*|(?<=[\d)%}}])\x01?(?:{_WORDS_BETWEEN})(?=[$\d(.\\-])"
    r"|\s(?:raised )?to the (?:power (?:of )?)?"
)
_OPEN_END = rf"(?:\s(?:{_WORDS_BEHIND})\b|(?<=\d)\+(?=\s[a-z]{{2}}|\W*\Z))"
_CHANGE = re.compile(
    r"\b((?:(?:from|(?:round|reduc|simplif|convert|chang|increas|decreas)\w*)\s[^;:]{0,40}?|(?:add|sum|total|com)\w*\sup)"
    r"\s)to\b",
    re.IGNORECASE,
)
"""From 3 to 2 is a change, and 2 is its end; 3 to 2 is a ratio or a range. What adds up to 2 is 2, and no bound."""
_RUN = re.compile(
    rf"{_EXPONENT}|(?P<run>(?<![\w^_])(?<!\d[.,])(?:[-+](?=[(\\])|{_NO_VALUE})?"
    rf"{_TERM}(?:(?:{_OPERATOR}|\s(?=\\|pi\b|[xyzni](?![\w'-])))?{_TERM})*{_OPEN_END}?)",
    re.IGNORECASE | re.ASCII,
)
_ONLY = re.compile(
    r"(?:\bno(?:ne|thing|t)?|\bnever|\bcannot|n['’]t)\s(?:[a-z]+\s){0,3}?"
    r"(?:but|except(?: for)?|(?:other|else)(?: [a-z]+)? than)\s(?=\S*\d)",
    re.IGNORECASE,
)
"""A denial of all others, or of any other, leaves one: nothing but 7, and no number other than 7, is 7."""
_ALONE = re.compile(r"\A\s*[-−–] (?=(?:[^a-z]|\\[a-z]+)*\Z)", re.IGNORECASE)
_DIGIT = re.compile("[\\d∛¼-¾⅐-⅞⁰¹²³⁴-⁹]")
"""What a line with a number has; the other patterns take a hundred times as long."""
_SIGN_APART = re.compile(r"((?:\b(?:is|are|be|equals)|[:=])[\s*_]*\s)[-−] (?=[\d.$\\])", re.IGNORECASE)
_STEP = 1000
"""Characters of a line that are searched at once: it bounds the time of the pattern."""
_TEXT = r"\\text\{[^{}]*(?:\^\{-?\d\}[^{}]*)*\}(?:\s*\^\{-?[1-9]\})?"
_BEHIND = re.compile(
    rf"(?P<value>.*?[^\s(\[{{,=])\s*(?:(?P<circ>\^\{{\s*\\circ\s*\}})|(?P<unit>{_TEXT}(?:\s*/?\s*{_TEXT})*"
    rf"|(?<![a-zA-Z\\])(?:(?:square|cubic)\s+)?(?:{_LONG_UNITS})s?(?:\s*\^\{{[23]\}})?))"
)


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
        units = {self.unit, other.unit} - {""}
        if len(units) > 1 or (units and self.percent != other.percent):
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
        text = _VULGAR.sub(lambda m: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", m[0]).split("⁄")), text)
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text).translate(_SIGNS)
        text = re.sub(r"(\d)[\u0304\u0305]", r"\\overline{\1}", text).replace("}\\overline{", "")
        text = re.sub(r"\\sqrt\s*(\[3\])?\s*(\d+(?:\.\d+)?)", r"\\sqrt\1{\2}", text)
    text = text.replace("{,}", "").replace("+/-", "\\pm ")  # thousands
    text = _FROM_TO.sub("..", _EXACT.sub("", text))
    for _ in range(text.count("{{", 0, MAX_CHARS) and 3):
        text = _DOUBLE.sub(r"{\1}", text)
    text = _SCALED.sub(" ", _CODE.sub(lambda m: _CODES[m[1].lower().strip(".").replace("\\", "")], text))
    text = re.sub(r"<(su[pb])>([^<>]*)</\1>", lambda m: ("^{" if m[1] == "sup" else "_{") + m[2] + "}", text)
    text = _TAG.sub(r"\1", text)
    if "\\" in text or "~" in text:
        text = _COLOR.sub("", text).replace(",\\!", "")  # thousands
        text = _SIZES.sub(lambda m: m[0] if m[0] == "\\\\" else "", text)
        text = _SPACES.sub(lambda m: m[0][:2] if m[0].startswith("\\\\") else " ", text)
        text = _OVER.sub(lambda m: f"\\{'frac' if m[2] == 'over' else 'binom'}{{{m[1]}}}{{{m[3]}}}", text)
    text = _LABEL.sub(lambda m: m[1] if m[1] and not m[2] else "", " ".join(text.split()))
    text = _EMPHASIS.sub(r"\2", text.replace("`", " ").strip())
    return _SIGN_WORDS.sub(lambda m: "-" if m[1].lower() in ("minus", "negative") else "+", text)


def without_separators(text: str) -> str:
    """Remove thousands separators, if a text has no brackets: in (3,400) a comma separates, in 3,400 it does not."""
    return text if re.search(r"[(\[{]", text) else _GROUPED.sub(lambda m: m[0].replace(",", ""), text)


def exact_decimals(text: str) -> str:
    """Write decimals as fractions, so that 3.141593 is an exact number and not a rounded pi.

    >>> exact_decimals(r"1.5x + 0.\\overline{3}")
    '\\frac{15}{10}x + \\frac{3}{9}'
    """
    text = _recurring_as(text, "\\frac{{{}}}{{{}}}")
    return _DECIMALS.sub(lambda m: f"\\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}", text)


def _recurring_as(text: str, form: str) -> str:
    """Write recurring decimals as fractions: 0.1(6), and 0.166... if the digits before the dots end in a repetition."""
    for pattern in (_RECURRING, _DOTTED) if "." in text else ():
        text = pattern.sub(lambda m: form.format(*_recurring(m)), text)
    return text


def _recurring(match: re.Match[str]) -> tuple[int, int]:
    """Return numerator and denominator of a recurring decimal: 0.1(6) is 15/90."""
    block = re.sub(r"\D", "", next(group for group in match.groups()[2:] if group))
    start = match[1] + match[2]
    bottom = 10 ** len(match[2]) * (10 ** len(block) - 1)
    return int(start + block) - int(start or 0), bottom


def parse_number(text: str, *, loose: bool = False) -> Number | None:
    """Parse a text that is one number, with an optional name before it ("x = ") and a unit after it; else None.

    Args:
        loose: one letter behind a number may be a unit (5h); for answers to targets that are numbers.

    >>> parse_number(r"\\frac{3}{4}"), parse_number("3 or 4")
    (Number(value=Fraction(3, 4), unit='', percent=False), None)
    """
    return _parse(text, loose) if len(text) <= MAX_CHARS else None


@functools.lru_cache(maxsize=1024)
def _parse(text: str, loose: bool) -> Number | None:
    if _SIMPLE.fullmatch(text):  # ten times as fast
        return Number(value=Fraction(text))
    text = " ".join(_flat(text).replace("\x01", " ").split()).removesuffix(".").strip()
    parts = re.sub(r",? \(?or ([^(),]*)\)?", r" or \1", text).split(" or ")
    if len(parts) > 1:  # 3/4 or 0.75 is one number
        numbers = [_parse(part, loose) for part in parts]
        return numbers[0] if all(n and numbers[0] and numbers[0].equals(n) for n in numbers) else None
    text = _QUOTED.sub(r"\1\2\3", text)
    text, negative = _LEAD.sub("", text, count=1), False
    while match := _BRACKETS.fullmatch(text):
        negative ^= match[1] == "-"
        text = ((match[2] if match[2] is not None else match[3]) + match[4]).strip()
    match = _NUMBER.fullmatch(re.sub(rf"(?<=\d){_ORDINAL}$", "", text))
    if match is None or (match["sign"] and match["inner"]):
        return None
    rest, is_attached, value = match["rest"], text[match.start("rest") - 1] != " ", _value(match)
    if is_attached and (letter := _LETTER_SCALE.match(rest)) and (match["money"] or (loose and letter[1] != "m")):
        rest, is_attached, value = rest[letter.end() :], False, value and value * _LETTER_SCALES[letter[1]]
    behind = unit_of(rest, is_attached=is_attached, loose=loose)
    if behind is None or value is None:
        return None
    name, scale, percent = behind
    negative ^= (match["sign"] or match["inner"]) == "-"
    value *= -scale if negative else scale
    unit = " ".join(sorted({*name.split(), *filter(None, [_CURRENCIES.get(match["money"], "")])}))
    return Number(value=value, unit=unit, percent=percent)


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a matched number; None for a division by zero and for an exponent that is too large."""
    exponents = [int(match[name] or 0) for name in ("exponent", "power", "factor")]
    if max(map(abs, exponents)) > _MAX_EXPONENT:
        return None
    top, bottom = (match["part"] or f"{match['top'] or 1}/{match['bottom'] or 1}").split("/")
    top, bottom = (Fraction(re.sub("[ ,]", "", part)) for part in (top, bottom))
    if bottom == 0:
        return None
    return int(match["whole"] or 0) + top / bottom * Fraction(10) ** sum(exponents)


def without_unit(text: str) -> tuple[str, str]:
    """Split a formula in normal form into its value and the unit behind it; "" when there is none."""
    match = _BEHIND.fullmatch(text)
    if match is None:
        return text, ""
    words = "degree" if match["circ"] else re.sub(r"\\text\{((?:[^{}]|\{-?\d\})*)\}", r" \1 ", match["unit"]).strip()
    unit = unit_of(words, is_attached=False)
    return (match["value"], unit[0]) if unit is not None and unit[1] == 1 and unit[0] else (text, "")


def unit_of(text: str, *, is_attached: bool, loose: bool = False) -> tuple[str, int, bool] | None:
    """Parse the text after a number as (unit, factor, percent); None when it is not a unit.

    A unit is a product of powers of its words in one order: m/s^2 and m s^-2 are "meter second^-2". Letters directly
    after a number must be a known unit: 5km has a unit, 5x and 5xy are algebra.
    """
    if re.fullmatch(_PERCENT, text, re.IGNORECASE):
        return "", 1, True
    if text in _CURRENCIES:
        return _CURRENCIES[text], 1, False
    text = re.sub(r"/\s*\(([^()/]*)\)", lambda m: "/" + "/".join(re.split(r"[*\s]+", m[1].strip())), text)
    exponents, factor, direction, power_word, last = Counter[str](), 1, 1, "", ""
    place = 0
    while place < len(text):
        match = _UNIT.match(text, place)
        if match is None or len(exponents) > 4:
            return None
        word = (match["word"] or "").lower()
        if match["join"]:
            if direction < 0 or (match["join"] in "*-" and not exponents):
                return None
            direction = 1 if match["join"] in "*-" else -1
        elif place == 0 and is_attached and not _may_be_attached(match["word"], loose):
            return None
        elif not exponents and direction > 0 and word.removesuffix("s") in _SCALES:
            factor *= _SCALES[word.removesuffix("s")]
        elif word in _POWERS:
            power_word = word
        elif last and word in _POWERS_BEHIND:
            exponents[last] *= _POWERS_BEHIND[word]
        elif word in _NO_UNITS or (len(word) == 1 and match["word"] not in _LETTERS):
            return None
        else:
            power = direction * _POWERS.get(power_word, 1) * int(match["power"] or 1)
            for part in _base(word).split():
                last, _, exponent = part.partition("^")
                exponents[last] += power * int(exponent or 1)
            direction, power_word = 1, ""
        place = match.end()
    if direction < 0:
        return None
    if power_word:
        exponents[power_word] += 1
    return " ".join(sorted(f"{b}^{e}" if e != 1 else b for b, e in exponents.items() if e)), factor, False


def _may_be_attached(word: str, loose: bool) -> bool:
    return (loose and word in _ONE_LETTER) if len(word) == 1 else _base(word) in _KNOWN_UNITS


def _base(word: str) -> str:
    word = word.lower()
    word = word.rstrip("s") if len(word) > 2 else word
    return _UNIT_ALIASES.get(word, word)


def _flat(text: str) -> str:
    """Write the numbers of a text in plain signs; \x01 stands for the mark of a formula, \x02 for a dollar."""
    text = plain(text)
    if "\\" in text or "$" in text:
        text = re.sub(r"\\[()\[\]]", "\x01", text.replace("\\$", "\x02"))
        text = _FORMULA.sub("\x01\\2\x01", text)
        text = re.sub(r"([\^_])\s*\{\s*([-+]?\d{1,4})\s*\}", r"\1\2", text, flags=re.ASCII)
        text = _FORMAT.sub(r" \1 ", text).replace("\\%", "%")
        text = re.sub(r"\^?\s*\{?\s*\\(?:circ|degree)(?![a-zA-Z])\s*\}?", " degree ", text)
        text = _UNIT_FRACTION.sub(r"\1/\2", text)
        text = re.sub(r"(?<=[\d ])\{\s*([a-zA-Z /*^\d-]*[a-zA-Z])\s*\}", r" \1 ", text)  # {\rm cm}
        text = re.sub(r"\\(?:times|cdot)(?![a-zA-Z])", "*", text)
        text = re.sub(r"\\(?:(?:[lr]?[vV]ert|mid)(?![a-zA-Z])\s*|\|)", "|", text)
    text = _AND_A_PART.sub(lambda m: _PARTS[m[1].lower()], _CITATION.sub("", text))
    text = re.sub(r"(?:\\mu\s|[µμ])\s*(?=[a-zA-Z])", " micro ", re.sub(r"(?<=[\d ])(?:\\Omega|Ω)", " ohm", text))
    text = re.sub(r"(?<=\d)\s*(?:[xX*]|\\ast)\s*(?:10|\{\s*10\s*\})\s*(?=\^|\*\*)", "*10", text)
    return _LATEX_FRACTION.sub(_as_quotient, _recurring_as(text, "{}/{}"))


def _as_quotient(match: re.Match[str]) -> str:
    needs_brackets = match.string[match.start() - 1 : match.start()] in ("-", "+", "(", "\x01")
    quotient = f"{match[1] or match[2]}/{match[3] or match[4]}"
    return f" {quotient}" if not needs_brackets else f"({quotient})" if quotient[0] in "+-" else quotient


def last_number(text: str) -> str | None:
    """Return the last number of a text, or the arithmetic that ends in it, in plain signs.

    A number that is a part of a power, an index or a sum is not a number: of "it is 2^3" all of 2^3 is returned.

    >>> last_number(r"An area of $12\text{ cm}^2$."), last_number("x^2 is 2^3")
    ('12 cm ^2', '2^3')
    """
    return next(iter(_runs(text)), None)


def values(text: str) -> list[Fraction | None]:
    """The values of the numbers of a text, the last one first; None stands for arithmetic, a range, and the like.

    >>> values("5 km = 5"), values("2 * 5 = 10"), values("5 or 6")
    ([Fraction(5, 1), Fraction(5, 1)], [Fraction(10, 1), None], [None])
    """
    numbers = [parse_number(text, loose=True)]
    if numbers[0] is None:
        numbers = [parse_number(run, loose=True) for run in _runs(text)]
    return [number.value if number else None for number in numbers]


def _runs(text: str) -> Iterator[str]:
    """The numbers of a text, and the arithmetic that has some, the last one first."""
    lines = text.splitlines()
    items = sum(line.lstrip().startswith("- ") for line in lines)
    for line in reversed(lines):
        if not _DIGIT.search(line):
            continue
        row = line.strip()
        if row[:1] == row[-1:] == "|" and (row.count("|") > 2 or row[1:2] == " "):
            line = line.replace("|", ";")  # the bars of a table are not absolute values
        elif items < 2:  # the item of a list has siblings, or words
            line = _SIGN_APART.sub(r"\1-", _ALONE.sub("-", line))
        for end in range(len(line), 0, -_STEP):
            start = max(0, end - 2 * _STEP)
            if not _DIGIT.search(line, start, end):
                continue
            part = _ONLY.sub(" ", _SUM_OF_UNITS.sub(r"\1+", _flat(line[start:end])))
            part = _CHANGE.sub(r"\1into", part)
            matches = _RUN.finditer(part.replace("\\{", "{").replace("\\}", "}"))
            runs = [match["run"] for match in matches if match["run"] and (match.start() or not start)]
            for run in reversed(runs):
                if re.search(r"\d", re.sub(_EXPONENT, "", run, flags=re.IGNORECASE)):
                    yield " ".join(run.replace("\x01", " ").split()).removesuffix(".")
