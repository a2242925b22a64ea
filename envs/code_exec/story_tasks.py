"""The tasks of code_exec of levels 2 and 3: their text, the program that solves them, and the inputs of their tests.

Level 2 needs two values that only the python tool knows, out of the tables `t` of numbers and `w` of words. Level 3
needs no secret: lists with edge cases, and programs that read and print. Level 1 is in `env`,
level 4 in `file_tasks`.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from envs.task_splits import draw_tasks
from forge_env.core.types import Task

Content = tuple[str, tuple[int, ...]]  # name of the story, its numbers in the order of its text
Inputs = Callable[[random.Random, Sequence[int], Sequence[str]], list[Any]]
"""Makes the inputs of the tests from the numbers of the text and the values that were looked up."""

_SYSTEM = {2: "Only python knows t and w. Answer with code.", 3: "Try code with python. Answer with code."}
_READ_AND_PRINT = "\nimport sys\nprint(solve(sys.stdin.read()))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next message of the expert: code for the tool, or the answer."""

    code: str
    is_answer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A text with the numbers {0}, {1}, .. in this order, and the program that solves it."""

    text: str
    ranges: Sequence[tuple[int, int]] = ((5, 80), (2, 40))
    """From where the numbers are drawn, both ends included."""
    solution: str
    """Source of f(x), or of solve(text) -> text, with the numbers and, as {r[0]} and {r[1]}, the looked-up values."""
    inputs: Inputs
    """The first input is the example of the question, if there is one; the others are the hidden tests."""
    look: str = ""
    """Code for the tool that prints the values to look up."""
    program: bool = False
    """Whether the answer reads standard input and prints, or is a function f."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the text with any numbers, each a group, and whatever follows."""
        return re.compile(re.sub(r"\\\{\d\\\}", r"(\\d+)", re.escape(self.text)) + "(?:\n.*)?", re.DOTALL)

    def answer(self, numbers: Sequence[int], looked_up: Sequence[str]) -> str:
        source = self.solution.format(*numbers, r=[*looked_up, "0", "0"])  # zeros where the tool printed nothing
        return source + _READ_AND_PRINT if self.program else source

    def function(self, numbers: Sequence[int], looked_up: Sequence[str]) -> Callable[[Any], Any]:
        namespace: dict[str, Callable[[Any], Any]] = {}
        exec(self.solution.format(*numbers, r=looked_up), namespace)  # source and numbers are generated here
        return namespace["solve" if self.program else "f"]


def tasks_of_level(level: int, split: str, *, count: int, seed: int) -> list[Task]:
    stories = STORIES[level]

    def draw(rng: random.Random) -> Content:
        name = rng.choice(list(stories))
        return name, tuple(rng.randint(low, high) for low, high in stories[name].ranges)

    def make(content: Content) -> Task:
        return _make_task(level, stories[content[0]], content)

    return draw_tasks(split, count=count, seed=seed, draw=draw, pair=lambda c: (c[0], c[1][-1]), make=make)


def solve_story(question: str, results: Sequence[str]) -> Step | None:
    """Return the expert's next step in a task of level 2 or 3; None for any other question."""
    for story, pattern in _patterns():
        match = pattern.fullmatch(question)
        if match is None:
            continue
        numbers = [int(number) for number in match.groups()]
        if story.look and not results:
            return Step(code=story.look.format(*numbers))
        return Step(code=story.answer(numbers, results[-1].split() if results else []), is_answer=True)
    return None


@functools.cache
def _patterns() -> list[tuple[Story, re.Pattern[str]]]:
    return [(story, story.pattern) for stories in STORIES.values() for story in stories.values()]


def _make_task(level: int, story: Story, content: Content) -> Task:
    name, numbers = content
    rng = random.Random(repr(content))
    tables: dict[str, list[Any]] = {"t": [rng.randint(100, 999) for _ in range(100)], "w": _words(rng)}
    looked_up = [str(tables[table][int(index)]) for table, index in _LOOKED_UP.findall(story.look.format(*numbers))]
    solve = story.function(numbers, looked_up)
    example, *hidden = [(x, solve(x)) for x in story.inputs(rng, numbers, looked_up)]
    question = story.text.format(*numbers)
    if not story.look:
        question += _show(example, program=story.program)
    return Task(
        prompt=({"role": "user", "content": question},),
        target={"tests": [_test(*pair, program=story.program) for pair in hidden]},
        metadata={
            "level": level,
            "operation": name,
            "constant": numbers[-1],
            "system": _SYSTEM[level],
            "setup": "; ".join(f"{table} = {values!r}" for table, values in tables.items()) if story.look else "",
            "example": [] if story.look else list(map(str if story.program else repr, example)),
        },
        kind=name,
    )


_LOOKED_UP = re.compile(r"([tw])\[(\d+)\]")


def _show(example: tuple[Any, Any], *, program: bool) -> str:
    argument, result = example
    if program:
        return f"\nFor the input\n{argument}it prints\n{result}"
    return f"\nExample: f({argument!r}) is {result!r}."


def _test(argument: Any, result: Any, *, program: bool) -> dict[str, Any]:
    if program:
        return {"type": "stdin", "stdin": argument, "stdout": result}
    return {"type": "call", "function": "f", "args": repr(argument), "accepted": [repr(result)]}


def _words(rng: random.Random) -> list[str]:
    """Return a hundred words that are not English."""
    return ["".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2)) for _ in range(100)]


def _integers(rng: random.Random, numbers: Sequence[int], looked_up: Sequence[str]) -> list[Any]:
    return rng.sample(range(1000, 10_000), 4)


