"""The word problems of the math environment, and how each is solved from its text.

Level 0 has stories of one to three steps with small numbers, for models that speak and hardly calculate. Level 2 has
stories of two steps and three operations, level 3 percentages, fractions and rates with exact answers, level 4 algebra
whose answer is a number, a pair, a set, an interval or an expression. Level 1 is in envs/math/env.py.
"""

from __future__ import annotations

import functools
import math
import operator
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from envs.task_splits import draw_tasks
from forge_env.core.types import Message, Task

Content = tuple[str, tuple[int, ...], *tuple[str, ...]]  # name of the story, its numbers and words in the text's order


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A text with the numbers {0}, {1}, .. in this order, and the answer as a function of them.

    Words of the text that change nothing, such as {name}, are drawn from `WORDS`.
    """

    text: str
    ranges: Sequence[tuple[int, int]]
    """From where the numbers are drawn, both ends included."""
    steps: tuple[str, ...] = ()
    """Expressions for a calculator; {r} is the result of the one before, and the last result the answer."""
    answer: Callable[..., str] | None = None
    """The answer of a story without steps."""
    fits: Callable[..., bool] = lambda *numbers: True
    """Whether drawn numbers make sense together."""
    change: Callable[..., tuple[int, ...]] = lambda *numbers: numbers
    """Converts the drawn numbers to those of the text, such as roots to coefficients."""

    def solve(self, *numbers: int) -> str:
        if self.answer is not None:
            return self.answer(*numbers)
        result = 0
        for step in self.steps:
            result = eval(step.format(*numbers, r=result))  # steps are of this file
        return str(result)

    @property
    def words(self) -> tuple[str, ...]:
        """The lists of `WORDS` that the text takes a word from."""
        return tuple(dict.fromkeys(re.findall(r"\{([a-z]+)\}", self.text)))

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the text with any numbers, each a group, and any words."""
        with_words = re.sub(r"\\\{[a-z]+\\\}", r"\\w+", re.escape(self.text))
        return re.compile(re.sub(r"\\\{\d\\\}", r"(-?\\d+)", with_words))


def tasks_of_level(level: int, split: str, *, count: int, seed: int) -> list[Task]:
    """Draw distinct tasks of level 0, 2, 3 or 4; held-out tasks are new in content, see `draw_tasks`.

    At level 0 the numbers of a held-out story are new, for other words alone would not be new content.
    """
    stories = STORIES[level]

    def draw(rng: random.Random) -> Content:
        while True:
            name = rng.choice(list(stories))
            numbers = tuple(rng.randint(low, high) for low, high in stories[name].ranges)
            if stories[name].fits(*numbers):
                words = (rng.choice(WORDS[kind]) for kind in stories[name].words)
                return name, stories[name].change(*numbers), *words

    def make(content: Content) -> Task:
        name, numbers, *words = content
        story = stories[name]
        metadata: dict[str, object] = {"operation": name, "constant": numbers[-1], "level": level}
        if level == 4:
            metadata["format"] = "boxed"
        question = story.text.format(*numbers, **dict(zip(story.words, words, strict=True)))
        prompt: Message = {"role": "user", "content": question}
        return Task(prompt=(prompt,), target=story.solve(*numbers), metadata=metadata, kind=name)

    return draw_tasks(
        split,
        count=count,
        seed=seed,
        draw=draw,
        pair=lambda c: (c[0], c[1] if level == 0 else c[1][-1]),
        make=make,
        by_pair_only=level == 0,
    )


def read_story(question: str) -> tuple[int, Story, tuple[int, ...]] | None:
    """Find the level, story and numbers of a question that `tasks_of_level` made; None for any other text."""
    for level, story, pattern in _patterns():
        match = pattern.fullmatch(question)
        if match:
            return level, story, tuple(int(number) for number in match.groups())
    return None


@functools.cache
def _patterns() -> list[tuple[int, Story, re.Pattern[str]]]:
    return [(level, story, story.pattern) for level, stories in STORIES.items() for story in stories.values()]


def _system(a: int, b: int, c: int, d: int, e: int, f: int) -> str:
    determinant = a * e - b * d
    return f"({Fraction(c * e - b * f, determinant)}, {Fraction(a * f - c * d, determinant)})"


