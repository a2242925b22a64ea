"""Compares pairs of expressions by math-verify, for `envs.processes.worker`; each comparison is a fork of its own.

A comparison writes "target" when it has read the target, and then "equal" or "different". It writes "unreadable" if the
grammar refuses the target.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.processes.worker import Request, RunForked, Write

PACKAGES = ("math_verify", "sympy")
CPU_SECONDS = 2.0
"""Processor time of one comparison."""
WALL_SECONDS = 60.0
"""Time of one comparison on the clock: it bounds what outlives a killed owner."""
MEMORY_BYTES = 1 << 30

_VALUES = (1.37, 0.71, 2.19, 1.93, 0.43)
"""Of symbols, where expressions are compared by numbers."""
DIGITS = 40
"""Digits that are compared where the algebra must calculate: what is equal by rounding is not equal."""

_OPERATIONS = frozenset(
    {"ExprWithLimits", "Limit", "Derivative", "Subs", "Intersection", "MatAdd", "MatPow", "Inverse", "Transpose"}
    | {"Determinant", "Trace", "Mod"}
)
_FUNCTIONS = frozenset({"Function", "MinMaxBase"})
_PLAIN_FUNCTIONS = frozenset({"AppliedUndef", "ExpBase", "Abs"})
"""Functions that a result may hold where its target has none: names such as f(x), powers of e, absolute values."""

_EXAMPLES = [
    ("(x+1)^2", "x^2+2x+1"),
    ("\\{1,\\frac{3}{2}\\}", "\\{1.5,1\\}"),
    ("(-\\infty,2]\\cup(3,4)", "(3,4)\\cup(-\\infty,2]"),
    ("(3,-1)", "(3,-1)"),
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"),
    ("\\frac{3}{2}x-1", "y=1.5x-1"),
    ("2\\pi i", "i\\pi\\cdot 2"),
    ("y=2x+1", "2x-y+1=0"),
    ("x^{2}+y^{2}=4", "\\frac{x^{2}}{4}+\\frac{y^{2}}{4}=1"),
    ("\\log_{2} 3", "\\frac{\\ln 3}{\\ln 2}"),
    ("1-\\cos^{2} x", "\\sin^{2} x"),
    ("e^{-|x|}-n!", "-n!+e^{-|x|}"),
]


def open_library(run_forked: RunForked) -> Callable[[Request], Request]:
    """Import math-verify, and fill sympy's caches with one expression of each kind, so that no fork has to."""
    for target, answer in _EXAMPLES:
        if not _equal(_parse(target), _parse(answer), 1e-9):
            raise RuntimeError(f"math-verify does not take {answer} for {target}")

    def compare(request: Request) -> Request:
        lines, exit_code = run_forked(
            lambda write: _compare(request, write),
            cpu_seconds=request["cpu_seconds"],
            wall_seconds=WALL_SECONDS,
            memory_bytes=MEMORY_BYTES,
        )
        return {"written": lines, "exit_code": exit_code}

    return compare


def _compare(request: Request, write: Write) -> None:
    try:
        target = _parse(request["target"])
    except (Exception, RecursionError, MemoryError):
        return write("unreadable")
    write("target")
    try:
        answer = _parse(request["answer"])
        is_equal = (request["unevaluated"] or not _operations(answer) - _operations(target)) and _equal(
            target, answer, request["tolerance"]
        )
    except (Exception, RecursionError, MemoryError):
        is_equal = False  # the algebra cannot read it, or cannot hold it
    write("equal" if is_equal else "different")


