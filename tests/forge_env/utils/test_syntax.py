"""Python source is parsed correctly while others parse."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from envs.math.env import calculate
from forge_env.utils.targets import parse_python

SOURCE = "+".join(f"f{i}({i})" for i in range(60))


class Late:
    """Garbage whose finalizer parses, in the middle of whatever the thread does."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        ast.parse("(1)")


def interrupted(parse: Callable[[], Any], after: int) -> Any:
    """Parse while the garbage collector runs the finalizer after so many allocations."""
    gc.collect(0)
    gc.disable()
    thresholds = gc.get_threshold()
    Late()
    gc.set_threshold(after)
    gc.enable()
    try:
        return parse()
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on no finalizer runs within the parser")
def test_the_parser_of_python_fails_when_it_is_interrupted() -> None:
    with pytest.raises(SystemError, match="recursion depth mismatch"):
        interrupted(lambda: ast.parse(SOURCE, mode="eval"), 50)


@pytest.mark.parametrize("after", [1, 10, 50, 100])
def test_ours_does_not(after: int) -> None:
    tree = interrupted(lambda: parse_python(SOURCE, mode="eval"), after)
    assert ast.dump(tree) == ast.dump(ast.parse(SOURCE, mode="eval"))


@pytest.mark.parametrize("after", [1, 3, 5, 10])
def test_the_calculator_does_not(after: int) -> None:
    expression = "+".join(str(number) for number in range(60))
    assert interrupted(lambda: calculate(expression), after) == str(sum(range(60)))


def test_what_is_wrong_is_raised_as_before() -> None:
    with pytest.raises(SyntaxError):
        parse_python("f(")
