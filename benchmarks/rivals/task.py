"""The environment that every library plays: four calls of a calculator, and an answer. It needs no package."""

from __future__ import annotations

import random
import re
from typing import Any

TURNS, TASKS = 5, 512


def numbers(index: int) -> tuple[int, int]:
    """The first number of a task, and what is added to it."""
    draw = random.Random(index % TASKS).randrange
    return draw(10**6), draw(10**6)


def question(index: int) -> str:
    return "Start at {}, and add {} four times. What is it?".format(*numbers(index))


def target(index: int) -> str:
    start, more = numbers(index)
    return str(start + (TURNS - 1) * more)


def calculate(expression: str) -> str:
    left, _, right = expression.partition("+")
    return str(int(left) + int(right))


def turn_of(text: str, turn: int) -> tuple[str, str]:
    """What solves the question `text` in a turn: an expression, or an answer; the other one is empty."""
    start, more = (int(number) for number in re.findall(r"\d+", text))
    number = start + turn * more
    return (f"{number} + {more}", "") if turn < TURNS - 1 else ("", str(number))


def message_of(text: str, turn: int) -> dict[str, Any]:
    """The same as a message."""
    expression, answer = turn_of(text, turn)
    if answer:
        return {"role": "assistant", "content": answer}
    call = {"name": "calculator", "arguments": {"expression": expression}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
    }


def tags_of(text: str, turn: int) -> str:
    """The same as text, for libraries that leave it to the environment to read it."""
    expression, answer = turn_of(text, turn)
    return f"<answer>{answer}</answer>" if answer else f"<calculator>{expression}</calculator>"


def read_tags(text: str) -> tuple[str, str]:
    """The tag of such a text, and what it holds."""
    match = re.search(r"<(calculator|answer)>(.*)</\1>", text)
    return (match[1], match[2]) if match else ("", "")