def _roots(b: int, c: int) -> tuple[int, int]:
    """The two integer roots of x^2 + b x + c, in order."""
    root = math.isqrt(b * b - 4 * c)
    return (-b - root) // 2, (-b + root) // 2


def _coefficients(first: int, second: int) -> tuple[int, int]:
    return -(first + second), first * second


def _line(a: int, b: int, c: int, d: int) -> str:
    slope = Fraction(d - b, c - a)
    start = b - slope * a
    factor = {"1": "", "-1": "-"}.get(str(slope), _latex(slope))
    return f"{factor}x {'-' if start < 0 else '+'} {_latex(abs(start))}"


def _latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


WORDS = {
    kind: words.split()
    for kind, words in {
        "name": "Anna Ben Ella Hugo Leo Mia Nina Omar Paul Tom",
        "friend": "Emma Ivan Kate Lily Max Noah Ruth Sam Sara Zoe",
        "things": "apples balls books cards coins eggs keys marbles nuts pens shells stamps",
        "boxes": "bags baskets bowls boxes jars",
    }.items()
}
_FEW, _SMALL, _LARGE = (2, 9), (2, 19), (11, 99)
_SIGNED = (-12, 12)
_ROOTS = ((-40, 40), (-40, 40))

STORIES: dict[int, dict[str, Story]] = {
    0: {
        "find": Story(
            text="{name} has {0} {things} and finds {1} more. How many {things} does {name} have now?",
            ranges=((2, 60), (2, 40)),
            steps=("{0} + {1}",),
        ),
        "give": Story(
            text="{name} has {0} {things} and gives {1} of them to {friend}. How many {things} does {name} have left?",
            ranges=((2, 50), (2, 40)),
            steps=("{0} - {1}",),
            change=lambda rest, gift: (rest + gift, gift),
        ),
        "packs": Story(
            text="{name} has {0} {boxes} with {1} {things} in each. How many {things} does {name} have in all?",
            ranges=(_FEW, (3, 12)),
            steps=("{0} * {1}",),
        ),
        "parts": Story(
            text="{name} shares {0} {things} equally among {1} friends. How many {things} does each friend get?",
            ranges=((2, 12), _FEW),
            steps=("{0} // {1}",),
            change=lambda part, friends: (part * friends, friends),
        ),
        "lose": Story(
            text="{name} has {0} {things}. {friend} gives {name} {1} more, and then {name} loses {2}. "
            "How many {things} does {name} have now?",
            ranges=((5, 50), (5, 40), (10, 95)),
            steps=("{0} + {1}", "{r} - {2}"),
            change=lambda a, b, percent: (a, b, (a + b) * percent // 100),
        ),
        "gift": Story(
            text="{name} buys {0} {boxes} of {1} {things} each, and {friend} gives {name} {2} more {things}. "
            "How many {things} does {name} have?",
            ranges=(_FEW, _FEW, _SMALL),
            steps=("{0} * {1}", "{r} + {2}"),
        ),
        "both": Story(
            text="{name} has {0} {things}. {friend} has {1} more {things} than {name}. "
            "How many {things} do they have together?",
            ranges=((5, 50), (2, 30)),
            steps=("{0} + {1}", "{r} + {0}"),
        ),
        "sell": Story(
            text="{name} fills {0} {boxes} with {1} {things} each and has {2} {things} besides. "
            "{name} then sells {3} {things}. How many {things} are left?",
            ranges=(_FEW, _FEW, _SMALL, (20, 95)),
            steps=("{0} * {1}", "{r} + {2}", "{r} - {3}"),
            change=lambda a, b, c, percent: (a, b, c, (a * b + c) * percent // 100),
        ),
    },
    2: {
        "stock": Story(
            text="A shop gets {0} boxes of {1} pens and {2} loose pens. Then {3} pens are sold. How many pens remain?",
            ranges=(_LARGE, _LARGE, _LARGE, _LARGE),
            steps=("{0} * {1}", "{r} + {2} - {3}"),
        ),
        "rows": Story(
            text="A hall has {0} rows of {1} seats, of which {2} are broken. The others are sold for {3} days. "
            "How many tickets are there?",
            ranges=(_LARGE, _LARGE, _LARGE, _SMALL),
            steps=("{0} * {1} - {2}", "{r} * {3}"),
        ),
        "shares": Story(
            text="There are {0} crates of {1} apples, shared equally among {2} shops. Each shop had {3} apples before. "
            "How many apples has each shop now?",
            ranges=(_LARGE, _LARGE, _SMALL, _LARGE),
            steps=("{0} * {1}", "{r} // {2} + {3}"),
            fits=lambda a, b, c, d: a * b % c == 0,
        ),
        "bags": Story(
            text="There are {0} red and {1} blue bags of {2} coins each. Then {3} coins are taken away. "
            "How many coins remain?",
            ranges=(_LARGE, _LARGE, _LARGE, _LARGE),
            steps=("{0} + {1}", "{r} * {2} - {3}"),
        ),
    },
    3: {
        "price": Story(
            text="A price of {0} euros rises by {1} percent and then falls by {2} percent. "
            "What is the price now, in euros?",
            ranges=((20, 900), (2, 60), (2, 60)),
            answer=lambda a, b, c: str(Fraction(a * (100 + b) * (100 - c), 10_000)),
        ),
        "pump": Story(
            text="A pump moves {0} litres in {1} minutes. How many litres does it move in {2} minutes? "
            "Give the exact number.",
            ranges=((20, 500), (7, 60), (7, 90)),
            answer=lambda a, b, c: str(Fraction(a * c, b)),
        ),
        "rest": Story(
            text="Of {0} litres of water, {1}/{2} is used, and then {3}/{4} of the rest. How many litres are left? "
            "Give the exact number.",
            ranges=((20, 500), (1, 8), (3, 9), (1, 8), (3, 9)),
            answer=lambda a, b, c, d, e: str(a * (1 - Fraction(b, c)) * (1 - Fraction(d, e))),
            fits=lambda a, b, c, d, e: b < c and d < e,
        ),
        "together": Story(
            text="One pipe fills a tank in {0} minutes and another in {1} minutes. "
            "How many minutes do both together take? Give the exact number.",
            ranges=((10, 200), (10, 200)),
            answer=lambda a, b: str(Fraction(a * b, a + b)),
        ),
        "speed": Story(
            text="A car drives to a town at {0} km/h and back at {1} km/h. What is its average speed in km/h? "
            "Give the exact number.",
            ranges=((20, 150), (20, 150)),
            answer=lambda a, b: str(Fraction(2 * a * b, a + b)),
        ),
    },
    4: {
        "linear": Story(
            text="Solve for x: {0}x + ({1}) = {2}x + ({3}). Give the exact number.",
            ranges=(_SMALL, _SIGNED, _SMALL, _SIGNED),
            answer=lambda a, b, c, d: str(Fraction(d - b, a - c)),
            fits=lambda a, b, c, d: a != c,
        ),
        "system": Story(
            text="Solve the system {0}x + ({1})y = {2}, {3}x + ({4})y = {5}. Give the pair (x, y).",
            ranges=(_SMALL, _SIGNED, _SIGNED, _SMALL, _SIGNED, _SIGNED),
            answer=_system,
            fits=lambda a, b, c, d, e, f: a * e != b * d,
        ),
        "quadratic": Story(
            text="Find all real x with x^2 + ({0})x + ({1}) = 0. Give the set of solutions.",
            ranges=_ROOTS,
            answer=lambda b, c: "\\{{{}, {}\\}}".format(*_roots(b, c)),
            fits=operator.lt,
            change=_coefficients,
        ),
        "between": Story(
            text="Find all real x with x^2 + ({0})x + ({1}) < 0. Give an interval.",
            ranges=_ROOTS,
            answer=lambda b, c: "({}, {})".format(*_roots(b, c)),
            fits=operator.lt,
            change=_coefficients,
        ),
        "outside": Story(
            text="Find all real x with x^2 + ({0})x + ({1}) >= 0. Give a union of two intervals.",
            ranges=_ROOTS,
            answer=lambda b, c: "(-\\infty, {}] \\cup [{}, \\infty)".format(*_roots(b, c)),
            fits=operator.lt,
            change=_coefficients,
        ),
        "line": Story(
            text="A line goes through ({0}, {1}) and ({2}, {3}). Give y as an expression in x.",
            ranges=(_SIGNED, _SIGNED, _SIGNED, _SIGNED),
            answer=_line,
            fits=lambda a, b, c, d: a != c and b != d,
        ),
    },
}
