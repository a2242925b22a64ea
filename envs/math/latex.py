"""One normal form of a formula: the LaTeX that math-verify's grammar reads, from LaTeX and from plain spellings.

`2*sqrt(3)`, `2\\sqrt3` and `2 √3` are one text afterwards. Nothing is evaluated here.
"""

from __future__ import annotations

import re

from envs.math.numerals import exact_decimals, plain, unit_of

_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|exp|gcd|lcm|max|min|det"
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|pi|rho|sigma|tau|upsilon|phi|chi|psi|omega"
)
_NAMES = {name: f"\\{name} " for name in (_FUNCTIONS + "|" + _GREEK).split("|")}
_NAMES |= {
    name.capitalize(): f"\\{name.capitalize()} "
    for name in ["gamma", "delta", "theta", "lambda", "sigma", "phi", "psi", "omega"]
}
_NAMES |= dict.fromkeys(("inf", "Inf", "infinity", "Infinity", "infty", "oo"), "\\infty ") | {"Pi": "\\pi "}
_NAMES |= {name: f"\\arc{name[1:]} " for name in ("asin", "acos", "atan")} | {"lg": "\\log "}
_COMMANDS = {
    "\\emptyset": "\\emptyset ", "\\varnothing": "\\emptyset ", "\\leq": "\\le ", "\\geq": "\\ge ", "\\neq": "\\ne ",
    "\\leqslant": "\\le ", "\\geqslant": "\\ge ", "\\lt": "<", "\\gt": ">", "\\dfrac": "\\frac", "\\tfrac": "\\frac",
    "\\cfrac": "\\frac", "\\nicefrac": "\\frac", "\\sfrac": "\\frac", "\\lvert": "|", "\\rvert": "|", "\\vert": "|",
    "\\mid": "|", "\\lbrace": "\\{", "\\rbrace": "\\}", "\\lbrack": "[", "\\rbrack": "]", "\\lparen": "(",
    "\\rparen": ")", "\\times": "\\cdot ", "\\ast": "\\cdot ", "\\Reals": "\\mathbb{R}", "\\R": "\\mathbb{R}",
    "\\dbinom": "\\binom", "\\tbinom": "\\binom", "\\lor": " or ", "\\vee": " or ", "\\land": " and ",
    "\\wedge": " and ", "\\imath": "i", "\\jmath": "j", "\\cr": "\\\\", "\\lg": "\\log ", "\\colon": ":",
    "\\to": "\\to ", "\\rightarrow": "\\to ",
}  # fmt: skip
_PLAIN = {"**": "^", "<=": "\\le ", ">=": "\\ge ", "!=": "\\ne ", "*": "\\cdot "}
_FORMAT = re.compile(
    r"\\(?:text(?:rm|bf|it|normal)?|math(?:rm|bf|it|sf|normal|cal)|mbox|boldsymbol|bm|operatorname\*?|hat|vec)"
    r"\s*(?:\{\s*([^{}]*?(?:\^\{-?\d\}[^{}]*?)*)\s*\}|([a-zA-Z0-9]))"
)
_ACCENT = re.compile(r"\\(?:hat|vec)\b")
_TOKEN = re.compile(
    r"\\text\{[^{}]*\}|\\(?:begin|end)\{[a-zA-Z*]+\}(?:\{[lcr|\s]*\})?|\\\\|\\[a-zA-Z]+|\\.|\*\*|[<>!]=|[a-zA-Z]+|.",
    re.DOTALL,
)
_CALLS = {"sqrt": "\\sqrt{%s}", "cbrt": "\\sqrt[3]{%s}", "exp": "e^{%s}", "abs": "|%s|", "log2": "\\log_{2}{(%s)}",
          "log10": "\\log_{10}{(%s)}"}  # fmt: skip
_CALL = re.compile(r"(?<![a-zA-Z])\\?(sqrt|cbrt|exp|abs|log2|log10)\s*(?=\()")
_ARGUMENTS = {"\\frac": 2, "\\binom": 2, "\\sqrt": 1}
_ARGUMENT = re.compile(r"\\(?:frac|binom|sqrt)(?![a-zA-Z])|[\^_]")
_POWER = re.compile(r"[-+]?\s*(?:\d+(?:\.\d+)?|\\[a-zA-Z]+|[a-zA-Z])")
_SINGLE = re.compile(r"\d|\\[a-zA-Z]+|[a-zA-Z]")
_INDEX = re.compile(r"(?<=[a-zA-Z]_)(?<!log_)\d+|\d+(?=[\s(])|" + _SINGLE.pattern)
_MIXED = re.compile(r"(?<![\d.])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}")
_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_OPEN, _CLOSE = "([{", ")]}"
_OPENING = frozenset({"\\{", "\\langle", *_OPEN})
_CLOSING = frozenset({"\\}", "\\rangle", *_CLOSE})


