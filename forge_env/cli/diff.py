"""`forge-env diff`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from forge_env.cli.output import Json, emit, note, show_table


def diff(
    first: Annotated[Path, typer.Argument(help="Folder of an evaluation or a training run, or a .jsonl file.")],
    second: Annotated[Path, typer.Argument(help="Another run on the same tasks.")],
    as_json: Json = False,
) -> None:
    """Compare two runs on the attempts that both have: second minus first, with paired statistics."""
    from forge_env.evaluation.compare import compare

    comparisons = compare(first, second)
    if as_json:
        data = [_finite(dataclasses.asdict(c)) for c in comparisons]
        emit({"first": str(first), "second": str(second), "comparisons": data})
        return
    rows = [
        (
            f"{c.phase} {c.measure}{f' of {c.kind}' if c.kind else ''}".strip(),
            f"{c.first:.4f}",
            f"{c.second:.4f}",
            f"{c.paired.difference.value:+.4f}",
            f"{c.paired.difference.low:+.4f} to {c.paired.difference.high:+.4f}",
            f"{c.paired.wins} / {c.paired.losses} / {c.paired.ties}",
            f"{c.paired.p_value:.4f}",
            f"{c.episodes} of {c.tasks} tasks",
        )
        for c in comparisons
    ]
    columns = ("", "first", "second", "difference", "95% interval", "tasks better / worse / same", "p", "pairs")
    show_table(columns, rows)
    for c in (c for c in comparisons if c.measure == "success" and not c.kind):
        if c.tasks < max(c.all_tasks):
            note(f"{c.phase or 'the runs'}: {c.tasks} tasks are shared, of {c.all_tasks[0]} and {c.all_tasks[1]}")
        if c.envs[0] != c.envs[1]:
            note(f"{c.phase or 'the runs'}: the environments are {c.envs[0]} and {c.envs[1]}")
        if any(c.unpaired):
            note(f"{c.phase or 'the runs'}: {c.unpaired[0]} and {c.unpaired[1]} episodes have no counterpart")
        if c.other_seeds:
            note(f"{c.phase or 'the runs'}: {c.other_seeds} pairs have different seeds")


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
