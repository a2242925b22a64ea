"""Makes tasks of the rows of data sets: HumanEval, MBPP, APPS and LiveCodeBench."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from envs.code_exec.asserts import NotCalls, read_asserts, read_check
from envs.data_tasks import message_prompt
from envs.task_splits import kind_of_row
from forge_env.core.types import Message, Task
from forge_env.data.rows import BadRow, field_of
from forge_env.utils.targets import parse_python

Row = Mapping[str, Any]
Tests = list[dict[str, Any]]

SYSTEM = "Try code with the python tool, then answer with the whole program in one Python code block."
MAX_VALUE_CHARACTERS = 60_000
"""Limit of an expected value; a call in the sandbox cannot return more."""
_NAME = re.compile(r"[A-Za-z_]\w*")


class NoTests(Exception):
    """A row without tests that can be used here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    columns: Sequence[tuple[str, ...]]
    """Required fields, each with its alternative names."""
    read: Callable[[Row], tuple[str, dict[str, Any], str]]
    """Returns the question, the target and a solution, which may be empty."""

    def fits(self, row: Row) -> bool:
        return all(any(row.get(name) is not None for name in names) for names in self.columns)


def task_of(row: Row, *, question: str = "", tests: str = "", kind: str = "") -> Task:
    """Make a task of a row, of the kind in its column `kind`.

    `question` and `tests` name their columns, or fields in them, where the row has no known shape. By default the
    names are verl's.
    """
    whole = row
    name = next((name for name, shape in SHAPES.items() if shape.fits(row)), None)
    if question or tests or (name is None and {"prompt", "reward_model"} <= row.keys()):
        row = _as_known(row, question or "prompt", tests or "reward_model.ground_truth")
        name = next((name for name, shape in SHAPES.items() if shape.fits(row)), None)
    if name is None:
        columns = {name: ", ".join(map(" or ".join, shape.columns)) for name, shape in SHAPES.items()}
        shapes = "; ".join(f"{name} has {names}" for name, names in columns.items())
        raise BadRow(f"it has the fields {', '.join(row) or 'none'}; the known shapes: {shapes}")
    row, before = _one_question(row)
    try:
        text, target, solution = SHAPES[name].read(row)
    except NotCalls as error:
        raise BadRow(
            f"its asserts are more than calls with fixed arguments and results, and could be forged ({error!s:.60}): "
            "write them as plain asserts, one call each"
        ) from None
    except NoTests:
        raise BadRow("it has no tests") from None
    except (ValueError, TypeError, KeyError, SyntaxError, AttributeError, IndexError) as error:
        raise BadRow(f"it looks like {name} and cannot be read: {error}") from None
    if not target["tests"]:
        raise BadRow("it has no tests that can be used")
    # "trusted": no answer can change its verdict. The key is kept because the id of a task is a hash of its metadata.
    metadata = {"source": name, "system": SYSTEM, "solution": solution, "trusted": True}
    return Task(
        prompt=(*before, {"role": "user", "content": text}),
        target=target,
        metadata=metadata,
        kind=kind_of_row(whole, kind),
    )


def _as_known(row: Row, question: str, tests: str) -> Row:
    """A row with its tests under the names of APPS, or of MBPP for asserts, or of LiveCodeBench for a list of cases."""
    text, cases = field_of(row, question, what="question"), field_of(row, tests, what="tests")
    if isinstance(cases, str) and cases.lstrip().startswith("assert"):
        cases = [ast.unparse(statement) for statement in parse_python(cases).body]
    with suppress(ValueError):
        cases = _json(cases)
    if isinstance(cases, list) and cases and all(isinstance(case, Mapping) for case in cases):
        others = {name: row.get(name) for name in ("starter_code", "metadata")}
        return {"question_content": text, "public_test_cases": cases, **others}
    if isinstance(cases, list):
        return {"text": text, "test_list": cases}
    return {**row, "question": text, "input_output": cases}


def _one_question(row: Row) -> tuple[Row, Sequence[Message]]:
    """A row with one text as its question, and the messages before it."""
    for name in ("question", "text", "prompt", "question_content"):
        if row.get(name) and isinstance(row[name], list | str):
            *before, last = message_prompt(row[name])
            if last["content"] != row[name]:
                return {**row, name: last["content"]}, before
    return row, ()


def _human_eval(row: Row) -> tuple[str, dict[str, Any], str]:
    prompt, entry_point = row["prompt"], row["entry_point"]
    question = f"Complete the function {entry_point}, and answer with all of it.\n\n```python\n{prompt.strip()}\n```"
    target = {"prelude": _without(prompt, entry_point), "tests": read_check(row["test"], entry_point)}
    solution = row.get("canonical_solution") or ""
    return question, target, prompt + solution if solution else ""


def _without(source: str, function: str) -> str:
    """Return the imports and helpers of a prompt without its stub, which would replace a missing function."""
    module = parse_python(source)
    module.body = [n for n in module.body if not (isinstance(n, ast.FunctionDef) and n.name == function)]
    return ast.unparse(module)


