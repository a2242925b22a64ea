"""Makes and scores the entries of reasoning-gym datasets, for `envs.processes.worker`.

Entries are made in the process itself, which has a fixed hash seed, so that they are the same in every run. Answers are
scored in a fork. Scorers that would evaluate an answer as Python get a reader of plain literals and formulas instead.
Scorers that pay for wrong answers are replaced by `_REPLACED_SCORERS`, and partial credit is worth little, see
`PARTIAL_SHARE`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import json
import math
import operator
import random
import re
import sys
import typing
from collections import OrderedDict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.processes.worker import Request, RunForked, Write

PACKAGES = ("reasoning_gym", "sympy")
CPU_SECONDS = 3.0
"""Processor time of one scoring."""
BATCH_SECONDS = 60.0
"""Processor time of scoring several answers at once, such as the gold answers of a batch of entries."""
WALL_SECONDS = 120.0
MEMORY_BYTES = 4 << 30
MAX_FORMULA = 500
"""Characters of a formula that a scorer gives to sympy."""
BLOCK = 100
"""Entries of one dataset object; some datasets make all of them at once."""

PARTIAL_SHARE = 0.1
"""Factor of partial credit. Some scorers give 0.5 for a text that contains the answer, or is near to it."""
PROBES = ("?", "0", "1", "-1", "10", "nan", "1e400", "[]", "()", "{}", "None", "True", "yes", "A", "6*4*1*1", "E/E")
"""Answers that are wrong for nearly all questions."""
_CACHED = 16
_FORMULA = re.compile(r"[\w\s+\-*/^().,=]*", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*")
_MARKED = re.compile(r"```\w*\n(?P<fence>.*?)\n?```|\$*\\boxed\{(?P<box>.*)\}\$*\.?", re.DOTALL)
_NO_NUMBER = re.compile(r"(?<![a-zA-Z])(?:nan|inf|infinity)[ij]?(?![a-zA-Z])", re.IGNORECASE)
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "sinh", "cosh", "tanh", "asinh", "acosh"}
    | {"atanh", "exp", "log", "ln", "sqrt", "pi", "Abs", "erf"}
)


def _load_numerals() -> Any:
    """The grammar of numbers, by its path, because a helper process imports no package of ours."""
    spec = importlib.util.spec_from_file_location(
        "numerals", Path(__file__).parents[2] / "envs" / "math" / "numerals.py"
    )
    assert spec is not None and spec.loader is not None
    sys.modules["numerals"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_numerals = _load_numerals()


def open_library(run_forked: RunForked) -> Callable[[Request], Request]:
    return Library(run_forked).answer


class Library:
    """The datasets. Those that were used last, and their entries, are kept."""

    def __init__(self, run_forked: RunForked) -> None:
        self._run_forked = run_forked
        self._tables = importlib.import_module("reasoning_gym").factory.DATASETS
        self._sympy = importlib.import_module("sympy")
        self._datasets: OrderedDict[str, Any] = OrderedDict()
        self._entries: OrderedDict[tuple[str, int], dict[str, Any]] = OrderedDict()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "datasets":
            return {"datasets": {name: _fields(config) for name, (_, config) in self._tables.items()}}
        if request["do"] == "check":
            return self._check(request)
        if request["do"] == "entries":
            return self._sound_entries(request)
        return self._score(request)

    def _check(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._dataset({**request, "seed": 0})
        except (AssertionError, ValueError, TypeError) as error:
            return {"invalid": str(error) or type(error).__name__}
        return {}

    def _dataset(self, request: dict[str, Any]) -> Any:
        key = _key(request)
        if key not in self._datasets:
            dataset_class, config_class = self._tables[request["dataset"]]
            config = _config(config_class, {**request["config"], "seed": request["seed"], "size": BLOCK})
            _seed_globals(key)
            _keep(self._datasets, key, dataset_class(config))
        return self._datasets[key]

    def _entry(self, request: dict[str, Any], index: int) -> dict[str, Any]:
        dataset = self._dataset(request)
        key = (_key(request), index)
        if key not in self._entries:
            _seed_globals(str(key))
            _keep(self._entries, key, dataset[index], 4 * BLOCK)
        return self._entries[key]

    def _sound_entries(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make entries; leave out an entry if its gold answer does not get full marks, or a wrong answer gets them.

        Some entries of reasoning-gym are unsound: an integral that is its own answer, a scorer that compares by bool().
        Wrong answers that got full marks are returned as "paid".
        """
        entries = [self._entry(request, index) for index in request["indices"]]
        texts = [[_gold(entry) or PROBES[0], *PROBES, str(entry["question"])] for entry in entries]
        pairs = [(entry, text) for entry, answers in zip(entries, texts, strict=True) for text in answers]
        results = self._score_in_fork(self._dataset(request), pairs, BATCH_SECONDS)
        if isinstance(results, int):
            raise TimeoutError(f"scoring gold answers ended by the signal {results}")
        sound, accepted_answers = [], []
        for index, entry, answers in zip(request["indices"], entries, texts, strict=True):
            (of_gold, *of_probes), results = results[: len(answers)], results[len(answers) :]
            gold = _gold(entry)
            if gold is not None and "raised" in of_gold:
                raise RuntimeError(f"for its own answer: {of_gold['raised']}")
            pairs_of_probes = zip(answers[1:], of_probes, strict=True)
            wrong = [text for text, result in pairs_of_probes if result.get("score") == 1.0 and not _same(text, gold)]
            accepted_answers += wrong[:1]
            if (gold is None or of_gold["score"] == 1.0) and not wrong:
                sound.append({"index": index, "question": str(entry["question"]), "answer": gold})
        return {"entries": sound, "paid": accepted_answers}

    def _score(self, request: dict[str, Any]) -> dict[str, Any]:
        dataset, entry = self._dataset(request), self._entry(request, request["index"])
        if str(entry["question"]) != request["question"]:
            return {"error": "the dataset does not give the same question again"}
        answers = request["answers"]
        seconds = CPU_SECONDS if len(answers) == 1 else BATCH_SECONDS
        results = self._score_in_fork(dataset, [(entry, answer) for answer in answers], seconds)
        return {"signal": results} if isinstance(results, int) else {"results": results}

    def _score_in_fork(
        self, dataset: Any, pairs: list[tuple[Any, str]], cpu_seconds: float
    ) -> list[dict[str, Any]] | int:
        """Score pairs of an entry and an answer in a fork; return the results, or the signal that ended the fork."""

        def work(write: Write) -> None:
            self._guard()
            for entry, answer in pairs:
                write(_score_entry(dataset, entry, answer))

        results, exit_code = self._run_forked(
            work, cpu_seconds=cpu_seconds, wall_seconds=WALL_SECONDS, memory_bytes=MEMORY_BYTES
        )
        if exit_code > 0:
            raise RuntimeError(f"scoring ended with exit code {exit_code}")
        return results if exit_code == 0 else -exit_code

    def _guard(self) -> None:
        """Replace `eval`, and sympy's parser, which evaluates too, in the scorers."""
        read = self._sympy.parse_expr
        formula = _restrict(read)
        for name, module in list(sys.modules.items()):
            if name.startswith("reasoning_gym."):
                vars(module)["eval"] = literal
                if vars(module).get("parse_expr") is read:
                    vars(module)["parse_expr"] = formula
        vars(self._sympy)["parse_expr"] = formula


