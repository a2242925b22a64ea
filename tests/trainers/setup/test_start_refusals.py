"""Every refusal of a start is one of the plan, too, or has a reason why a plan cannot know it.

The first test finds them all in the source: a new one has to be put into a check of the plan, or into the table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.rows import rows

REPOSITORY = Path(__file__).resolve().parents[3]
STARTS = ("trainers/run", "trainers/titan", "trainers/sft", "trainers/controller", "agents/generator")
"""What a run executes after its plan is made."""
KNOWN = rows(__file__, "start_refusals.tsv")
"""The file and the function of each, and why a plan does not say it, or that it does."""


def refusals() -> Iterator[str]:
    """File and function of every `raise UserError`."""
    for folder in STARTS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for function in ast.walk(tree):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _refuses(function):
                    yield f"{path.relative_to(REPOSITORY)}:{function.name}"


def _refuses(function: ast.AST) -> bool:
    raised = (node.exc for node in ast.walk(function) if isinstance(node, ast.Raise))
    return any(isinstance(error, ast.Call) and ast.unparse(error.func) == "UserError" for error in raised)


def test_every_refusal_of_a_start_is_known() -> None:
    assert sorted(set(refusals())) == [place for place, _ in KNOWN]