def _sentences(rng: random.Random, numbers: Sequence[int], looked_up: Sequence[str]) -> list[Any]:
    words = [*looked_up, *_words(rng)[:8]]
    return [" ".join(rng.choice(words) for _ in range(length)) for length in (3, 5, 9, 14)]


def _lists(rng: random.Random, numbers: Sequence[int], looked_up: Sequence[str]) -> list[Any]:
    """Return an example, then edge cases and random lists. Values are around the first number of the text."""
    high = 2 * numbers[0] + 5
    lists = [[rng.randint(0, high) for _ in range(length)] for length in (6, 1, 2, 17, 40, 120)]
    return [lists[0], [], *lists[1:], [high] * 9]


def _number_lines(rng: random.Random, numbers: Sequence[int], looked_up: Sequence[str]) -> list[Any]:
    lists = _lists(rng, numbers, looked_up)
    return ["\n".join(map(str, [len(values), *values])) + "\n" for values in lists]


def _texts(rng: random.Random, numbers: Sequence[int], looked_up: Sequence[str]) -> list[Any]:
    """Lines of words, empty ones among them, about as long as the numbers of the text are."""
    words = _words(rng)

    def line() -> str:
        return " ".join(rng.choice(words) for _ in range(rng.randint(0, 2 * numbers[0])))

    return ["".join(line() + "\n" for _ in range(count)) for count in (4, 0, 1, 9, 30)]


def _records(rng: random.Random, numbers: Sequence[int], looked_up: Sequence[str]) -> list[Any]:
    """Lines of a name and a number, with names that come again."""
    names = _words(rng)[:6]

    def line() -> str:
        return f"{rng.choice(names)} {rng.randint(-9, numbers[0])}"

    return ["".join(line() + "\n" for _ in range(count)) for count in (5, 0, 1, 12, 60)]


def _look_up(text: str, solution: str, inputs: Inputs) -> Story:
    places = ", ".join(re.findall(r"[tw]\[\{.\}\]", text))
    return Story(text=text, ranges=((0, 99), (0, 99)), look=f"print({places})", solution=solution, inputs=inputs)


STORIES: dict[int, dict[str, Story]] = {
    2: {
        "sum": _look_up("Write f(x): x times t[{0}] plus t[{1}].", "def f(x): return x * {r[0]} + {r[1]}", _integers),
        "rest": _look_up(
            "Write f(x): x times t[{0}] modulo t[{1}].", "def f(x): return x * {r[0]} % {r[1]}", _integers
        ),
        "frame": _look_up(
            "Write f(s): the text w[{0}], then s in capitals, then w[{1}].",
            "def f(s): return '{r[0]}' + s.upper() + '{r[1]}'",
            _sentences,
        ),
        "swap": _look_up(
            "Write f(s): the text s with each w[{0}] replaced by w[{1}].",
            "def f(s): return s.replace('{r[0]}', '{r[1]}')",
            _sentences,
        ),
        "join": _look_up(
            "Write f(s): the words of s joined by w[{0}] instead of spaces, then the number t[{1}].",
            "def f(s): return '{r[0]}'.join(s.split()) + '{r[1]}'",
            _sentences,
        ),
    },
    3: {
        "run": Story(
            text="Write f(xs) for a list xs of integers: the length of its longest run of neighbours that are all "
            "greater than {0} and not divisible by {1}; 0 when there is none.",
            solution="""def f(xs):
    best = run = 0
    for x in xs:
        run = run + 1 if x > {0} and x % {1} else 0
        best = max(best, run)
    return best""",
            inputs=_lists,
        ),
        "unique": Story(
            text="Write f(xs) for a list xs of integers: the list without numbers below {0}, each number only the "
            "first time it occurs, cut to its first {1} numbers.",
            solution="def f(xs): return list(dict.fromkeys(x for x in xs if x >= {0}))[:{1}]",
            inputs=_lists,
        ),
        "turn": Story(
            text="Write f(xs) for a list xs: turn it to the right by {0} places, so that its last number comes first "
            "after one place, and return its numbers at the indexes that are multiples of {1}.",
            solution="""def f(xs):
    places = {0} % len(xs) if xs else 0
    return (xs[len(xs) - places:] + xs[:len(xs) - places])[::{1}]""",
            inputs=_lists,
        ),
        "filter": Story(
            text="Write a program. It reads a line with a number n and then n lines with an integer each. It prints "
            "the sum of the integers that are at least {0} or divisible by {1}, or NONE when there are none.",
            solution="""def solve(text):
    chosen = [x for x in map(int, text.split()[1:]) if x >= {0} or x % {1} == 0]
    return str(sum(chosen)) if chosen else 'NONE'""",
            inputs=_number_lines,
            program=True,
        ),
        "lines": Story(
            text="Write a program. It reads lines to the end of the input. It prints those of at least {0} words and "
            "at most {1} characters, the last one first, and in the end how many it printed.",
            ranges=((2, 12), (20, 160)),
            solution="""def solve(text):
    lines = [line for line in text.split('\\n') if len(line.split()) >= {0} and len(line) <= {1}]
    return '\\n'.join(lines[::-1] + [str(len(lines))])""",
            inputs=_texts,
            program=True,
        ),
        "totals": Story(
            text="Write a program. It reads lines of a name and an integer to the end of the input. It prints, in "
            "order of the names, each name and the sum of its integers, without the names whose sum is below {0}; and "
            "in the end the number of all lines times {1}.",
            solution="""def solve(text):
    sums = dict()
    for line in text.splitlines():
        name, number = line.split()
        sums[name] = sums.get(name, 0) + int(number)
    shown = ['%s %d' % pair for pair in sorted(sums.items()) if pair[1] >= {0}]
    return '\\n'.join(shown + [str(len(text.splitlines()) * {1})])""",
            inputs=_records,
            program=True,
        ),
    },
}