def _mbpp(row: Row) -> tuple[str, dict[str, Any], str]:
    """Show the first assert, which has the function's name; the other asserts, if any, are the tests."""
    sources = [*row["test_list"], *(row.get("challenge_test_list") or ())]
    tests = read_asserts(sources)
    if not tests:
        raise NoTests
    text = str(row.get("text") or row["prompt"]).strip()
    question = f"{text}\nThe function is {tests[0]['function']}."
    if len(sources) > 1:
        tests = read_asserts(sources[1:])
        question += f" An example:\n\n```python\n{sources[0].strip()}\n```"
    prelude = "\n".join([*(row.get("test_imports") or ()), row.get("test_setup_code") or ""])
    return question, {"prelude": prelude, "tests": tests}, row.get("code") or ""


def _apps(row: Row) -> tuple[str, dict[str, Any], str]:
    cases = _json(row["input_output"]) or {}
    name = cases.get("fn_name")
    starter = row.get("starter_code") or ""
    inputs, outputs = ([*(cases.get(f"{side}puts") or cases.get(f"{side}put") or ())] for side in ("in", "out"))
    if name is None:
        pairs = zip(inputs, outputs, strict=True)
        tests: Tests = [{"type": "stdin", "stdin": _text(i), "stdout": _text(o)} for i, o in pairs]
    else:
        # The results of some functions, not known which, are wrapped in a list.
        accepted = [[o, o[0]] if isinstance(o, list) and len(o) == 1 else [o] for o in outputs]
        tests = [_json_call(_function_name(name, starter), *each) for each in zip(inputs, accepted, strict=True)]
    solutions = _json(row.get("solutions")) or [""]
    return _question(row["question"], starter, name), {"tests": _that_fit(tests)}, solutions[0]


def _text(lines: Any) -> str:
    """An input or output; APPS has some as lists of lines."""
    return lines if isinstance(lines, str) else "\n".join(map(str, lines))


def _live_code_bench(row: Row) -> tuple[str, dict[str, Any], str]:
    cases = [*_cases(row, "public_test_cases"), *_cases(row, "private_test_cases")]
    name = (_json(row.get("metadata")) or {}).get("func_name")
    starter = row.get("starter_code") or ""
    tests: Tests = []
    for case in cases:
        if not str(case.get("testtype") or case.get("type") or "stdin").startswith("func"):
            tests.append({"type": "stdin", "stdin": _text(case["input"]), "stdout": _text(case["output"])})
            continue
        name = case.get("fn_name") or (_json(case.get("metadata")) or {}).get("func_name") or name
        if name is None:
            raise BadRow("it has functional tests, and its metadata no func_name")
        arguments, result = case["input"], case["output"]
        if isinstance(arguments, str):
            arguments = [json.loads(line) for line in arguments.split("\n") if line.strip()]
        result = json.loads(result) if isinstance(result, str) else result
        tests.append(_json_call(_function_name(name, starter), arguments, [result]))
    return _question(row["question_content"], starter, name), {"tests": _that_fit(tests)}, ""


def _cases(row: Row, field: str) -> list[dict[str, Any]]:
    value = row.get(field)
    if isinstance(value, str) and value.startswith("eJ"):  # zlib in base64
        raise BadRow(
            f"{field} is a compressed pickle, which could run any code when it is read: write the file anew with plain "
            "JSON in this field"
        )
    return _json(value) or []


def _question(text: str, starter: str, name: str | None) -> str:
    if starter.strip():
        return f"{text.strip()}\n\nStart from this code:\n\n```python\n{starter.rstrip()}\n```"
    how = "Read standard input and print." if name is None else f"The function is {name}."
    return f"{text.strip()}\n\n{how}"


def _function_name(name: str, starter: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadRow(f"its function has the name {name!r}")
    return f"Solution().{name}" if "class Solution" in starter else name


def _json_call(function: str, arguments: Sequence[Any], results: Sequence[Any]) -> dict[str, Any]:
    """Make a call test with values from JSON, where a tuple counts as a list."""
    if not isinstance(arguments, list):
        raise BadRow(f"the arguments {arguments!r:.60} are no list")
    return {
        "type": "call",
        "function": function,
        "args": ", ".join(map(repr, arguments)),
        "accepted": list(map(repr, results)),
        "compare": "json",
    }


def _that_fit(tests: Tests) -> Tests:
    """Remove tests whose value is too large to be returned by a call."""
    return [t for t in tests if t["type"] != "call" or len(t["accepted"][0]) <= MAX_VALUE_CHARACTERS]


def _json(value: Any) -> Any:
    """Decode JSON that a data set holds as text; leave what is decoded already."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise NoTests from None


SHAPES = {
    "HumanEval": Shape(columns=(("prompt",), ("entry_point",), ("test",)), read=_human_eval),
    "MBPP": Shape(columns=(("text", "prompt"), ("test_list",)), read=_mbpp),
    "APPS": Shape(columns=(("question",), ("input_output",)), read=_apps),
    "LiveCodeBench": Shape(
        columns=(("question_content",), ("public_test_cases", "private_test_cases")), read=_live_code_bench
    ),
}
