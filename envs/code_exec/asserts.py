"""Translates assert statements of data sets to call tests, where they are simple enough.

An answer in the same process could make `assert f(1) == 2` pass: by returning an object that equals everything, or by
replacing what the assert uses. A call test returns the value, which is compared outside of the sandbox. Only literals
are evaluated here.
"""

from __future__ import annotations

import ast
import builtins
import copy
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from forge_env.utils.syntax import parse_python

CallTest = dict[str, Any]

_BUILTINS = frozenset(dir(builtins))


def read_check(source: str, entry_point: str) -> list[CallTest]:
    """Parse the tests of HumanEval, a module that defines `check(candidate)`.

    Returns:
        a call test for each simple assert, and the rest of the module, if it does anything, as one `asserts` test.

    Raises:
        ValueError, SyntaxError: without such a function, and for a source that cannot be parsed.
    """
    module = parse_python(source)
    check = next((n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "check"), None)
    if check is None or len(check.args.args) != 1:
        raise ValueError("its tests define no check(candidate)")
    candidate = check.args.args[0].arg
    names = {} if _is_assigned(candidate, check) else {candidate: entry_point}
    tests, rest = _split(check.body, names)
    if rest:
        check.body = rest
        suite = f"{ast.unparse(module)}\ndef suite():\n    check({entry_point})\n"
        tests.append({"type": "asserts", "code": suite})
    return tests


def read_asserts(sources: Sequence[str]) -> list[CallTest]:
    """Parse the tests of MBPP: statements, mostly one assert each.

    Raises:
        SyntaxError: for a statement that cannot be parsed.
    """
    tests: list[CallTest] = []
    for source in sources:
        statements = parse_python(source.strip()).body
        called, rest = _split(statements, None)
        if rest:  # in one suite with the statements before them, whose names they may use
            body = textwrap.indent("\n".join(map(ast.unparse, statements)), "    ")
            called = [{"type": "asserts", "code": f"def suite():\n{body}\n"}]
        tests += called
    return tests


def called_function(tests: Sequence[CallTest]) -> str:
    """Return the function that the tests call. Raises ValueError where they call none."""
    for test in tests:
        if test["type"] == "call":
            return str(test["function"])
    for test in tests:
        for node in ast.walk(parse_python(test["code"])):
            calls = ast.walk(node) if isinstance(node, ast.Assert) else ()
            for call in calls:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id not in _BUILTINS:
                    return call.func.id
    raise ValueError("its tests call no function")


def translate(statement: ast.stmt, names: Mapping[str, str] | None = None) -> CallTest | None:
    """Return the call test of an assert, or None for an unknown form.

    The forms are call == literal, call is None / True / False, call, not call, abs(call - number) < number and
    math.isclose(call, number, ...), where a call has only literals as arguments.

    Args:
        names: functions that may be called -> their names in the answer; None for all functions.
    """
    if not isinstance(statement, ast.Assert):
        return None
    try:
        return _test(statement.test, names)
    except (ValueError, TypeError, ArithmeticError, SyntaxError, MemoryError, RecursionError):  # of no literals
        return None


def _split(statements: Sequence[ast.stmt], names: Mapping[str, str] | None) -> tuple[list[CallTest], list[ast.stmt]]:
    """Return the tests of the statements that can be translated, and the other statements that have an effect."""
    tests: list[CallTest] = []
    rest: list[ast.stmt] = []
    for statement in statements:
        test = translate(statement, names)
        if test is not None:
            tests.append(test)
        elif not _is_idle(statement):
            rest.append(copy.deepcopy(statement))
    return tests, rest


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement has no effect: a text, `pass`, `assert True`."""
    if isinstance(statement, ast.Assert):
        return isinstance(statement.test, ast.Constant) and bool(statement.test.value)
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _is_assigned(name: str, tree: ast.AST) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in ast.walk(tree))


def _test(test: ast.expr, names: Mapping[str, str] | None) -> CallTest | None:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _comparison(test.left, test.ops[0], test.comparators[0], names)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _call_test(test.operand, names, accepted=["False"], compare="truth")
    if isinstance(test, ast.Call) and ast.unparse(test.func) in ("math.isclose", "isclose"):
        return _is_close(test, names)
    return _call_test(test, names, accepted=["True"], compare="truth")


def _comparison(left: ast.expr, how: ast.cmpop, right: ast.expr, names: Mapping[str, str] | None) -> CallTest | None:
    if isinstance(how, (ast.Lt, ast.LtE)):
        return _near(left, right, names)
    if isinstance(how, ast.Is) and isinstance(right, ast.Constant) and right.value in (None, True, False):
        return _call_test(left, names, accepted=[_literal(right)], compare="exact")
    if isinstance(how, ast.Eq):
        if not isinstance(left, ast.Call):
            left, right = right, left
        return _call_test(left, names, accepted=[_literal(right)], compare="equal")
    return None


def _near(left: ast.expr, right: ast.expr, names: Mapping[str, str] | None) -> CallTest | None:
    """abs(call - number) < number, or the other way round inside."""
    if not (isinstance(left, ast.Call) and ast.unparse(left.func) in ("abs", "math.fabs") and len(left.args) == 1):
        return None
    difference = left.args[0]
    if not (isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub)):
        return None
    call, number = difference.left, difference.right
    if not isinstance(call, ast.Call):
        call, number = number, call
    tolerance = float(ast.literal_eval(right))
    return _call_test(call, names, accepted=[_literal(number)], compare="close", abs_tol=tolerance)


def _is_close(test: ast.Call, names: Mapping[str, str] | None) -> CallTest | None:
    if len(test.args) != 2:
        return None
    call, number = test.args if isinstance(test.args[0], ast.Call) else reversed(test.args)
    bounds = {"rel_tol": 1e-9} | {str(k.arg): float(ast.literal_eval(k.value)) for k in test.keywords}
    if not bounds.keys() <= {"rel_tol", "abs_tol"}:
        return None
    return _call_test(call, names, accepted=[_literal(number)], compare="close", **bounds)


def _call_test(call: ast.expr, names: Mapping[str, str] | None, **expected: Any) -> CallTest | None:
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return None
    function = call.func.id if names is None else names.get(call.func.id)
    if function is None or any(keyword.arg is None for keyword in call.keywords):
        return None
    arguments = [_literal(argument) for argument in call.args]
    arguments += [f"{keyword.arg}={_literal(keyword.value)}" for keyword in call.keywords]
    return {"type": "call", "function": function, "args": ", ".join(arguments), **expected}


def _literal(node: ast.expr) -> str:
    """Return the source of a literal, with sums and products of numbers worked out. Raises ValueError for all else."""
    folded = _Fold().visit(copy.deepcopy(node))
    ast.literal_eval(folded)
    return ast.unparse(folded)


class _Fold(ast.NodeTransformer):
    """Replaces `2.0/3.0` by its value: data sets write expected numbers so."""

    _operators: ClassVar[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
    }

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        work_out = self._operators.get(type(node.op))
        if work_out is None or not all(
            isinstance(side, ast.Constant) and type(side.value) in (int, float) for side in (left, right)
        ):
            raise ValueError("no arithmetic of two numbers")
        return ast.copy_location(ast.Constant(work_out(left.value, right.value)), node)