def normal(text: str) -> str:
    """Write a formula in the normal form.

    >>> normal("(1 + sqrt(5))/2"), normal("e^-x"), normal(r"\\dfrac12")
    ('(1 + \\\\sqrt{5})/2', 'e^{-x}', '\\\\frac{1}{2}')
    """
    text = plain(text).strip("$ ").removesuffix(".").strip("$ ")
    for _ in range(2):  # \\hat{\\mathbf{i}}
        text = _FORMAT.sub(_drop_format, text)
    text = re.sub(r"\\mathbb\s+([A-Z])", r"\\mathbb{\1}", text)
    text = re.sub(r"(?<![\w)}])(?<![\w)}] )<([^<>=]*,[^<>=]*)>", r"\\langle \1\\rangle ", text)
    text = re.sub(r"(?<=[)\]}])\s*U\s*(?=[(\[{\\])", r"\\cup ", text)
    # Write `sqrt(x)`, `exp(x)`, ... as LaTeX, from the last to the first, so that they may be nested.
    for match in reversed(list(_CALL.finditer(text))):
        end = _closing(text, match.end())
        if end > 0:
            text = text[: match.start()] + _CALLS[match[1]] % text[match.end() + 1 : end] + text[end + 1 :]
    text = "".join(_token(token) for token in _TOKEN.findall(text))
    text = _arguments(text)
    text = re.sub(r"\\(sin|cos|tan|cot|sec|csc)\s*\^\{\s*-1\s*\}", r"\\arc\1 ", text)
    # the grammar reads 3/2 x as 3 over 2x, but a coefficient is meant
    text = re.sub(r"(?<![\w.^}])(\d+)/(\d+)\s+(?=[a-zA-Z(\\])", r"\\frac{\1}{\2}", text)
    # and it adds two numbers that stand side by side, as in mixed numbers: 2(3) would be 5
    text = re.sub(r"(?<=[\d)])\s*(?=\()|(?<=\))\s*(?=\d|\\frac)", r"\\cdot ", text)
    text = _MIXED.sub(_as_fraction, text)
    if _ANGLES.search(text):
        text = re.sub(r"(\d+)\s*\^\{\s*\\circ\s*\}", r"\\frac{\1\\pi}{180}", text)
    return " ".join(exact_decimals(text).split())


def split(text: str, separators: frozenset[str]) -> list[str]:
    """Split a formula at separators, tokens such as `,` or `\\cup`, that stand in no brackets."""
    parts = [""]
    for token, depth in _depths(text):
        if token in separators and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def inside_brackets(text: str) -> tuple[str, str, str] | None:
    """Return the first bracket, what is in it, and the bracket that closes it, when that is all; else None."""
    tokens = list(_depths(text))
    if len(tokens) < 2 or tokens[0][0] not in _OPENING or tokens[-1][0] not in _CLOSING:
        return None
    if any(depth < 1 for _, depth in tokens[:-1]):
        return None
    return tokens[0][0], "".join(token for token, _ in tokens[1:-1]).strip(), tokens[-1][0]


def _depths(text: str) -> list[tuple[str, int]]:
    """Return the tokens, each with the number of brackets that are open after it."""
    depth, tokens = 0, []
    for token in _TOKEN.findall(text):
        depth += token in _OPENING or token.startswith("\\begin")
        depth -= token in _CLOSING or token.startswith("\\end")
        tokens.append((token, depth))
    return tokens


def _drop_format(match: re.Match[str]) -> str:
    """Drop the type of letters and of names that mean something; keep other words as `\\\\text{}`."""
    content = match[1] if match[1] is not None else match[2]
    if _ACCENT.match(match[0]):
        return content if content in ("i", "j", "k", "\\imath", "\\jmath") else match[0]
    word = content.strip(" ,")
    if word == "C" and match.string[: match.start()].rstrip().endswith("+"):
        return word  # a constant of integration, and no unit
    if word in ("or", "and"):
        return f" {word} "
    if (
        word in _NAMES
        or word in ("", "e", "i", "d")
        or (re.search(r"\d|\\", word) and unit_of(word, is_attached=False) is None)
        or (len(word) == 1 and not match[0].startswith(("\\text", "\\mathrm", "\\mbox")))
    ):
        return f" {content} " if len(content) > 1 else content
    return f"\\text{{{content}}}"


def _as_fraction(match: re.Match[str]) -> str:
    """Write a mixed number as a fraction: the grammar takes 1\\frac12\\pi for half of pi."""
    whole, top, bottom = map(int, match.groups())
    if top < bottom:
        return f"\\frac{{{whole * bottom + top}}}{{{bottom}}}"
    return f"{whole}\\cdot \\frac{{{top}}}{{{bottom}}}"


def _token(token: str) -> str:
    if token.startswith("\\"):
        return _COMMANDS.get(token, token)
    if token == "sqrt":
        return "\\sqrt "
    return _NAMES.get(token) or _PLAIN.get(token) or token


def _closing(text: str, start: int) -> int:
    """Return the place of the bracket that closes the one at `start`; -1 when none does."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in _OPEN) - (text[place] in _CLOSE)
        if depth == 0:
            return place
    return -1


def _arguments(text: str) -> str:
    """Put the arguments of fractions, roots, powers and indices into braces."""
    place = 0
    while match := _ARGUMENT.search(text, place):
        place = match.end()
        for _ in range(_ARGUMENTS.get(match[0], 1)):
            place += len(text[place:]) - len(text[place:].lstrip())
            if match[0] == "\\sqrt" and text[place : place + 1] == "[":
                place = _closing(text, place) + 1 or len(text)
            if text[place : place + 1] == "{":
                if match[0] in _ARGUMENTS:  # what is in it is read when the search goes on
                    end = _closing(text, place) + 1
                    if end == 0:
                        return text
                    inner = _arguments(text[place + 1 : end - 1])
                    text = f"{text[:place]}{{{inner}}}{text[end:]}"
                    place += len(inner) + 2
                continue
            if match[0] == "^" and text[place : place + 1] == "(" and (end := _closing(text, place)) > 0:
                text = f"{text[:place]}{{{text[place + 1 : end]}}}{text[end + 1 :]}"
                continue
            pattern = _POWER if match[0] == "^" else _INDEX if match[0] == "_" else _SINGLE
            single = pattern.match(text, place)
            if single is None:
                break
            text = f"{text[:place]}{{{single[0]}}}{text[single.end() :]}"
            place += len(single[0]) + 2
    return text