def _parse(latex: str) -> Any:
    """Read one formula. Only the LaTeX grammar reads it: sympy's own reader would evaluate text as Python.

    math-verify's clean-up is left out: it drops what it takes for a unit at the end (5t is 5), and joins what it should
    not. `envs.math.latex` does that work.
    """
    library = importlib.import_module("latex2sympy2_extended.latex2sympy2")
    is_complex = importlib.import_module("math_verify.grader").should_treat_as_complex(latex)
    config = library.ConversionConfig(lowercase_symbols=False)
    formula = library.latex2sympy(latex, is_real=not is_complex, normalization_config=None, conversion_config=config)
    if "sum" in latex or "prod" in latex or not hasattr(formula, "free_symbols"):
        return formula  # i may be an index
    imaginary = importlib.import_module("sympy").I
    return formula.subs({symbol: imaginary for symbol in formula.free_symbols if symbol.name == "i"})


def _equal(target: Any, answer: Any, tolerance: float) -> bool:
    sympy = importlib.import_module("sympy")
    if isinstance(target, sympy.Expr) and isinstance(answer, sympy.Expr):
        return _same_value(target, answer) or (tolerance > 0 and _close(target, answer, tolerance))
    # no timeout of math-verify's: it would be an alarm, and the fork has one for the whole comparison
    verify = importlib.import_module("math_verify").verify
    if verify([target], [answer], float_rounding=DIGITS, numeric_precision=DIGITS, timeout_seconds=None):
        return not _without_solutions(target, answer)
    return False


def _same_value(target: Any, answer: Any) -> bool:
    """Whether two expressions are equal. math-verify takes two small numbers for equal (Math-Verify#14)."""
    sympy = importlib.import_module("sympy")
    if target == answer:
        return True
    target, answer = target.doit(), answer.doit()
    if not (target.is_finite is not False and answer.is_finite is not False):
        return False  # infinity plus one is not infinity
    if _differ_in_numbers(target, answer):
        return False
    if sympy.expand(target - answer) == 0:
        return True
    equal = target.equals(answer)
    if equal is None:
        equal = sympy.simplify(target - answer).is_zero or sympy.combsimp(target / answer) == 1
    return bool(equal)


def _differ_in_numbers(target: Any, answer: Any) -> bool:
    """Whether two expressions clearly differ for some values of their symbols: most that are wrong need no algebra."""
    symbols = sorted(target.free_symbols | answer.free_symbols, key=str)
    values = {symbol: _VALUES[place % len(_VALUES)] + place for place, symbol in enumerate(symbols)}
    expected, actual = (complex(each.subs(values).evalf(20)) for each in (target, answer))
    return abs(expected - actual) > 1e-9 * max(abs(expected), abs(actual))


def _without_solutions(target: Any, answer: Any) -> bool:
    """Whether two equations agree only in that neither has a real solution, which is not agreement."""
    sympy = importlib.import_module("sympy")
    if not isinstance(target, sympy.Eq) or not isinstance(answer, sympy.Eq):
        return False
    if sympy.solve(target, target.free_symbols):
        return False
    ratio = sympy.simplify((target.lhs - target.rhs) / (answer.lhs - answer.rhs))
    return not (ratio.is_number and ratio.is_finite)  # x = x is not an equation


def _operations(formula: Any) -> set[str]:
    """Name what is left to do in an expression: integrals, sums, limits, ..., and "function" for sines, factorials, ...

    An answer that leaves something to do which its target does not is the question again, and no result.
    """
    sympy = importlib.import_module("sympy")
    return {_operation(node) for node in sympy.preorder_traversal(formula)} - {""}


def _operation(node: Any) -> str:
    kinds, name = {base.__name__ for base in type(node).__mro__}, type(node).__name__
    if name == "MatMul":
        return name if sum(getattr(factor, "is_Matrix", False) for factor in node.args) > 1 else ""
    if kinds & _PLAIN_FUNCTIONS and not (name == "Abs" and node.args[0].is_number):
        return ""
    return name if kinds & _OPERATIONS else "function" if kinds & _FUNCTIONS else ""


def _close(target: Any, answer: Any, tolerance: float) -> bool:
    try:
        expected, actual = float(target.evalf()), float(answer.evalf())
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    return math.isfinite(expected) and math.isfinite(actual) and abs(actual - expected) <= tolerance * abs(expected)
