"""The process that runs math-verify: it compares one pair of expressions at a time, each in a fork of its own.

Run as a script by envs/math/verifier.py. Requests are lines of JSON on standard input. A fork writes "target" when it
has read the target and then "equal" or "different"; the parent writes "done" and the fork's wait status after it. What
the kernel bounds is bounded by the kernel, because text that a model wrote decides how long the algebra takes. Before
any such text is read the process confines itself, and says in "ready" what that came to.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import math
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

CPU_SECONDS = 2.0
"""Processor time of one comparison; a fork that needs more ends with SIGPROF."""
WALL_SECONDS = 60.0
"""Time of one comparison on the clock, however busy the machine: it bounds what outlives a killed owner."""
MEMORY_BYTES = 1 << 30

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
]


def main() -> None:
    if sys.argv[1:] == ["try"]:  # what it would be denied, without the seconds that its libraries take
        print(json.dumps(_confine()))
        return
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    _silence()
    try:
        _warm_up()
    except BaseException as error:
        channel.write(f"failed {type(error).__name__}: {error}\n".replace("\n", " ") + "\n")
        raise SystemExit(1) from error
    channel.write(f"ready {json.dumps(_confine())}\n")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _work(line, channel.fileno())
        _, status = os.waitpid(child, 0)
        channel.write(f"done {status}\n")


def _warm_up() -> None:
    """Import what is needed and fill sympy's caches with one expression of each kind, so that no fork has to."""
    for target, answer in _EXAMPLES:
        if not _equal(_parse(target), _parse(answer), 1e-9):
            raise RuntimeError(f"math-verify does not take {answer} for {target}")


def _confine() -> dict[str, Any]:
    """Take from this process and its forks what algebra has no use for; returns what is enforced."""
    folder = str(Path(__file__).parents[2] / "sandboxes" / "guest")
    sys.path.insert(0, folder)
    try:
        guest = importlib.import_module("guest_worker")
    finally:
        sys.path.remove(folder)
    specs = [importlib.util.find_spec(name) for name in ("math_verify", "sympy")]
    enforced: dict[str, Any] = guest.confine([spec.origin for spec in specs if spec is not None and spec.origin])
    return enforced


def _silence() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    logging.disable(logging.CRITICAL)


def _work(line: str, channel: int) -> None:
    """Do one comparison and end the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        request = json.loads(line)
        target = _parse(request["target"])
        os.write(channel, b"target\n")
        equal = _equal(target, _parse(request["answer"]), request["tolerance"])
    except (Exception, RecursionError, MemoryError):
        equal = False  # the algebra cannot read it, or cannot hold it
    os.write(channel, b"equal\n" if equal else b"different\n")
    os._exit(0)


def _parse(latex: str) -> list[Any]:
    """Read one expression. Only the LaTeX grammar reads it: sympy's own reader would evaluate text as Python."""
    library = importlib.import_module("math_verify")
    return library.parse(
        f"${latex}$",
        extraction_config=[library.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )


def _equal(target: list[Any], answer: list[Any], tolerance: float) -> bool:
    if _operations(answer) - _operations(target):
        return False
    # math-verify's own timeout is an alarm, which the fork has already set for the whole comparison
    verify = importlib.import_module("math_verify").verify
    if verify(target, answer, float_rounding=DIGITS, numeric_precision=DIGITS, timeout_seconds=None):
        return not target or not answer or not _without_solutions(target[0], answer[0])
    return tolerance > 0 and bool(target) and bool(answer) and _close(target[0], answer[0], tolerance)


def _without_solutions(target: Any, answer: Any) -> bool:
    """Whether two equations agree only in that neither has a real solution, which is no agreement."""
    sympy = importlib.import_module("sympy")
    if not isinstance(target, sympy.Eq) or not isinstance(answer, sympy.Eq):
        return False
    if sympy.solve(target, target.free_symbols):
        return False
    ratio = sympy.simplify((target.lhs - target.rhs) / (answer.lhs - answer.rhs))
    return not ratio.is_number


def _operations(parsed: list[Any]) -> set[str]:
    """Name what is left to do in an expression: integrals, sums, limits, ..., and "function" for sines, factorials, ...

    An answer that leaves something to do which its target does not is the question again, and no result.
    """
    sympy = importlib.import_module("sympy")
    expressions = [each for each in parsed if isinstance(each, sympy.Basic)]
    return {_operation(node) for each in expressions for node in sympy.preorder_traversal(each)} - {""}


def _operation(node: Any) -> str:
    kinds, name = {each.__name__ for each in type(node).__mro__}, type(node).__name__
    if name == "MatMul":
        return name if sum(getattr(factor, "is_Matrix", False) for factor in node.args) > 1 else ""
    if kinds & _PLAIN_FUNCTIONS and not (name == "Abs" and node.args[0].is_number):
        return ""
    return name if kinds & _OPERATIONS else "function" if kinds & _FUNCTIONS else ""


def _close(target: Any, answer: Any, tolerance: float) -> bool:
    try:
        wanted, got = float(target.evalf()), float(answer.evalf())
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    return math.isfinite(wanted) and math.isfinite(got) and abs(got - wanted) <= tolerance * abs(wanted)


if __name__ == "__main__":
    main()
