"""Translates the asserts of data sets to call tests.

An answer in the same process could make `assert f(1) == 2` pass: by returning an object that equals everything, or by
replacing what the assert uses. A call test returns the value, which is compared outside of the sandbox. Only literals
are evaluated here. A statement of another form, such as a loop over random numbers, makes a row unusable.
"""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from forge_env.utils.targets import parse_python

CallTest = dict[str, Any]

_LARGEST_POWER = 64


class NotCalls(Exception):
    """A statement that is not a call with a fixed result; the text is the statement."""


def read_check(source: str, entry_point: str) -> list[CallTest]:
    """Parse the tests of HumanEval, a module that defines `check(candidate)`, and return its call tests."""
    module = parse_python(source)
    check = next((n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "check"), None)
    if check is None or len(check.args.args) != 1:
        raise ValueError("its tests define no check(candidate)")
    candidate = check.args.args[0].arg
    uses = [n for n in ast.walk(check) if isinstance(n, ast.Name) and n.id == candidate]
    is_assigned = any(not isinstance(use.ctx, ast.Load) for use in uses)
    names = {} if is_assigned else {candidate: entry_point, entry_point: entry_point}
    return _calls(check.body, names)


def read_asserts(sources: Sequence[str]) -> list[CallTest]:
    return [test for source in sources for test in _calls(parse_python(source.strip()).body, None)]


def translate(statement: ast.stmt, names: Mapping[str, str] | None = None) -> CallTest | None:
    """Return the call test of an assert, or None for an unknown form.

    The forms are call == literal, tuple(call) == tuple(literal), the same with set, call is None / True / False, call,
    not call, abs(call - number) < number and math.isclose(call, number, ...). A call has only literals as arguments.

    Args:
        names: functions that may be called -> their names in the answer; None for all functions.
    """
    if not isinstance(statement, ast.Assert):
        return None
    try:
        return _test(statement.test, names)
    except (ValueError, TypeError, ArithmeticError, SyntaxError, MemoryError, RecursionError):  # of no literals
        return None


def _calls(statements: Sequence[ast.stmt], names: Mapping[str, str] | None) -> list[CallTest]:
    tests: list[CallTest] = []
    for statement in statements:
        test = translate(statement, names)
        if test is not None:
            tests.append(test)
        elif not _is_idle(statement, names):
            raise NotCalls(" ".join(ast.unparse(statement).split()))
    return tests


def _is_idle(statement: ast.stmt, names: Mapping[str, str] | None) -> bool:
    """Whether a statement tests nothing: an import, a text, a name, `pass`, `assert True`, x == x."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and [*map(type, test.ops)] == [ast.Eq]:
            first, right = (_Renamed(names or {}).visit(copy.deepcopy(n)) for n in (test.left, test.comparators[0]))
            return ast.dump(first) == ast.dump(right)
        return isinstance(test, ast.Constant) and bool(test.value)
    return isinstance(statement, (ast.Pass, ast.Import, ast.ImportFrom)) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, (ast.Constant, ast.Name))
    )


class _Renamed(ast.NodeTransformer):
    """Gives the functions of the answer one name each."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def _test(test: ast.expr, names: Mapping[str, str] | None) -> CallTest | None:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _comparison(test.left, test.ops[0], test.comparators[0], names)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _call_test(test.operand, names, accepted=["False"], compare="truth")
    if isinstance(test, ast.Call) and ast.unparse(test.func) in ("math.isclose", "isclose"):
        return _is_close(test, names)
    return _call_test(test, names, accepted=["True"], compare="truth")


def _comparison(first: ast.expr, how: ast.cmpop, right: ast.expr, names: Mapping[str, str] | None) -> CallTest | None:
    if isinstance(how, (ast.Lt, ast.LtE)):
        return _near(first, right, names)
    if isinstance(how, ast.Is) and isinstance(right, ast.Constant) and right.value in (None, True, False):
        return _call_test(first, names, accepted=[_literal(right)], compare="exact")
    if isinstance(how, ast.Eq):
        if not isinstance(first, ast.Call):
            first, right = right, first
        kind, inner = _collection(first)
        kind_of_right, items = _collection(right)
        if kind and kind == kind_of_right and isinstance(items, (ast.List, ast.Tuple)):
            literal = ast.Set(items.elts) if kind == "set" else ast.Tuple(items.elts, ast.Load())
            return _call_test(inner, names, accepted=[_literal(literal)], compare=kind)
        return _call_test(first, names, accepted=[_literal(right)], compare="equal")
    return None


def _collection(node: ast.expr) -> tuple[str, ast.expr]:
    """The kind and the x of tuple(x) or set(x); no kind for another expression."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tuple", "set") and len(node.args) == 1:
        return ast.unparse(node.func), node.args[0]
    return "", node


def _near(first: ast.expr, right: ast.expr, names: Mapping[str, str] | None) -> CallTest | None:
    """abs(call - number) < number, or the other way round inside."""
    if not (isinstance(first, ast.Call) and ast.unparse(first.func) in ("abs", "math.fabs") and len(first.args) == 1):
        return None
    difference = first.args[0]
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
    """Return the source of a literal, with its arithmetic worked out. Raises ValueError for all else."""
    constant = _Fold().visit(copy.deepcopy(node))
    ast.literal_eval(constant)
    return ast.unparse(constant)


class _Fold(ast.NodeTransformer):
    """Replaces `2.0/3.0`, `2 ** 5` and `'a' + 'b'` by their values: data sets write values so."""

    _operators: ClassVar[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.Pow: operator.pow,
    }

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        first, right = self.visit(node.left), self.visit(node.right)
        if not (isinstance(first, ast.Constant) and isinstance(right, ast.Constant)):
            raise ValueError("no arithmetic of two constants")
        values: tuple[Any, Any] = (first.value, right.value)
        how = type(node.op)
        are_numbers = all(type(value) in (int, float) for value in values)
        are_texts = how is ast.Add and all(isinstance(value, str) for value in values)
        is_large = how is ast.Pow and are_numbers and max(map(abs, values)) > _LARGEST_POWER
        if how not in self._operators or is_large or not (are_numbers or are_texts):
            raise ValueError("no arithmetic of two small numbers, and no sum of two texts")
        return ast.copy_location(ast.Constant(self._operators[how](*values)), node)
