"""`forge-env diff`."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forge_env.cli.output import Json, emit, note, say, show_table

if TYPE_CHECKING:
    from forge_env.evaluation.compare import Comparison
    from forge_env.utils.statistics import Paired

_WIDE = 100
"""Columns of a terminal that holds a difference and its interval in one line, beside the names of kinds."""


def diff(
    first: Annotated[Path, typer.Argument(help="Folder of an evaluation or a training run, or a .jsonl file.")],
    second: Annotated[Path, typer.Argument(help="Another run on the same tasks.")],
    as_json: Json = False,
) -> None:
    """Compare two runs on the attempts that both have: second minus first, with paired statistics."""
    from forge_env.evaluation.compare import compare, finite

    comparisons = compare(first, second)
    if as_json:
        data = [finite(dataclasses.asdict(c)) for c in comparisons]
        emit({"first": str(first), "second": str(second), "comparisons": data})
        return
    for phase, of_phase in itertools.groupby(comparisons, key=lambda c: c.phase):
        _show_phase(phase, list(of_phase))
    for c in (c for c in comparisons if c.measure == "success" and not c.kind):
        for text in c.notes():
            note(f"{c.phase or 'the runs'}: {text}")


def _show_phase(phase: str, comparisons: Sequence[Comparison]) -> None:
    first = comparisons[0]
    prefix = f"{phase}: " if phase else ""
    pairs, tasks = (f"{n} {what}{'s' * (n != 1)}" for n, what in ((first.episodes, "pair"), (first.tasks, "task")))
    say(f"{prefix}{pairs} of episodes at {tasks}: second minus first, 95% interval")
    gap = cell_gap()
    rows = []
    for c in comparisons:
        name = f"{c.measure}{f' of {c.kind}' if c.kind else ''}"
        rows.append((name, f"{c.first:.3f}", f"{c.second:.3f}", *difference_cells(c.paired, gap)))
    columns = ("", "first", "second", "difference", f"better/{gap.strip(' ')}worse/same", "p")
    show_table(columns, rows, whole=range(1, len(columns)))
    if (kinds := len({c.kind for c in comparisons} - {""})) > 1:
        note(f"{prefix}p and interval of each of the {kinds} kinds are corrected for their number, by Holm's method")


def cell_gap() -> str:
    return " " if shutil.get_terminal_size().columns >= _WIDE else "\n"


def difference_cells(statistics: Paired, gap: str) -> tuple[str, str, str]:
    difference = statistics.difference
    return (
        f"{difference.value:+.3f}{gap}[{difference.low:+.3f}, {difference.high:+.3f}]",
        f"{statistics.wins}/{statistics.losses}/{statistics.ties}",
        f"{statistics.p_value:.4f}",
    )