def _key(request: dict[str, Any]) -> str:
    return json.dumps([request["dataset"], request["seed"], request["config"]], sort_keys=True)


def _keep(table: OrderedDict[Any, Any], key: Any, value: Any, size: int = _CACHED) -> None:
    table[key] = value
    if len(table) > size:
        table.popitem(last=False)


def _seed_globals(key: str) -> None:
    """Seed the global generators, which some datasets draw from."""
    random.seed(key)
    importlib.import_module("numpy").random.seed(random.getrandbits(32))


def _fields(config_class: type) -> list[str]:
    return [field.name for field in dataclasses.fields(config_class)]


def _config(config_class: type, values: dict[str, Any]) -> Any:
    """Make a dataset's configuration; text becomes what a field holds, a list is written with commas."""
    adapter = importlib.import_module("pydantic").TypeAdapter
    hints = typing.get_type_hints(config_class)
    fields: dict[str, Any] = {}
    for name in values.keys() & set(_fields(config_class)):
        kind, value = hints[name], values[name]
        if isinstance(value, str) and (typing.get_origin(kind) or kind) in (list, tuple):
            value = [part for part in value.split(",") if part]
        fields[name] = adapter(kind).validate_python(value)
    config = config_class(**fields)
    if hasattr(config, "validate"):
        config.validate()
    return config


def _score_entry(dataset: Any, entry: dict[str, Any], answer: str) -> dict[str, Any]:
    try:
        score = float(_score_of(dataset, entry, answer))
        # a sum of parts may exceed 1 by rounding, for a wrong answer that begins with the right one
        return {"score": 1.0 if score == 1.0 else PARTIAL_SHARE * _bound(score)}
    except (Exception, RecursionError, MemoryError) as error:
        return {"raised": f"{type(error).__name__}: {error}"[:500]}


def _score_of(dataset: Any, entry: dict[str, Any], answer: str) -> Any:
    if _NO_NUMBER.search(answer) and not _NO_NUMBER.search(_gold(entry) or ""):
        return 0.0  # every comparison with nan is false, also the one for an error that is too large
    name = entry["metadata"].get("source_dataset", "")
    scorer, form = _REPLACED_SCORERS.get(name), _FORMS.get(name)
    if (form or scorer) and (match := _MARKED.fullmatch(answer.strip())):
        answer = match[match.lastgroup or 0]
    if form and not form.fullmatch(answer):
        return 0.0
    return scorer(answer, entry) if scorer else dataset.score_answer(answer, entry)


