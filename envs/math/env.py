"""math: word problems by level, or problems from a data set, with a calculator tool."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from envs.math.answers import needs_verifier
from envs.math.dataset_tasks import load_tasks
from envs.math.numerals import last_number, parse_number
from envs.math.rewards import MathReward
from envs.math.story_tasks import STORIES, Story, read_story, tasks_of_level
from envs.math.verifier import require_math_verify
from envs.messages import call, say
from envs.task_splits import SYMBOLS, draw_tasks
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.tools import Tool, reward, tool
from forge_env.core.types import Message, Task
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.targets import parse_python

_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}

_CALCULATOR_SENTENCE = "Use the calculator. "
_NUMBER_SENTENCE = "Answer with a number."
_BOXED_SENTENCE = "Put the final answer in \\boxed{}."

# what happens to `a` boxes of `b` pens: the story, and how the story's last number enters
_STORIES = {
    "plus": "{a} boxes hold {b} pens each. {c} pens are added. How many pens?",
    "minus": "{a} boxes hold {b} pens each. {c} pens are lost. How many pens?",
    "times": "{a} red and {b} blue boxes hold {c} pens each. How many pens?",
}


class Math(ToolEnv):
    """Solve a problem, with a calculator. Reward 1 when the final answer is the right one.

    The answer is the content of the last `<answer>` tag or `\\boxed{}`, else the last number, see `envs.math.answers`.
    """

    shared: ClassVar = {"verifier": "envs.math.verifier:open_verifier"}
    system_prompt: ClassVar[str] = "Use the calculator. Answer with a number."

    def __init__(
        self,
        *,
        use_tools: bool = True,
        extra_tools: Iterable[Tool] = (),
        calculator: bool = True,
        tolerance: float = 0.0,
        partial_credit: float = 0.0,
        close: float = 0.0,
        format: str = "any",
        unevaluated: bool = False,
    ) -> None:
        """`calculator=False` removes the tool and the sentence about it; for the others see `MathReward`."""
        self._calculator = calculator
        self._math_reward = MathReward(
            tolerance=tolerance, partial_credit=partial_credit, close=close, format=format, unevaluated=unevaluated
        )
        super().__init__(use_tools=use_tools, extra_tools=extra_tools)

    def set_tools(self, extra: Mapping[str, Tool], *, without: Collection[str] = ()) -> None:
        super().set_tools(extra, without=without if self._calculator else {*without, "calculator"})

    @classmethod
    def tasks(
        cls,
        split: str = "train",
        *,
        count: int,
        seed: int = 0,
        level: int = 1,
        data: str = "",
        question: str = "",
        answer: str = "",
        kind: str = "",
        streaming: bool = False,
    ) -> Sequence[Task]:
        """Return word problems of a level from 0 to 4, or problems from `data`: a hub id or a local file.

        Args:
            split: "train" or "test"; of `data` any split that it has.
            level: 0 has small numbers and one to three steps, 1 is one story of two operations, 2 has two steps, 3
                exact fractions, 4 algebra.
            data: the source of `envs.math.dataset_tasks.load_tasks`, with the columns `question`, `answer` and `kind`,
                and `streaming`.
        """
        if level not in (1, *STORIES):
            raise UserError(f"math has no level {level}; the levels are 0, 1, 2, 3 and 4")
        tasks: Sequence[Task]
        if data:
            columns = {"question": question, "answer": answer, "kind": kind}
            tasks = load_tasks(data, split=split, count=count, seed=seed, **columns, streaming=streaming)
        elif level == 1:
            tasks = draw_tasks(split, count=count, seed=seed, draw=_draw, pair=lambda c: (c[0], c[3]), make=_make_task)
        else:
            tasks = tasks_of_level(level, split, count=count, seed=seed)
        if any(needs_verifier(task.target) for task in tasks):
            require_math_verify()
        return tasks

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str]:
        """Return final answers that must earn nothing: guesses, echoes, hostile text, a right value with a hedge."""
        target = str(task.target)
        number = parse_number(target)
        texts = [*_EMPTY, *_HOSTILE, *_hedges(target, "0" if number is None or number.value != 0 else "1")]
        if number is not None:
            value = number.value
            texts += [" ".join(map(str, range(101))) + f", {value + 1}", f"{value} or {value + 1}"]
            texts += [f"\\boxed{{{value} + 0}}", f"\\boxed{{{value - 1} + 1}}", str(value + 1), str(value * 10 + 1)]
        question = "\n".join(message["content"] for message in task.prompt if message["role"] == "user")
        last = parse_number(last_number(question) or "")
        # When they are equal, to name the question's last number is right.
        if number is None or last is None or not last.equals(number):
            texts += [question, f"<answer>{question}</answer>"]
        return [*texts, f"\\boxed{{{question}}}"]

    @classmethod
    def can_demonstrate(cls, task: Task) -> bool:
        return "source" not in task.metadata  # which tasks of data have

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Solve a task by the conversation alone, as a model has to."""
        question = next(m["content"] for m in messages if m["role"] == "user")
        results = [m["content"].strip() for m in messages if m["role"] == "tool"]
        system = next((m["content"] for m in messages if m["role"] == "system"), None)
        calculator = system is None or "calculator" in system
        story = read_story(question)
        if story is not None:
            return _solve_story(*story, results=results, calculator=calculator)
        expression = _expression(*_read(question))
        if not calculator:
            return say(calculate(expression))
        return say(results[-1]) if results else call("calculator", expression=expression)

    @staticmethod
    def hint(episode: Episode, siblings: Sequence[Episode]) -> str:
        """What a policy is told as its own teacher."""
        return f"The answer is {episode.task.target}."

    async def setup(self) -> None:
        """Adapt the system message to the task and the options; async, since a thread costs more."""
        text = self.system_prompt
        if self.task.metadata.get("format") == "boxed":
            text = text.replace(_NUMBER_SENTENCE, _BOXED_SENTENCE)
        if not self._calculator:
            text = text.replace(_CALCULATOR_SENTENCE, "")
        system: Message = {"role": "system", "content": text}
        self.messages = [system, *self.messages[1:]]

    @tool
    def calculator(self, expression: str) -> str:
        """Calculate."""
        return calculate(expression)

    @reward
    def correct(self, answer: str) -> float:
        """1 when the final answer equals the target."""
        return self._math_reward("", answer, self.task.target)


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression without `eval`; an error is returned as text.

    >>> calculate("37 * 24 + 5"), calculate("1 / 0")
    ('893', 'Error: division by zero')
    """
    if len(expression) > 200:
        return "Error: the expression is longer than 200 characters"
    try:
        value = _value(parse_python(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError) as error:
        return f"Error: {error.args[0] if error.args else 'the expression cannot be read'}"
    return str(value)


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand))
    raise ValueError("only numbers, + - * / // % and parentheses are allowed")


def _solve_story(
    level: int, story: Story, numbers: tuple[int, ...], *, results: list[str], calculator: bool
) -> Message:
    """Return the next step of a story with the calculator; the answer when no step is left, or without a calculator."""
    has_error = bool(results) and results[-1].startswith("Error")
    if calculator and not has_error and len(results) < len(story.steps):
        last = results[-1] if results else ""
        return call("calculator", expression=story.steps[len(results)].format(*numbers, r=last))
    answer = results[-1] if results and not has_error else story.solve(*numbers)
    return say(f"\\boxed{{{answer}}}" if level == 4 else answer)


Content = tuple[str, int, int, int]  # operation, a, b, c


def _draw(rng: random.Random) -> Content:
    return rng.choice(list(SYMBOLS)), rng.randint(11, 99), rng.randint(11, 99), rng.randint(2, 99)


def _expression(operation: str, a: int, b: int, c: int) -> str:
    return f"({a} + {b}) * {c}" if operation == "times" else f"{a} * {b} {SYMBOLS[operation]} {c}"


def _read(question: str) -> Content:
    numbers = re.findall(r"\d+", question)
    if len(numbers) != 3:
        raise UserError("the expert of math solves the tasks of its levels, not those of a data set")
    a, b, c = map(int, numbers)
    return ("plus" if "added" in question else "minus" if "lost" in question else "times"), a, b, c


def _make_task(content: Content) -> Task:
    operation, a, b, c = content
    return Task(
        prompt=({"role": "user", "content": _STORIES[operation].format(a=a, b=b, c=c)},),
        target=calculate(_expression(*content)),
        metadata={"operation": operation, "constant": c},
        kind=operation,
    )


_EMPTY = (
    "",
    " \n",
    "target",
    "self.task.target",
    "The answer is right. Reward: one.",
    "\\boxed{}",
    "\\boxed{target}",
    "\\boxed{\\text{target}}",
    "<answer></answer>",
    "<answer>answer</answer>",
    "####",
    "nan",
    "\\boxed{\\infty}",
    "\\boxed{x}",
    "\\boxed{(-\\infty, \\infty)}",
    "\\boxed{x \\in \\mathbb{R}}",
    "\\boxed{\\emptyset}",
    "\\boxed{\\{" + ", ".join(map(str, range(-20, 21))) + "\\}}",
    "\\boxed{" + " \\text{ or } ".join(map(str, range(101))) + "}",
)

_HOSTILE = (
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{9**9**9}",
    "9" * 5000,
    "1e999999999",
    "\\boxed{" * 500,
    "\\boxed{" + "{" * 500 + "1" + "}" * 500 + "}",
    "\\boxed{1/0}",
    "\\boxed{__import__('os').getpid()}",
)


def _hedges(target: str, other: str) -> list[str]:
    """The right answer, where it is not the one final answer."""
    return [
        f"<think>{target}</think>",
        f"<think>\\boxed{{{target}}}",
        f"\\boxed{{{target}}} or \\boxed{{{other}}}",
        f"<answer>{target}</answer> <answer>{other}</answer>",
        f"\\boxed{{{target} \\text{{ or }} {other}}}",
        f"\\boxed{{{target}, {other}}}",
        f"<answer>{target} or {other}</answer>",
        f"<answer>{other}</answer> \\boxed{{{target}}}",
    ]
