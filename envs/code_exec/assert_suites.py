"""Suites of asserts, run in another process than the answer that they test.

An answer in the same process could make a suite pass: by replacing `sorted`, or by returning an object that equals
everything. So the suite runs in a separate sandbox process, where stand-ins replace the functions of the answer, and
only plain data is exchanged.

The calls are collected in rounds. The suite runs with the known results. Where a result is missing, it continues with a
placeholder and its asserts pass, so that most suites make all of their calls in the first round. The answer then makes
these calls in another process, which has nothing of the suite. A round with all results gives the verdict. As in a call
test, the answer sees the arguments and never the expected values.
"""

from __future__ import annotations

import ast
import builtins
import json
import symtable
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from envs.code_exec.values import DECODER, ENCODER, is_encoded
from forge_env.core.sandbox import Call, ExecRequest, Limits
from forge_env.utils.syntax import parse_python

MAX_RESULT_CHARACTERS = 2**20
"""Limit of all results that a suite gets, as JSON."""
MAX_GUESSES = 1000
"""The most calls of a round after the first missing result; they are guesses."""

ANSWER_SOURCE = f"""{ENCODER}{DECODER}
def _result(value):
    import collections, json
    views = {{type({{}}.keys()): "keys", type({{}}.values()): "values", type({{}}.items()): "items"}}
    if type(value) is range:
        return ["range", [value.start, value.stop, value.step]]
    if type(value) in views or type(value) is collections.deque:
        return [views.get(type(value), "deque"), _plain(list(value))]
    if isinstance(value, collections.abc.Iterator):
        return ["iterator", _plain(list(value))]
    return ["plain", _plain(value)]

def _outcome(name, args, kwargs):
    args, kwargs = _value(args), _value(kwargs)
    before = [_plain(x) for x in args]
    try:
        if name not in globals():
            raise NameError("name " + repr(name) + " is not defined")
        outcome = _result(globals()[name](*args, **kwargs))
    except Exception as error:
        outcome = ["raised", [type(error).__name__, str(error)[:200]]]
    changed = []
    for i, x in enumerate(args):
        if type(x) in (list, dict, set) and _plain(x) != before[i]:
            changed.append([i, _plain(x)])
    return [*outcome, changed]

def _outcomes(calls, start):
    import json
    told, room = [], 50_000
    for i, call in enumerate(calls):
        outcome = _outcome(*call)
        if i >= start:
            room -= len(json.dumps(outcome))
            if room < 0 and told:
                break
            told.append(outcome)
    return told
"""
"""Source beside the answer, which may replace all of it: it can then only tell other results.

All calls are made in order in one process, as they would be beside the suite; the first `start` for what they leave
behind. What does not fit into one value is asked for again.
"""

SUITE_SOURCE = f"""{ENCODER}{DECODER}
class _Stop(BaseException): pass
class _Unknown:
    patience = 10_000
    def __getattr__(self, name):
        return self
def _unknown(value):
    def method(self, *args):
        _Unknown.patience -= 1
        return value if _Unknown.patience > 0 else _stop()
    return method
for _name in "eq ne lt le gt ge contains bool".split():
    setattr(_Unknown, "__" + _name + "__", _unknown(False))
for _name in "add sub mul truediv floordiv mod pow neg pos abs getitem call".split():
    setattr(_Unknown, "__" + _name + "__", lambda self, *args: self)
    setattr(_Unknown, "__r" + _name + "__", lambda self, *args: self)
_Unknown.__hash__, _Unknown.__len__ = _unknown(0), _unknown(0)
_Unknown.__iter__ = lambda self: iter(())

class _State:
    known, asked, kept, ahead, room, unfit, stopped = [], [], 0, 1, 50_000, None, False

def _guessing():
    return len(_State.asked) > _State.kept

def _stop(unfit=None):
    _State.unfit, _State.stopped = unfit, True
    raise _Stop

def _stand_in(name):
    return lambda *args, **kwargs: _ask(name, args, kwargs)

def _ask(name, args, kwargs):
    import builtins, collections, json
    if _State.stopped:
        raise _Stop
    try:
        call = [name, _plain(list(args)), _plain(kwargs)]
        text = json.dumps(call)
    except (TypeError, RecursionError, ValueError) as error:
        _stop(None if _guessing() else str(error))
    position = len(_State.asked)
    if not _guessing() and position < len(_State.known) and json.dumps(_State.known[position][0]) == text:
        _State.asked.append(call)
        _State.kept += 1
        kind, content, changed = _State.known[position][1]
        for i, after in changed:
            after = _value(after)
            if type(args[i]) is list: args[i][:] = after
            elif type(args[i]) in (dict, set): args[i].clear(); args[i].update(after)
        content = _value(content)
        if kind == "raised":
            known = getattr(builtins, content[0], None)
            raise (known if isinstance(known, type) and issubclass(known, Exception) else Exception)(content[1])
        return {{
            "plain": lambda: content,
            "range": lambda: range(*content),
            "iterator": lambda: iter(content),
            "deque": lambda: collections.deque(content),
            "keys": lambda: dict.fromkeys(content).keys(),
            "values": lambda: dict(enumerate(content)).values(),
            "items": lambda: dict(content).items(),
        }}[kind]()
    if len(text) > 50_000:
        _stop(None if _guessing() else "arguments of more than 50,000 characters cannot be passed")
    _State.room -= len(text)
    if _State.room < 0 or len(_State.asked) - _State.kept >= _State.ahead:
        _stop()
    _State.asked.append(call)
    return _Unknown()

def _judge(suite, functions, modules, known, ahead):
    import importlib, random
    _State.known, _State.ahead = known, ahead
    for name in modules:
        globals().setdefault(name, importlib.import_module(name))
    for name in functions:
        globals().setdefault(name, _stand_in(name))
    random.seed(0)  # every round draws the same
    failed = ""
    try:
        exec(compile(suite, "<suite>", "exec"), globals())
        globals()["suite"]()
    except _Stop:
        pass
    except BaseException as error:
        failed = (type(error).__name__ + ": " + str(error)[:200]).rstrip(": ")
    return {{
        "kept": _State.kept,
        "asked": _State.asked[_State.kept:],
        "unfit": _State.unfit,
        "failed": failed,
    }}
"""
"""Source beside the suite, in a process without the answer; so its verdict cannot be forged."""

