"""math: arithmetic word problems with a calculator tool; the answer is a number."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from envs.procedural import SYMBOLS, draw_tasks
from forge_env.tool_env import ToolEnv
from forge_env.tools import reward, tool
from forge_env.types import Message, Task

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

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

# what happens to `a` boxes of `b` pens: the story, and how the story's last number enters
_STORIES = {
    "plus": "{a} boxes hold {b} pens each. {c} pens are added. How many pens?",
    "minus": "{a} boxes hold {b} pens each. {c} pens are lost. How many pens?",
    "times": "{a} red and {b} blue boxes hold {c} pens each. How many pens?",
}


class Math(ToolEnv):
    """Solve a word problem, with a calculator. Reward 1 when the last number of the answer is the right one."""

    system_prompt: ClassVar[str] = "Use the calculator. Answer with a number."

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return draw_tasks(split, count=count, seed=seed, draw=_draw, pair=lambda c: (c[0], c[3]), make=_make_task)

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Solve a task from what the conversation shows, as a model would have to."""
        question = next(m["content"] for m in messages if m["role"] == "user")
        seen = next((m["content"].strip() for m in reversed(messages) if m["role"] == "tool"), None)
        if seen is not None:
            return {"role": "assistant", "content": seen}
        a, b, c = re.findall(r"\d+", question)
        operation = "plus" if "added" in question else "minus" if "lost" in question else "times"
        call = {"name": "calculator", "arguments": {"expression": _expression(operation, int(a), int(b), int(c))}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    @tool
    def calculator(self, expression: str) -> str:
        """Calculate."""
        return calculate(expression)

    @reward
    def correct(self, answer: str) -> float:
        """1 when the last number of the answer equals the target."""
        numbers = _NUMBER.findall(answer.replace(",", ""))
        return float(bool(numbers) and float(numbers[-1]) == float(self.task.target))


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression without `eval`; what is wrong with it comes back as text.

    >>> calculate("37 * 24 + 5"), calculate("1 / 0")
    ('893', 'Error: division by zero')
    """
    if len(expression) > 200:
        return "Error: the expression is longer than 200 characters"
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
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


Content = tuple[str, int, int, int]  # operation, a, b, c


def _draw(rng: random.Random) -> Content:
    return rng.choice(list(SYMBOLS)), rng.randint(11, 99), rng.randint(11, 99), rng.randint(2, 99)


def _expression(operation: str, a: int, b: int, c: int) -> str:
    return f"({a} + {b}) * {c}" if operation == "times" else f"{a} * {b} {SYMBOLS[operation]} {c}"


def _make_task(content: Content) -> Task:
    operation, a, b, c = content
    return Task(
        prompt=({"role": "user", "content": _STORIES[operation].format(a=a, b=b, c=c)},),
        target=calculate(_expression(*content)),
        metadata={"operation": operation, "constant": c},
    )