def _same(text: str, gold: str | None) -> bool:
    """Whether a probe is the gold answer, or the same number."""
    if gold is None or text.strip().casefold() == gold.strip().casefold():
        return gold is not None
    try:
        return Fraction(text) == Fraction(gold)
    except (ValueError, ZeroDivisionError):
        return False


def _uses_numbers(answer: str, entry: dict[str, Any]) -> float:
    """Return 1 for arithmetic that has each of the given numbers once, no other number, and the target as its value."""
    try:
        tree = ast.parse(_in_python(answer), mode="eval").body
        numbers: list[Any] = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        if any(type(number) is not int for number in numbers) or sorted(numbers) != sorted(
            entry["metadata"]["numbers"]
        ):
            return 0.0
        return float(_exact(tree) == entry["metadata"].get("target", 24))
    except (ValueError, SyntaxError, ZeroDivisionError):
        return 0.0


def _in_python(arithmetic: str) -> str:
    """Write arithmetic in Python's signs: 8 × (5 − 1), \\frac{8}{2} \\cdot 3."""
    text = re.sub(r"\\(?:times|cdot|ast)(?![a-z])|(?<=[\d)])\s*[xX]\s*(?=[\d(])", "*", _numerals.plain(arithmetic))
    text = re.sub(r"\\div(?![a-z])", "/", re.sub(r"\\[()\[\]]|\$", "", text)).strip(" *.")
    while text != (text := re.sub(r"\\[dtc]?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)):
        pass
    return text.translate(str.maketrans("[]{}", "()()")).strip()


def _exact(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant):
        return Fraction(typing.cast(int, node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in (ast.Add, ast.Sub, ast.Mult, ast.Div):
        return _OPERATORS[type(node.op)](_exact(node.left), _exact(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in (ast.UAdd, ast.USub):
        return _OPERATORS[type(node.op)](_exact(node.operand))
    raise ValueError(f"{type(node).__name__} is no part of the four operations")


def _is_probability(answer: str, entry: dict[str, Any]) -> float:
    """Return 1 for the probability, as a decimal or a fraction, with an error of at most 0.0001 and 1%."""
    gold = Fraction(entry["answer"])
    number = _numerals.parse_number(answer)
    if number is None or number.unit:
        return 0.0
    return float(abs(number.value / (100 if number.percent else 1) - gold) <= min(Fraction(1, 10_000), gold / 100))


def _is_one_number(answer: str, entry: dict[str, Any]) -> float:
    """Return 1 for a text with the right number as its only one, and no arithmetic; it may have words and units."""
    values = _numerals.values(answer)
    return float(set(values) == {Fraction(entry["answer"])} and not re.search(r"\d\s*!", answer))


def _gold(entry: dict[str, Any]) -> str | None:
    answer = entry["answer"]
    return None if answer is None else str(answer)


def _bound(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


def _restrict(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return sympy's `parse_expr`, restricted to arithmetic, common functions and names of one letter."""

    def parse_expr(text: str, *args: Any, **kwargs: Any) -> Any:
        text = text[1:-1] if text[:1] == text[-1:] and text[:1] in ("'", '"') else text
        words = _WORD.findall(text)
        if len(text) > MAX_FORMULA or not _FORMULA.fullmatch(text):
            raise ValueError("not a formula")
        if any(word not in _FUNCTIONS and not re.fullmatch(r"[A-Za-z]\d*", word) for word in words):
            raise ValueError("a formula holds functions and names of one letter only")
        return read(text, *args, **kwargs)

    return parse_expr


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def literal(text: str, *_: Any) -> Any:
    """Evaluate a Python literal or plain arithmetic; stands in for `eval`.

    >>> literal("[1, 2, 3 + 4]")
    [1, 2, 7]
    """
    return _value(ast.parse(text.strip(), mode="eval").body)


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand))
    raise ValueError(f"{type(node).__name__} is no part of a literal")


_FORMS = {
    "quantum_lock": re.compile(r"[\W_]*[ABC](?:[\W_]*[ABC])*[\W_]*", re.IGNORECASE),
    "sokoban": re.compile(r"[\W_]*[LRUD](?:[\W_]*[LRUD])*[\W_]*", re.IGNORECASE),
}
"""Form of an answer, for datasets with a scorer that extracts moves from any text: moves, and signs around them."""
_REPLACED_SCORERS: dict[str, Callable[[str, dict[str, Any]], float]] = {
    "coin_flip": _is_probability,
    "countdown": _uses_numbers,
    "gsm_symbolic": _is_one_number,
    "puzzle24": _uses_numbers,
}
"""These replace scorers that reward a common first digit, E/E as a one, a first number, and any four numbers."""