_TOO_LONG = "arguments of more than 50,000 characters"
_LAZY = ("range", "deque", "list_iterator", "dict_keys", "dict_values", "dict_items")
_OF_ANSWERS = (_TOO_LONG, "recursion", "integer string conversion", *(f"type {name} is" for name in _LAZY))
"""Parts of messages about results of the answer that the suite passes on and that cannot be passed."""
_KINDS = ("plain", "range", "iterator", "deque", "keys", "values", "items", "raised")
_BUILTINS = frozenset(dir(builtins))
_OF_MODULES = frozenset({"__name__", "__file__", "__doc__", "__builtins__"})


class CannotRunApart(ValueError):
    """A suite that needs the answer in the same process; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite that can run in another process than the answer."""

    source: str
    """Defines `suite()`. Its asserts pass while a result is missing."""
    functions: tuple[str, ...]
    """Names of the functions of the answer."""
    modules: tuple[str, ...]
    """Modules of the standard library that the suite uses and expects the answer to import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The outcome of a run of the suite."""

    kept: int = 0
    """Number of known results that were used."""
    asked: Sequence[Any] = ()
    """The calls whose results are missing; the first is certain, the others are guesses."""
    failed: str = ""
    unfit: str = ""
    """Message about an argument that is not plain data."""

    @property
    def is_of_answer(self) -> bool:
        """Whether `unfit` may be about a result of the answer that the suite passes on."""
        return any(text in self.unfit for text in _OF_ANSWERS)


@lru_cache(maxsize=256)
def read_suite(code: str, prelude: str = "", answer: str = "") -> Suite:
    """Read a suite's code, which defines `suite()`.

    Args:
        code: undefined names in it are functions of the answer.
        prelude: code that runs before it; its definitions override those of the answer.
        answer: a right answer, if there is one, to distinguish its classes from its functions.

    Raises:
        SyntaxError: when it cannot be parsed.
        CannotRunApart: when it passes other than plain data, or compares identities.
    """
    tree = parse_python(code)
    if strange := sorted(_used_at_once(prelude) - _bound(prelude) - _BUILTINS - _OF_MODULES):
        raise CannotRunApart(f"its set-up code uses {strange[0]}, which only the answer can define")
    free = _used(code) - _bound(code) - _bound(prelude) - _BUILTINS - _OF_MODULES
    attributes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    bases = {node.id for node in attributes if isinstance(node, ast.Name)}
    modules = free & bases & sys.stdlib_module_names
    functions = free - modules
    if strange := sorted(functions & (bases | _classes(answer))):
        raise CannotRunApart(f"it uses {strange[0]}, an object or a class of the answer")
    for node in ast.walk(tree):
        if problem := _problem(node, functions | {"candidate"}, _no_data(tree)):
            raise CannotRunApart(f"{problem}: {ast.unparse(node)[:80]}")
    guarded = ast.fix_missing_locations(_Guard().visit(tree))
    return Suite(source=ast.unparse(guarded), functions=tuple(sorted(functions)), modules=tuple(sorted(modules)))


def judge_request(suite: Suite, prelude: str, known: Sequence[Any], ahead: int, limits: Limits) -> ExecRequest:
    """Return the request that runs the suite; `known` are pairs of a call and its outcome, in order."""
    call = Call(function="_judge", args=[suite.source, suite.functions, suite.modules, known, ahead])
    return ExecRequest(code="", setup=f"{prelude}\n{SUITE_SOURCE}", call=call, limits=limits)


def answer_request(code: str, prelude: str, calls: Sequence[Any], start: int, limits: Limits) -> ExecRequest:
    """Return the request in which the answer makes calls; it returns the outcomes from index `start` on."""
    call = Call(function="_outcomes", args=[calls, start])
    return ExecRequest(code=code, setup=f"{prelude}\n{ANSWER_SOURCE}", call=call, limits=limits)


def read_round(value: str | None) -> Round:
    """Parse the value of `_judge`, which no answer can forge."""
    fields = json.loads(value or "")
    return Round(kept=fields["kept"], asked=fields["asked"], failed=fields["failed"], unfit=fields["unfit"] or "")


def read_outcomes(value: str | None) -> list[Any]:
    """Parse the value of `_outcomes`, which an answer may have replaced.

    Raises:
        ValueError: for any other format than the one of `_outcomes`.
    """
    try:
        outcomes = json.loads(value or "")
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(outcomes, list) or not outcomes or not all(map(_is_outcome, outcomes)):
        raise ValueError("no outcomes of calls")
    return outcomes


def _is_outcome(outcome: Any) -> bool:
    if not isinstance(outcome, list) or len(outcome) != 3:
        return False
    kind, content, changed = outcome
    if kind not in _KINDS or not is_encoded(content) or not isinstance(changed, list):
        return False
    if kind == "raised" and not (isinstance(content, list) and [*map(type, content)] == [str, str]):
        return False
    return all(isinstance(c, list) and len(c) == 2 and type(c[0]) is int and is_encoded(c[1]) for c in changed)


# ---- what can be run apart ----


class _Guard(ast.NodeTransformer):
    """Lets an assert pass while a result is missing."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        [guard] = parse_python("try:\n    pass\nexcept Exception:\n    if not _guessing():\n        raise").body
        assert isinstance(guard, ast.Try)
        guard.body = [node]
        return guard


def _problem(node: ast.AST, functions: set[str], no_data: set[str]) -> str:
    """Return why a suite with this node cannot run apart from the answer; empty where it can."""
    if isinstance(node, (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)):
        return "it awaits what the answer returns"
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        if any(isinstance(op, (ast.Is, ast.IsNot)) and not (_is_fixed(a) or _is_fixed(b)) for op, a, b in pairs):
            return "it compares identities"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "id":
            return "it compares identities"
        if node.func.id in functions:
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(_holds_no_data(value, no_data) for value in arguments):
                return "it passes a function, a class or a generator to the answer"
    return ""


def _holds_no_data(node: ast.AST, no_data: set[str]) -> bool:
    if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
        return True
    if isinstance(node, ast.Name):
        return node.id in no_data
    if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred)):
        return any(_holds_no_data(child, no_data) for child in ast.iter_child_nodes(node))
    return False


def _no_data(tree: ast.AST) -> set[str]:
    """Return the names that are bound to functions, classes and modules."""
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    assigned |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    defined = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    callables = {name for name in _BUILTINS if callable(getattr(builtins, name))}
    return defined | (callables - assigned)


def _is_fixed(node: ast.AST) -> bool:
    """Whether `is` gives the same result for a copy: for a constant like None, or a type."""
    if isinstance(node, ast.Constant):
        return node.value in (None, True, False, ...)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) == "type"
    return isinstance(node, ast.Name) and isinstance(getattr(builtins, node.id, None), type)


def _classes(source: str) -> set[str]:
    try:
        return {node.name for node in ast.walk(parse_python(source)) if isinstance(node, ast.ClassDef)}
    except (SyntaxError, ValueError):
        return set()


def _bound(source: str) -> set[str]:
    """Return the names that a module defines."""
    table = symtable.symtable(source, "<suite>", "exec")
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}


def _used_at_once(source: str) -> set[str]:
    """Return the names that a module uses outside of functions."""
    table = symtable.symtable(source, "<suite>", "exec")
    return {s.get_name() for s in table.get_symbols() if s.is_referenced()}


def _used(source: str) -> set[str]:
    """Return the global names that a module uses anywhere."""
    tables = list(_tables(symtable.symtable(source, "<suite>", "exec")))
    return {
        s.get_name()
        for table in tables
        for s in table.get_symbols()
        if s.is_referenced() and (s.is_global() or table.get_type() == "module")
    }


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)
